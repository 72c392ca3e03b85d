"""What a restart costs: seconds to the first token of a prompt whose KV lies on disk, beside llama.cpp's saved slot.

    python -m benchmarks.tiers.restart                                   # 4,096 and 7,500 tokens, five rounds
    python -m benchmarks.tiers.restart --llamacpp /path/to/python --tokens 4096

One round: kvist computes a prompt it never saw (cold), its disk tier takes the KV, the process is killed (SIGKILL),
the page cache is dropped as far as the machine allows, a new process loads the model and is asked the same prompt: the
time from asking to the first token. llama.cpp computes and saves each prompt once; every round a new process loads the
file and computes the last token. Rounds are interleaved. The model's own loading is in no figure.
"""

import argparse
import os
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

HERE = "benchmarks.peers.workers"
KV = ("f16", "int8t")


def drop_page_cache(folder):
    """What of the page cache could be dropped: ``all``, or the ``files`` of the folder."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1")
        return "all"
    except OSError:
        pass
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
    return "files"


class Kvist:
    def __init__(self, model, threads, kv, folder):
        self.name, self._folder = f"kvist {kv}", folder / kv
        self._options = {
            "model": str(model), "threads": threads, "weights": "packed", "kv": kv, "numerics": "fast",
            "tier": f"disk:{self._folder}?size=8GiB",
        }  # fmt: skip

    def _worker(self):
        return Worker(sys.executable, f"{HERE}.kvist_engine", self._options)

    def round(self, tokens, number, folder):
        """Cold seconds and seconds after the restart."""
        question = {"tokens": tokens, "seed": f"restart {tokens} {number}", "path": ""}
        first = self._worker()
        cold = first.ask(op="keep", **question)["seconds"]
        first.end()
        dropped = drop_page_cache(folder)
        second = self._worker()
        again = second.ask(op="resume", **question)
        second.end()
        assert again["tokens"] >= tokens - 64, again
        return {"cold_s": cold, "restart_s": again["seconds"], "dropped": dropped}


class LlamaCpp:
    name = "llama.cpp f16"

    def __init__(self, python, model, threads, folder):
        self._python, self._folder = python, folder / "llamacpp"
        self._folder.mkdir()
        self._options = {"model": str(model), "threads": threads, "kv": "f16", "flash": True}
        self._cold = {}

    def _worker(self):
        return Worker(self._python, f"{HERE}.llamacpp", self._options)

    def round(self, tokens, number, folder):
        """The slot was saved in the first round; every round restores it in a new process."""
        question = {"tokens": tokens, "seed": f"restart {tokens}", "path": str(self._folder / f"{tokens}.slot")}
        if tokens not in self._cold:
            first = self._worker()
            self._cold[tokens] = first.ask(op="keep", **question)["seconds"]
            first.end()
        dropped = drop_page_cache(folder)
        second = self._worker()
        again = second.ask(op="resume", **question)
        second.end()
        return {"cold_s": self._cold[tokens], "restart_s": again["seconds"], "dropped": dropped}


def measure(sides, lengths, rounds, folder, console):
    pieces = []
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("", total=len(lengths) * rounds * len(sides))
        for tokens in lengths:
            rows = {side.name: [] for side in sides}
            for number in range(rounds):
                for side in sides:
                    bar.update(task, description=f"{side.name}, {tokens:,} tokens")
                    rows[side.name].append(side.round(tokens, number, folder))
                    bar.advance(task)
            pieces.append({"tokens": tokens, "rows": {name: summary(got) for name, got in rows.items()}})
    return pieces


def summary(rounds):
    cold = statistics.median(r["cold_s"] for r in rounds)
    restart = statistics.median(r["restart_s"] for r in rounds)
    return {
        "cold_s": cold,
        "restart_s": restart,
        "gain": statistics.median(r["cold_s"] / r["restart_s"] for r in rounds),
        "restart_min_s": min(r["restart_s"] for r in rounds),
        "restart_max_s": max(r["restart_s"] for r in rounds),
        "page_cache_dropped": sorted({r["dropped"] for r in rounds}),
    }


def table(pieces):
    out = Table(title="first token after a restart", title_justify="left")
    for head in ("tokens", "engine", "cold", "after restart", "spread", "cold / restart", "times llama.cpp's"):
        out.add_column(head, justify="left" if head == "engine" else "right")
    for piece in pieces:
        peer = piece["rows"].get(LlamaCpp.name)
        for name, row in piece["rows"].items():
            against = f"{peer['restart_s'] / row['restart_s']:.1f}x" if peer and row is not peer else ""
            spread = f"{row['restart_min_s'] * 1e3:.0f} to {row['restart_max_s'] * 1e3:.0f} ms"
            cells = (f"{row['cold_s']:.2f} s", f"{row['restart_s'] * 1e3:.0f} ms", spread, f"{row['gain']:.1f}x")
            out.add_row(f"{piece['tokens']:,}", name, *cells, against)
    return out


def main(argv=None):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--rounds", type=int, default=5)
    ap.add_argument("--tokens", default="4096,7500")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--folder", help="where the KV lies meanwhile (a folder on the disk to be measured)")
    ap.add_argument("--llamacpp", default=os.environ.get("KVIST_PEER_LLAMACPP"), help="a python that has llama_cpp")
    given = ap.parse_args(argv)
    from kvist.runtime.packaged import packaged_model

    console, model = Console(stderr=True), packaged_model()
    folder = Path(tempfile.mkdtemp(prefix="kvist-restart-", dir=given.folder))
    try:
        sides = [Kvist(model, given.threads, kv, folder) for kv in KV]
        if given.llamacpp:
            sides.append(LlamaCpp(given.llamacpp, model, given.threads, folder))
        else:
            console.print("llama.cpp is left out: name a python that has it with --llamacpp")
        others = Others()
        pieces = measure(sides, [int(n) for n in given.tokens.split(",")], given.rounds, folder, console)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    machine = describe("python -m benchmarks.tiers.restart")
    machine["other_processes_and_workers_cpu_share"] = others.share()
    console.print(table(pieces))
    record = {"machine": machine, "model": model.name, "rounds": given.rounds, "pieces": pieces}
    print(f"written to {save('tier-restart', 'smollm2-135m', record)}")


if __name__ == "__main__":
    main()
