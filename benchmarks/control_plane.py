"""What the books cost: a 4,096-token request through the cache, and the thinking of one step; JSON in ``results/``.

    python -m benchmarks.control_plane [--vllm PYTHON] [--sglang PYTHON] [--rounds 5]

``--vllm`` and ``--sglang`` (or KVIST_VLLM_PYTHON, KVIST_SGLANG_PYTHON) are pythons of environments that have them
(``docs/peers.md``); what is not there is left out. All sides do the same rounds, interleaved, one process each.

A request: key its 4,096 tokens, match, take blocks from a full pool (so others are evicted), publish, give back.
``hit``: 4,000 of them are cached. Seconds are medians over 50 requests and over the rounds, ratios medians
over the rounds.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.control_peers import OLD, SHARED, STEPS, N, Parts, now, old_prompts, prompts
from benchmarks.engine_overhead import LAYOUTS, measure
from benchmarks.machine import Others, describe, save
from kvist.cache.bulk import PLAIN
from kvist.cache.cache import Cache
from kvist.ids import BlockId, GroupId, SeqId
from kvist.kernels.books import best_available
from kvist.runtime.inputs import build_inputs
from kvist.runtime.tables import Tables
from kvist.spec.format import KVFormat
from kvist.spec.layer import Full, LayerSpec
from kvist.spec.layout import plan_layout
from kvist.spec.model import ModelSpec
from kvist.step import Chunk, TableChange

KINDS = ("miss", "hit")


class Kvist:
    """The cache that the engine uses, as the scheduler calls it."""

    def __init__(self, block, bulk):
        self.bulk = bulk
        self.version = "kvist" if bulk else "kvist, plain"
        layers = tuple(LayerSpec(i, Full(), 9, 3, 64, 64) for i in range(30))
        model = ModelSpec(architecture="paper", hidden=576, layers=layers, vocab=49152, context_tokens=8192)
        self.layout = plan_layout(model, KVFormat(), block_tokens=block)
        self.blocks = OLD * N // block

    def round(self, kind):
        gc.collect()
        cache = Cache(self.layout, blocks=self.blocks, bulk=self.bulk or PLAIN)
        ids, parts = iter(range(10**9)), Parts()
        for prompt in old_prompts():
            seq = SeqId(next(ids))
            cache.admit(seq, prompt)
            cache.extend(seq, N)
            cache.drain()
            cache.commit(seq, prompt, N)
            cache.release(seq, prompt, N)
        for tokens in prompts(kind):
            seq = SeqId(next(ids))
            t0 = now()
            got = cache.admit(seq, tokens)
            t1 = now()
            cache.extend(seq, N)
            cache.drain()
            t2 = now()
            cache.commit(seq, tokens, N)
            t3 = now()
            for _ in range(STEPS):
                tokens.append(7)
                cache.extend(seq, len(tokens))
                cache.drain()
                cache.commit(seq, tokens, len(tokens))
            t4 = now()
            cache.release(seq, tokens, len(tokens))
            t5 = now()
            assert (got.cached_tokens >= SHARED - 64) == (kind == "hit")
            parts.add(**{"key + match": t1 - t0, "take": t2 - t1, "publish": t3 - t2, "give_back": t5 - t4})
            parts.add(**{"decode step": (t4 - t3) / STEPS})
        return parts.medians()


class Peer:
    """Another python that does its rounds when asked."""

    def __init__(self, python, what, block):
        command = [python, "-P", str(Path(__file__).with_name("control_peers.py")), what, str(block)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.version = self._answer()["version"]

    def _answer(self):
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise SystemExit(f"{self._process.args[0]} gave no answer: run {' '.join(self._process.args)} to see why")

    def round(self, kind):
        self._process.stdin.write(kind + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self):
        self._process.stdin.close()
        self._process.wait(timeout=60)


def compare(block, pythons, rounds):
    """Seconds by part for every side and kind, and the peers' ratios to kvist, round by round."""
    sides = {"kvist": Kvist(block, best_available()), "kvist, plain": Kvist(block, None)} | {
        name: Peer(python, name, block) for name, python in pythons.items()
    }
    got = {(name, kind): [] for name in sides for kind in KINDS}
    for _ in range(rounds):
        for kind in KINDS:
            for name, side in sides.items():
                got[name, kind].append(side.round(kind))
    rows = []
    for kind in KINDS:
        for name, side in sides.items():
            mine = got[name, kind]
            row = {"what": "request", "block_tokens": block, "kind": kind, "side": name, "version": side.version}
            row["us"] = {part: round(statistics.median(r[part] for r in mine) * 1e6, 1) for part in mine[0]}
            if name in pythons:
                pairs = list(zip(mine, got["kvist", kind], strict=True))
                row["ratio"] = round(statistics.median(a["all"] / b["all"] for a, b in pairs), 2)
                if "decode step" in mine[0]:
                    row["ratio_decode_step"] = round(
                        statistics.median(a["decode step"] / b["decode step"] for a, b in pairs), 2
                    )
            rows.append(row)
    for side in sides.values():
        getattr(side, "close", lambda: None)()
    return rows


def inputs(batch, context, layout, repeat=200):
    """Microseconds to build the arrays of a decode step (work list included), contexts around ``context``."""
    tables, chunks, rng = Tables(len(layout.groups)), [], np.random.default_rng(1)
    for i in range(batch):
        n = int(context * (0.9 + 0.2 * rng.random()))
        for group in layout.groups:
            count = -(-(n + 1) // group.tokens_per_block)
            ids = tuple(BlockId(int(b)) for b in rng.integers(0, 1 << 20, count))
            tables.apply(TableChange(SeqId(i), GroupId(group.id), 0, ids))
        chunks.append(Chunk(SeqId(i), n, (7,), (0,)))
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        build_inputs(layout, tuple(chunks), tables)
        times.append(time.perf_counter() - start)
    return round(statistics.median(times) * 1e6, 1)


def show_requests(console, rows):
    table = Table(title="One 4,096-token request, and one decode step of it, microseconds", title_justify="left")
    for head in ("block", "kind", "side", "key, match", "take", "publish", "give back", "all", "ratio", "a step"):
        table.add_column(head, justify="left" if head == "side" else "right")
    for row in rows:
        us = row["us"]
        us["key + match"] = us.get("key + match") or us["key"] + us["match"]
        parts = [f"{us[p]:.0f}" if p in us else "" for p in ("key + match", "take", "publish", "give_back")]
        ratio = f"{row['ratio']:.2f}x" if "ratio" in row else ""
        step = f"{us['decode step']:.1f}" if "decode step" in us else ""
        name = row["version"]
        table.add_row(str(row["block_tokens"]), row["kind"], name, *parts, f"{us['all']:.0f}", ratio, step)
    console.print(table)


def show_steps(console, rows):
    table = Table(title="Thinking of one decode step, microseconds", title_justify="left")
    heads = ("layout", "batch", "plan", "commit", "inputs", "all", "a sequence")
    for head in heads:
        table.add_column(head, justify="left" if head == "layout" else "right")
    for row in rows:
        figures = [row["plan_us"], row["commit_us"], row["inputs_us"], row["all_us"], row["all_us"] / row["batch"]]
        table.add_row(row["layout"], str(row["batch"]), *(f"{x:.1f}" for x in figures))
    console.print(table)


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--vllm", default=os.environ.get("KVIST_VLLM_PYTHON"))
    ap.add_argument("--sglang", default=os.environ.get("KVIST_SGLANG_PYTHON"))
    ap.add_argument("--blocks", default="16,32", help="tokens per block (page)")
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--steps", type=int, default=300)
    a = ap.parse_args()
    console, others = Console(), Others()
    pythons = {name: python for name, python in (("vllm", a.vllm), ("sglang", a.sglang)) if python}
    record = {"machine": describe(" ".join(["python -m benchmarks.control_plane", *sys.argv[1:]])), "rows": []}
    for block in map(int, a.blocks.split(",")):
        record["rows"] += compare(block, pythons, a.rounds)
    show_requests(console, record["rows"])
    steps = []
    for layout in LAYOUTS:
        for batch in (1, 16, 64):
            row = {"what": "step", **measure(layout, batch, a.steps)}
            row["inputs_us"] = inputs(batch, 1000, LAYOUTS[layout])
            row["all_us"] = row["both_us"] + row["inputs_us"]
            steps.append(row)
    show_steps(console, steps)
    record["rows"] += steps
    record["machine"]["other_processes_cpu_share"] = share = others.share()
    if share > 0.1:
        console.print(f"[bold]other processes took {share:.0%} of the processor: run again on a quiet machine[/bold]")
    console.print(f"written to {save('control-plane', 'paper', record)}")


if __name__ == "__main__":
    main()
