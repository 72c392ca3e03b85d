"""The planner's own error: predicted against measured first-token and per-token times, over a grid it has not seen.

    python -m benchmarks.planner_accuracy [--quick]

The machine is measured in the same run by ``kvist.lab`` at its own points, none of which lies on the grid; its rounds
are spread between the grid's, so that a host whose memory changes speed does so to both. Then each grid point is
predicted from those rates alone. A first token is timed cold: prompts nobody has seen, all arriving at once, the mean
over the batch while the earlier ones already answer. Time per token is the median step behind cached prompts.

Beside the error as planned stands the error for the memory's speed right beside the reading: what is left when the
host's mood is known. Nothing is left out; points that other processes disturbed say so. The whole grid takes about 20
minutes on two cores, most of them for sixteen prompts of 7,500 tokens in each format; ``--quick`` about eight.
"""

import argparse
import statistics
import sys
import time

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.machine import describe, save
from kvist.cost.measured import BUSY
from kvist.lab.host import Load
from kvist.lab.measure import Measurement
from kvist.lab.points import POINTS
from kvist.lab.rig import Model, Rig
from kvist.lab.yardsticks import read_bandwidth
from kvist.planner.predict import predict
from kvist.spec.format import ELEMENTS, KVFormat

CONTEXTS, BATCHES = (128, 1024, 4096, 7500), (1, 4, 16)
WITHIN = 0.15
PROMPT_TOKENS_ENOUGH = 12_000
"""A point is repeated until it has computed so many prompt tokens, three times at most."""

AGAIN_TOKENS = 20_000
"""Points of so few prompt tokens are measured once more when other processes disturbed them; both tries are kept."""


def grid(quick, contexts, batches, formats):
    """(format, context, batch), formats apart; quick leaves out the long bursts of many."""
    points = [(f, c, b) for f in formats for c in contexts for b in batches]
    return [p for p in points if not quick or p[1] * p[2] <= 20_000 * (1 + (p[2] < 16))]


class Side:
    """One format's engine, with room for the largest burst and what is answered behind it."""

    def __init__(self, model, fmt, points):
        self.model, self.fmt = model, fmt
        most = max(b * (c + b * c // 512 + 64) for _, c, b in points)
        self.rig = Rig(model, fmt, most + 4096)
        self.seed = 1_000_000

    def first_tokens(self, context, batch):
        """Mean seconds to the first token; the prompts stay in the cache."""
        self.seed += 1
        self.prompts = self.model.prompts(batch, context, self.seed)
        self.salt = f"bench {self.seed}".encode()
        engine, room = self.rig.engine, self.model.spec.context_tokens - context
        hits = engine.scheduler.cache.counters.hit_tokens
        load = Load.start()
        seqs = self.rig.add(self.prompts, room, salt=self.salt)
        for _ in self.rig.steps():
            if all(engine.timeline(s).first_token_s is not None for s in seqs):
                break
        others = load.share()
        assert engine.scheduler.cache.counters.hit_tokens == hits, "not cold"
        times = [engine.timeline(s).ttft_s for s in seqs]
        self.rig.abort(seqs)
        return {"s": statistics.fmean(times), "others": others}

    def per_token(self, batch, tokens):
        """Median seconds of a step in which all sequences decode, and the memory's speed around it."""
        before, load = read_bandwidth(), Load.start()
        self.rig.add(self.prompts, tokens + 2, salt=self.salt)
        steps = [s for s in list(self.rig.steps())[1:] if s.only_continues and len(s.chunks) == batch]
        others = load.share()
        return {"s": statistics.median(s.wall_s for s in steps), "others": others,
                "bandwidth": (before + read_bandwidth()) / 2}  # fmt: skip


def measure_point(side, context, batch, tokens):
    """Repetitions of one grid point."""
    first, decode = [], []
    for _ in range(max(1, min(3, PROMPT_TOKENS_ENOUGH // (context * batch)))):
        first.append(side.first_tokens(context, batch))
        decode.append(side.per_token(batch, tokens))
    while len(decode) < 3:
        decode.append(side.per_token(batch, tokens))
    middle = lambda runs, key: statistics.median(r[key] for r in runs)  # noqa: E731
    return {
        "kv_format": side.fmt, "context_tokens": context, "batch": batch,
        "ttft_s": middle(first, "s"), "ttft_runs": first, "tpot_s": middle(decode, "s"), "tpot_runs": decode,
        "read_bandwidth_bytes_per_s": middle(decode, "bandwidth"),
        "disturbed": max(middle(first, "others"), middle(decode, "others")) > BUSY,
    }  # fmt: skip


def with_predictions(rows, machine, spec):
    for row in rows:
        where = spec, KVFormat.parse(row["kv_format"]), row["context_tokens"], row["batch"]
        ttft, tpot = predict(machine, *where)
        now = predict(machine.at(row["read_bandwidth_bytes_per_s"]), *where)
        row |= {
            "ttft_predicted_s": ttft, "ttft_error": ttft / row["ttft_s"] - 1,
            "tpot_predicted_s": tpot, "tpot_error": tpot / row["tpot_s"] - 1,
            "tpot_error_at_speed_of_the_moment": now.tpot_s / row["tpot_s"] - 1,
        }  # fmt: skip
    return rows


def summary(rows):
    out = {"points": len(rows), "disturbed": sum(r["disturbed"] for r in rows)}
    for key in ("ttft_error", "tpot_error", "tpot_error_at_speed_of_the_moment"):
        errors = [r[key] for r in rows]
        worst = max(rows, key=lambda r: abs(r[key]))
        out[key] = {
            "median": statistics.median(errors), "median_absolute": statistics.median(map(abs, errors)),
            "mean_absolute": statistics.fmean(map(abs, errors)), "worst": worst[key],
            "worst_at": [worst["kv_format"], worst["context_tokens"], worst["batch"]],
            "within_15_percent": sum(abs(e) <= WITHIN for e in errors),
        }  # fmt: skip
    return out


def show(console, rows, total):
    table = Table(title="predicted against measured", title_justify="left")
    for head in ("KV", "context", "batch", "TTFT s", "predicted", "error", "TPOT ms", "predicted", "error",
                 "at its GB/s", "read GB/s", ""):  # fmt: skip
        table.add_column(head, justify="left" if head in ("KV", "") else "right")
    for r in rows:
        table.add_row(
            r["kv_format"], str(r["context_tokens"]), str(r["batch"]), f"{r['ttft_s']:.3f}",
            f"{r['ttft_predicted_s']:.3f}", f"{r['ttft_error']:+.1%}", f"{r['tpot_s'] * 1e3:.2f}",
            f"{r['tpot_predicted_s'] * 1e3:.2f}", f"{r['tpot_error']:+.1%}",
            f"{r['tpot_error_at_speed_of_the_moment']:+.1%}", f"{r['read_bandwidth_bytes_per_s'] / 1e9:.0f}",
            "disturbed" if r["disturbed"] else "",
        )  # fmt: skip
    console.print(table)
    for key, text in (("ttft_error", "TTFT"), ("tpot_error", "TPOT"),
                      ("tpot_error_at_speed_of_the_moment", "TPOT at the memory's speed beside it")):  # fmt: skip
        t = total[key]
        console.print(
            f"{text}: median error {t['median']:+.1%}, median absolute {t['median_absolute']:.1%}, worst"
            f" {t['worst']:+.1%} at {t['worst_at']}, within 15 %: {t['within_15_percent']} of {total['points']}"
        )


def options():
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--quick", action="store_true", help="without the long bursts of many: about seven minutes")
    ap.add_argument("--contexts", default=",".join(map(str, CONTEXTS)))
    ap.add_argument("--batches", default=",".join(map(str, BATCHES)))
    ap.add_argument("--formats", default=",".join(ELEMENTS))
    ap.add_argument("--tokens", type=int, default=12, help="decoded tokens per reading")
    ap.add_argument("--dtype", default="packed", help="weights in memory: packed, int8, f32 or bf16")
    ap.add_argument("--threads", type=int, default=2)
    a = ap.parse_args()
    whole = lambda text: [int(x) for x in text.split(",")]  # noqa: E731
    return a, grid(a.quick, whole(a.contexts), whole(a.batches), a.formats.split(","))


def run(model, points, tokens, console):
    """Rounds of the measurement, and between them the grid, a format at a time."""
    formats = list(dict.fromkeys(f for f, _, _ in points))
    rows = []
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=sum(c * b for _, c, b in points) + sum(p.tokens for p in POINTS))
        say = lambda done, total, what: bar.update(task, description=f"machine, {what}")  # noqa: E731
        lab = Measurement(model, on_point=say)
        lab.cold()
        bar.advance(task, sum(p.tokens for p in lab.points))
        for fmt in formats:
            lab.warm()
            mine = [p for p in points if p[0] == fmt]
            side = Side(model, fmt, mine)
            for _, context, batch in mine:
                bar.update(task, description=f"grid, {fmt}: {context} x {batch}")
                row = measure_point(side, context, batch, tokens)
                if row["disturbed"] and context * batch <= AGAIN_TOKENS:
                    row = measure_point(side, context, batch, tokens) | {"first_try": row}
                rows.append(row)
                bar.advance(task, context * batch)
            del side
            lab.cold(lab.short)
            lab.cold(lab.spoilt)
            lab.warm()
        machine = lab.machine()
    return machine, rows


def main() -> None:
    a, points = options()
    torch.set_num_threads(a.threads)
    console, start = Console(width=None if sys.stdout.isatty() else 130), time.perf_counter()
    record = {"machine": describe(" ".join(["python -m benchmarks.planner_accuracy", *sys.argv[1:]]))}
    load = Load.start()
    model = Model.load(None, a.dtype)
    machine, rows = run(model, points, a.tokens, console)
    rows = with_predictions(rows, machine, model.spec)
    total = summary(rows)
    show(console, rows, total)
    record["machine"] |= {"other_processes_cpu_share": load.share(), "seconds": time.perf_counter() - start}
    record |= {"summary": total, "rows": rows, "measured_machine": machine.to_dict()}
    if load.share() > BUSY:
        console.print(f"[bold]other processes took {load.share():.0%} of the processor: run again when quiet[/bold]")
    whole = not a.quick and set(points) == set(grid(False, CONTEXTS, BATCHES, list(ELEMENTS)))
    what = "planner-accuracy" if whole else "planner-accuracy-part"
    console.print(f"{record['machine']['seconds']:.0f} s; written to {save(what, 'smollm2-135m', record)}")


if __name__ == "__main__":
    main()
