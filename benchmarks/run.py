"""``make bench``: kvist beside transformers, interleaved in one run, with the floor; JSON in ``results/``."""

import argparse
import statistics
import sys

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.machine import Others, describe, save
from benchmarks.sides import Kvist, Transformers

CONTEXTS = (128, 2048, 7500)


def spread(values):
    middle = statistics.median(values)
    return {"median": middle, "min": min(values), "max": max(values), "spread": (max(values) - min(values)) / middle}


def floors(side, bandwidth, contexts):
    """Seconds per token if the weights and the context's KV were read once at the measured bandwidth."""
    spec, layout = side.llm.built.spec, side.llm.built.layout
    per_token = spec.kv_bytes_per_token(layout.format)
    return {c: (side.llm.built.weights_bytes + c * per_token) / bandwidth for c in contexts}


def interleave(ours, theirs, verb, reps, tick):
    got = {ours.name: [], theirs.name: []}
    for _ in range(reps):
        for side in (ours, theirs):
            got[side.name].append(getattr(side, verb[0])(*verb[1:]))
            tick()
    return got


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--reps", type=int, default=5)
    ap.add_argument("--tokens", type=int, default=32, help="decoded tokens per repetition")
    ap.add_argument("--contexts", default=",".join(map(str, CONTEXTS)))
    ap.add_argument("--prefill", type=int, default=2048)
    ap.add_argument("--prefill-reps", type=int, default=3)
    a = ap.parse_args()
    contexts = [int(c) for c in a.contexts.split(",")]
    torch.set_num_threads(2)
    console = Console()
    ours, theirs = Kvist(), Transformers()
    from kvist.kernels.native_module import load

    bandwidth = statistics.median(load().read_bandwidth(512 << 20, 2) for _ in range(5))
    floor = floors(ours, bandwidth, contexts)
    record = {"machine": describe(" ".join(["python -m benchmarks.run", *sys.argv[1:]])), "rows": []}
    others = Others()
    record["machine"]["read_bandwidth_bytes_per_s"] = bandwidth
    table = Table(title=f"SmolLM2-135M, 2 threads, read bandwidth {bandwidth / 1e9:.1f} GB/s", title_justify="left")
    for head in ("work", "kvist tok/s", "transformers tok/s", "ratio", "floor tok/s", "share of floor"):
        table.add_column(head, justify="left" if head == "work" else "right")
    total = len(contexts) * 2 * (a.reps + 1) + 2 * a.prefill_reps
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=total)
        tick = lambda: bar.advance(task)  # noqa: E731
        for context in contexts:
            for side in (ours, theirs):
                side.fill(context)
                side.decode(context, 4)
                tick()
            got = interleave(ours, theirs, ("decode", context, a.tokens), a.reps, tick)
            mine, peer = (spread([1 / s for s in got[n]]) for n in (ours.name, theirs.name))
            row(table, f"decode at {context}", mine, peer, 1 / floor[context])
            record["rows"].append(
                {"what": "decode", "context_tokens": context, "unit": "tok/s", ours.name: mine, theirs.name: peer,
                 "floor": 1 / floor[context], "ratio": mine["median"] / peer["median"]}
            )  # fmt: skip
        got = interleave(ours, theirs, ("prefill", a.prefill), a.prefill_reps, tick)
    mine, peer = (spread([a.prefill / s for s in got[n]]) for n in (ours.name, theirs.name))
    row(table, f"prefill of {a.prefill}", mine, peer, None)
    record["rows"].append(
        {"what": "prefill", "prompt_tokens": a.prefill, "unit": "tok/s", ours.name: mine, theirs.name: peer,
         "ratio": mine["median"] / peer["median"]}
    )  # fmt: skip
    console.print(table)
    del theirs
    for batch in (1, 16):
        runs = [ours.overhead(batch, 33) for _ in range(5)]
        middle = {k: statistics.median(r[k] for r in runs) for k in runs[0]}
        record["rows"].append({"what": "engine overhead", "batch": batch, **middle})
        console.print(
            f"engine overhead at batch {batch}: {middle['overhead_ms']:.2f} ms a step"
            f" (forward pass, torch dispatch included: {middle['forward_ms']:.1f} ms)"
        )
    record["machine"]["other_processes_cpu_share"] = share = others.share()
    if share > 0.1:
        console.print(f"[bold]other processes took {share:.0%} of the processor: run again on a quiet machine[/bold]")
    console.print(f"written to {save('transformers', 'smollm2-135m', record)}")


def row(table, what, mine, peer, floor):
    table.add_row(
        what,
        f"{mine['median']:.1f}",
        f"{peer['median']:.1f}",
        f"{mine['median'] / peer['median']:.2f}x",
        f"{floor:.1f}" if floor else "",
        f"{mine['median'] / floor:.0%}" if floor else "",
    )


if __name__ == "__main__":
    main()
