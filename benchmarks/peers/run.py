"""kvist beside llama.cpp, OpenVINO GenAI, transformers and vLLM on one file, interleaved in one run, with the floor.

    python -m benchmarks.peers.run                    # the whole list: about half an hour
    python -m benchmarks.peers.run --quick            # a few minutes
    python -m benchmarks.peers.run --only decode --reps 7 --llamacpp /path/to/python

Which peers take part: those that ``python -m benchmarks.peers.install`` put under ``build/peers``, those named by an
option or by KVIST_PEER_LLAMACPP, KVIST_PEER_OPENVINO, KVIST_PEER_TRANSFORMERS, KVIST_PEER_VLLM (a python each), and
transformers from this python. The rest is named as absent. The record goes to ``results/``, the plot to ``docs/plots``.
"""

import argparse
import json
import os
import signal
import statistics
import sys

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.machine import Others, describe, save
from benchmarks.peers import plot
from benchmarks.peers.measure import measure
from benchmarks.peers.sides import MAKERS, ours, peers
from benchmarks.peers.table import table
from benchmarks.peers.work import chosen
from benchmarks.peers.worker import WorkerError

QUIET_LOAD = 0.5
"""Running processes a core, on average, above which a machine is not quiet."""
WAIT = "how OpenMP threads wait (auto: each engine's own way on a quiet machine, else passive)"


def options(argv):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--reps", type=int, help="repetitions (5; 2 with --quick)")
    ap.add_argument("--only", default="", help="decode, prefill, batch, or several with commas")
    ap.add_argument("--quick", action="store_true", help="a shorter list")
    ap.add_argument(
        "--json", metavar="FILE", help="where the record goes (- prints it); without it whole runs go to results/"
    )
    ap.add_argument("--kvist", default="", help="kvist's rows, weights/kv[/numerics] with commas (the best there is)")
    ap.add_argument("--model", help="a GGUF file that every peer reads (the packaged one)")
    ap.add_argument("--threads", type=int, default=2)
    ap.add_argument("--wait", default="auto", choices=("auto", "own", "active", "passive"), help=WAIT)
    ap.add_argument("--without", default="", help="peers to leave out, with commas")
    for name in MAKERS:
        ap.add_argument(f"--{name}", metavar="PYTHON", help=f"the python that has {name}")
    given = ap.parse_args(argv)
    given.wait = waiting(given)
    given.reps = given.reps or (2 if given.quick else 5)
    return given


def waiting(given):
    """How OpenMP threads wait for each other, the same for every engine: ``own`` leaves each its default.

    By default they spin, which is fastest on a quiet machine; beside other work a thread that spins holds up the one it
    waits for, and engines with many barriers lose the most (llama.cpp: ten times). So ``auto`` lets them sleep there.
    """
    if given.wait != "auto":
        return given.wait
    return "passive" if os.getloadavg()[0] > QUIET_LOAD * (os.cpu_count() or 1) else "own"


def start(sides, model, given, console):
    """Workers by side. A peer that does not start is told of and left out; kvist's own must."""
    env = {"OMP_WAIT_POLICY": given.wait} if given.wait != "own" else None
    running = {}
    for side in sides:
        with console.status(f"starting {side.name}"):
            try:
                running[side] = side.start(model, given.threads, env)
            except WorkerError as error:
                if side.ours:
                    end(running)
                    raise
                console.print(f"left out: {side.name}: {error}", markup=False)
    return running


def end(running):
    for worker in running.values():
        worker.end()


def run(work, running, reps, console):
    """The pieces of the record (those measured so far when interrupted), and what other processes took meanwhile."""
    meter = Others(running.values())
    total = sum((reps + 1) * sum(s.takes(w) for s in running) for w in work)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    pieces = []
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        try:
            for piece in work:
                bar.update(task, description=piece.label)
                pieces.append(measure(piece, running, reps, lambda: bar.advance(task)))
        except KeyboardInterrupt:
            console.print(f"interrupted: {len(pieces)} of {len(work)} pieces were measured")
    return pieces, meter.share()


def command(argv):
    """What was run, without what says only where the record goes."""
    kept = [a for i, a in enumerate(argv) if not a.startswith("--json") and argv[i - 1 : i] != ["--json"]]
    return " ".join(["python -m benchmarks.peers.run", *kept])


def main(argv=None):
    given = options(argv)
    errors = Console(stderr=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    work = chosen(given.quick, given.only)
    from kvist.runtime.packaged import packaged_model

    model = given.model or packaged_model()
    torch.set_num_threads(given.threads)
    wanted = [n for n in MAKERS if n not in given.without.split(",")]
    found, absent = peers({n: getattr(given, n) for n in MAKERS if getattr(given, n)}, wanted)
    for line in absent:
        errors.print(f"left out: {line}", markup=False)
    machine = describe(command(sys.argv[1:] if argv is None else argv))
    running = start([*ours(given.kvist), *found], model, given, errors)
    try:
        pieces, others = run(work, running, given.reps, errors)
        about = {side.name: worker.about for side, worker in running.items()}
    finally:
        end(running)
    if not pieces:
        return 130
    for name in ("read_bytes_per_s", "f32_flops_per_s"):
        machine[name] = statistics.median(p[name] for p in pieces)
    machine |= {"other_processes_cpu_share": others, "omp_wait": given.wait}
    record = {
        "machine": machine, "model": str(model).rpartition("/")[2], "reps": given.reps, "sides": about,
        "absent": absent, "pieces": pieces,
    }  # fmt: skip
    finish(record, given, errors, whole=len(pieces) == len(work))
    return 0 if len(pieces) == len(work) else 130


def finish(record, given, errors, whole):
    """Print and write what was measured; ``results/`` takes nothing but whole runs."""
    if given.json == "-":
        print(json.dumps(record, indent=1))
        return
    Console().print(table(record))
    share = record["machine"]["other_processes_cpu_share"]
    if share > 0.1:
        errors.print(f"other processes took {share:.0%} of the processor: run again on a quiet machine")
    if given.json:
        with open(given.json, "w") as file:
            file.write(json.dumps(record, indent=1) + "\n")
    elif whole and not given.quick and not given.only:
        Console().print(f"written to {save('peers', 'smollm2-135m', record)}")
        if drawn := plot.draw(record):
            Console().print(f"drawn to {drawn}")


if __name__ == "__main__":
    sys.exit(main())
