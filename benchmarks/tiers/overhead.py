"""What tiers cost those who gain nothing by them: kvist with a disk tier beside kvist without, interleaved.

    python -m benchmarks.tiers.overhead                    # nine pairs of each

*No reuse*: prompts that nobody saw before, one after another, each with some new tokens; everything is written and
nothing is ever read. *Beside*: one stream decodes while the KV of a prompt that has just been computed is written.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.machine import Others, describe, save
from benchmarks.peers.worker import Worker

QUESTIONS = {
    "no reuse: 6 x (1,024 + 32 new)": {"op": "fresh", "tokens": 1024, "n": 6, "new": 32},
    "decode at 2,048 beside the writing of 4,096": {"op": "beside", "tokens": 4096, "context": 2048, "new": 96},
}


def worker(model, threads, tier):
    options = {"model": str(model), "threads": threads, "weights": "packed", "kv": "f16", "numerics": "fast"}
    return Worker(sys.executable, "benchmarks.peers.workers.kvist_engine", {**options, "tier": tier})


def measure(sides, pairs, console):
    pieces = []
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("", total=len(QUESTIONS) * (pairs + 1) * 2)
        for what, question in QUESTIONS.items():
            got = {name: [] for name in sides}
            for number in range(pairs + 1):
                order = list(sides) if number % 2 else list(sides)[::-1]
                for name in order:
                    bar.update(task, description=f"{what}, {name}")
                    answer = sides[name].ask(**question, seed=f"{what} {number}")
                    if number:
                        got[name].append(answer)
                    bar.advance(task)
            pieces.append(piece(what, got))
    return pieces


def piece(what, got):
    ratios = [t["seconds"] / p["seconds"] for t, p in zip(got["disk"], got["plain"], strict=True)]
    return {
        "what": what,
        "plain_s": statistics.median(r["seconds"] for r in got["plain"]),
        "disk_s": statistics.median(r["seconds"] for r in got["disk"]),
        "slowdown": statistics.median(ratios) - 1,
        "slowdowns": [round(r - 1, 4) for r in sorted(ratios)],
        "going_bytes": [r["going_bytes"] for r in got["disk"] if "going_bytes" in r],
        "left_bytes": [r["left_bytes"] for r in got["disk"] if "left_bytes" in r],
    }


def table(pieces):
    out = Table(title="kvist with a disk tier beside kvist without", title_justify="left")
    for head in ("work", "without", "with", "slower by", "pairs from", "to"):
        out.add_column(head, justify="left" if head == "work" else "right")
    for p in pieces:
        low, high = p["slowdowns"][0], p["slowdowns"][-1]
        times = (f"{p['plain_s'] * 1e3:.0f} ms", f"{p['disk_s'] * 1e3:.0f} ms")
        out.add_row(p["what"], *times, f"{p['slowdown']:+.1%}", f"{low:+.1%}", f"{high:+.1%}")
    return out


def main(argv=None):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--pairs", type=int, default=9)
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--folder", help="where the tier lies meanwhile (a folder on the disk to be measured)")
    given = ap.parse_args(argv)
    from kvist.runtime.packaged import packaged_model

    console, model = Console(stderr=True), packaged_model()
    folder = Path(tempfile.mkdtemp(prefix="kvist-overhead-", dir=given.folder))
    sides = {}
    try:
        sides["plain"] = worker(model, given.threads, None)
        sides["disk"] = worker(model, given.threads, f"disk:{folder}?size=12GiB")
        others = Others(sides.values())
        pieces = measure(sides, given.pairs, console)
        share = others.share()
    finally:
        for side in sides.values():
            side.end()
        shutil.rmtree(folder, ignore_errors=True)
    machine = {**describe("python -m benchmarks.tiers.overhead"), "other_processes_cpu_share": share}
    console.print(table(pieces))
    record = {"machine": machine, "model": model.name, "pairs": given.pairs, "pieces": pieces}
    print(f"written to {save('tier-overhead', 'smollm2-135m', record)}")


if __name__ == "__main__":
    main()
