"""Speed of the native kernels against what this machine can do. Geometry: SmolLM2-135M (30 layers, 9/3 heads of 64).

    python -m benchmarks.kernels [--quick] [--isa avx2] [--json FILE]

Every figure is the median of at least five repetitions. The yardsticks are measured by the same module in the same
process: multiply-add rate once, read bandwidth again beside every figure it is held against: on shared hosts it moves
by half within a minute. The newest record in ``results/`` makes the tables of docs/kernels.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks.machine import Others, describe, save
from kvist.kernels.attention.base import LayerView
from kvist.kernels.attention.native import NativeAttention
from kvist.kernels.attention.worklist import build
from kvist.kernels.matrix import GROUP, Matrix
from kvist.kernels.native_module import load
from kvist.kernels.ops.native import NativeOps
from kvist.kernels.packing import tile_w4, tile_w8
from kvist.spec.format import ELEMENTS
from kvist.spec.layer import Retention

LAYERS, Q_HEADS, KV_HEADS, DIM, TOKENS = 30, 9, 3, 64, 32
FLOPS_PER_PAIR = 4 * DIM
SHAPES = ((576, 960), (576, 576), (576, 3072), (1536, 576), (576, 49152))
ALL_PARTS = "decode,prefill,linear,overhead"
Row = dict[str, object]


def median_s(work: Callable[[], object], *, seconds: float, least: int = 5) -> float:
    """Median time of a call, after one warm-up."""
    work()
    times: list[float] = []
    stop = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < stop:
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def views(element: str) -> tuple[list[LayerView], int]:
    """One view a layer, and the bytes of a block."""
    tile = TOKENS * ELEMENTS[element].row_bytes(DIM)
    head = 2 * tile
    return [
        LayerView(i * KV_HEADS * head, i * KV_HEADS * head + tile, head, KV_HEADS, DIM, DIM, TOKENS, element, element)
        for i in range(LAYERS)
    ], LAYERS * KV_HEADS * head


def filled_pool(blocks: int, block_bytes: int, element: str, *, huge_pages: bool = False) -> torch.Tensor:
    """A pool of small random numbers."""
    pool = torch.empty((blocks, block_bytes), dtype=torch.uint8)
    if huge_pages:
        import mmap

        buffer = mmap.mmap(-1, blocks * block_bytes + (2 << 20))
        buffer.madvise(mmap.MADV_HUGEPAGE)
        pool = torch.frombuffer(buffer, dtype=torch.uint8)[: blocks * block_bytes].view(blocks, block_bytes)
    if element == "int8t":
        tile_bytes = TOKENS * ELEMENTS[element].row_bytes(DIM)
        tile = torch.randint(-127, 128, (tile_bytes,), dtype=torch.int8).view(torch.uint8)
        tile[TOKENS * DIM :] = torch.full((TOKENS,), 0.01, dtype=torch.float16).view(torch.uint8)
        pool[:] = tile.repeat(block_bytes // len(tile))
        return pool
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[element]
    pattern = torch.randn(block_bytes // dtype.itemsize).to(dtype).view(torch.uint8)
    pool[:] = pattern
    return pool


def attention_call(element: str, context: int, rows: int, sequences: int = 1, **pool_options: bool):
    """A function that runs all layers once, and the bytes of K and V it reads (each row tile apart)."""
    per_sequence = -(-context // TOKENS)
    layer_views, block_bytes = views(element)
    pool = filled_pool(per_sequence * sequences, block_bytes, element, **pool_options)
    ids = np.random.default_rng(0).permutation(per_sequence * sequences).astype(np.int32)
    tables = [ids[i * per_sequence : (i + 1) * per_sequence] for i in range(sequences)]
    work = build(tables, [context - rows] * sequences, [rows] * sequences, Retention(), TOKENS)
    q = torch.randn(rows * sequences, Q_HEADS, DIM)
    out = torch.empty(rows * sequences, Q_HEADS, DIM)
    attention = NativeAttention()

    def run() -> None:
        for view in layer_views:
            attention(q, pool, view, work, scale=DIM**-0.5, softcap=0.0, out=out)

    return run, LAYERS * sequences * context * KV_HEADS * 2 * ELEMENTS[element].row_bytes(DIM)


def bandwidth(threads: int) -> float:
    """Bytes a second of a sequential read right now: the best of a quarter of a second."""
    return float(load().read_bandwidth(512 << 20, threads, 0.25))


def decode(seconds: float) -> list[Row]:
    rows: list[Row] = []
    for element, context, sequences, threads in (
        ("f16", 128, 1, 1), ("f16", 128, 1, 2), ("f16", 2048, 1, 2), ("f16", 7500, 1, 1), ("f16", 7500, 1, 2),
        ("f32", 7500, 1, 2), ("bf16", 7500, 1, 2), ("f16", 2048, 16, 2), ("int8t", 7500, 1, 1), ("int8t", 7500, 1, 2),
    ):  # fmt: skip
        torch.set_num_threads(threads)
        run, n_bytes = attention_call(element, context, 1, sequences)
        before = bandwidth(threads)
        s = median_s(run, seconds=seconds)
        read = max(before, bandwidth(threads))
        rows.append(
            {
                "what": "decode attention, 30 layers", "kv": element, "context": context, "sequences": sequences,
                "threads": threads, "ms": s * 1e3, "gb_s": n_bytes / s / 1e9, "read_gb_s": read / 1e9,
                "of_bandwidth": n_bytes / s / read,
            }
        )  # fmt: skip
    return rows


def prefill(seconds: float, peak: dict[int, float]) -> list[Row]:
    rows: list[Row] = []
    for element, end, threads in (
        ("f16", 512, 2), ("f16", 7500, 1), ("f16", 7500, 2), ("f32", 7500, 2),
        ("int8t", 7500, 2),
    ):  # fmt: skip
        torch.set_num_threads(threads)
        run, _ = attention_call(element, end, 512)
        s = median_s(run, seconds=seconds)
        pairs = sum(end - 512 + i + 1 for i in range(512))
        flops = LAYERS * Q_HEADS * FLOPS_PER_PAIR * pairs
        rows.append(
            {
                "what": "prefill attention, 512 rows, 30 layers", "kv": element, "end": end, "threads": threads,
                "ms": s * 1e3, "gflop_s": flops / s / 1e9, "of_peak": flops / s / peak[threads],
            }
        )  # fmt: skip
    return rows


def packed_matrix(kind: str, outputs: int, inputs: int) -> Matrix:
    """Random integers with small scales."""
    rng = np.random.default_rng(0)
    scales = np.full((outputs, inputs // GROUP), 0.01, np.float16)
    if kind == "w8":
        return tile_w8(rng.integers(-127, 128, (outputs, inputs)).astype(np.int8), scales)
    return tile_w4(rng.integers(0, 16, (outputs, inputs)).astype(np.uint8), scales, -scales)


def matrices(kind: str, outputs: int, inputs: int) -> list[Matrix]:
    """Weights of enough layers that none stays in a cache between calls."""
    plain = {"f32": torch.float32, "bf16": torch.bfloat16}.get(kind)
    one = packed_matrix(kind, outputs, inputs) if plain is None else Matrix.of(torch.randn(outputs, inputs).to(plain))
    return [replace(one, data=one.data.clone()) for _ in range(max(2, (160 << 20) // one.bytes))]


def linear(seconds: float, peak: dict[int, float]) -> list[Row]:
    """Products of one layer's shapes and of the head, plain and packed, by few rows and by many."""
    ops = NativeOps()
    rows: list[Row] = []
    torch.set_num_threads(2)
    for k, n in SHAPES:
        for kind in ("f32", "bf16", "w8", "w4"):
            weights = matrices(kind, n, k)
            size, read = weights[0].bytes, bandwidth(2)
            for m in (1, 4, 16, 256):
                x, out = torch.randn(m, k), torch.empty(m, n)

                def run(op: Callable[..., object]) -> float:
                    return median_s(lambda: [op(x, w, out=out) for w in weights], seconds=seconds) / len(weights)  # noqa: B023

                s = run(ops.linear)
                row: Row = {
                    "what": "linear", "shape": f"{k}x{n}", "weights": kind, "rows": m, "us": s * 1e6,
                    "gb_s": size / s / 1e9, "of_bandwidth": size / s / read,
                    "gflop_s": 2 * m * k * n / s / 1e9, "of_peak": 2 * m * k * n / s / peak[2],
                }  # fmt: skip
                if kind == "f32":
                    row["library_us"] = run(lambda x, w, out: torch.mm(x, w.data.t(), out=out)) * 1e6
                rows.append(row)
    return rows


def overhead(seconds: float) -> list[Row]:
    """Calls that have next to nothing to do."""
    ops, attention = NativeOps(), NativeAttention()
    x, w, out, half = torch.randn(1, 16), Matrix.of(torch.randn(16, 16)), torch.empty(1, 16), torch.empty(1, 8)
    norm = torch.ones(16)
    layer_views, block_bytes = views("f16")
    pool = filled_pool(1, block_bytes, "f16")
    work = build([np.zeros(1, np.int32)], [0], [1], Retention(), TOKENS)
    q, o = torch.randn(1, Q_HEADS, DIM), torch.empty(1, Q_HEADS, DIM)
    view = layer_views[0]
    qkv = torch.randn(1, (Q_HEADS + 2 * KV_HEADS) * DIM)
    angles = torch.randn(8, DIM // 2)
    at = np.zeros(1, np.int32)

    def rotate() -> None:
        ops.norm_rotate_write(
            qkv, pool, view, q_heads=Q_HEADS, cos=angles, sin=angles, positions=at, block=at, slot=at,
            q_norm=None, k_norm=None, eps=1e-5, q_out=q,
        )  # fmt: skip

    calls: dict[str, Callable[[], object]] = {
        "linear 16x16, 1 row": lambda: ops.linear(x, w, out=out),
        "linear 16x16, 1 row, allocates": lambda: ops.linear(x, w),
        "rms_norm 16": lambda: ops.rms_norm(x, norm, 1e-5, out=out),
        "gated 8": lambda: ops.gated(x, "silu", out=half),
        "norm_rotate_write, 1 row": rotate,
        "attention, 1 row, 1 token": lambda: attention(q, pool, view, work, scale=0.1, softcap=0.0, out=o),
    }
    n = 200
    return [
        {"what": "call", "name": name, "us": median_s(lambda: [f() for _ in range(n)], seconds=seconds) / n * 1e6}  # noqa: B023
        for name, f in calls.items()
    ]


def show(row: Row) -> str:
    return "  ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the time, rougher figures")
    parser.add_argument("--isa", help="force an instruction set")
    parser.add_argument("--only", default=ALL_PARTS, help="parts, separated by commas")
    parser.add_argument("--json", help="where the record goes (whole runs: to results/)")
    args = parser.parse_args()
    native = load()
    if args.isa:
        native.choose(args.isa)
    seconds = 0.2 if args.quick else 1.0
    peak = {t: 2 * native.multiply_rate(t, 0.5) for t in (1, 2)}
    machine = describe(" ".join(["python -m benchmarks.kernels", *sys.argv[1:]])) | {
        "read_gb_s_1": bandwidth(1) / 1e9, "read_gb_s_2": bandwidth(2) / 1e9,
        "peak_gflop_s_1": peak[1] / 1e9, "peak_gflop_s_2": peak[2] / 1e9,
    }  # fmt: skip
    print(show(machine), flush=True)
    rows: list[Row] = []
    meter = Others()
    parts: dict[str, Callable[[], list[Row]]] = {
        "decode": lambda: decode(seconds),
        "prefill": lambda: prefill(seconds, peak),
        "linear": lambda: linear(seconds / 4, peak),
        "overhead": lambda: overhead(seconds / 4),
    }
    for part in args.only.split(","):
        for row in parts[part]():
            print(show(row), flush=True)
            rows.append(row)
    machine["other_processes_cpu_share"] = meter.share()
    record = {"machine": machine, "rows": rows}
    if args.json:
        Path(args.json).write_text(json.dumps(record, indent=1) + "\n")
    elif args.only == ALL_PARTS and not args.quick and not args.isa:
        print(f"written to {save('kernels', 'smollm2-135m', record)}")


if __name__ == "__main__":
    main()
