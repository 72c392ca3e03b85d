"""All sides, one piece of work after another, repetitions interleaved: A B C, B C A, C A B. Medians and spread."""

import statistics

from benchmarks.machine import Others
from benchmarks.peers.floor import PACKED_SPEEDUP, Machine, Shape
from benchmarks.peers.worker import WorkerError

DISTURBED = 0.1
"""A repetition during which other processes took more of all cores than this is marked."""


def measure(work, running, reps, tick):
    """One row of the record. ``running``: worker by side; ``tick`` is called after every question."""
    sides = [s for s in running if s.takes(work)]
    failed = {}
    for side in sides:
        _try(side, running[side], work.question("warm up"), failed, tick)
    seconds = {s: [] for s in sides if s.name not in failed}
    others = {s: [] for s in seconds}
    yards = []
    for rep in range(reps):
        yards.append(yardsticks(running))
        order = list(seconds)
        turn = rep % max(len(order), 1)
        for side in order[turn:] + order[:turn]:
            if side.name in failed:
                continue
            meter = Others(running.values())
            answer = _try(side, running[side], work.question(rep), failed, tick)
            if answer is not None:
                seconds[side].append(answer["seconds"])
                others[side].append(meter.share())
    rows = [_row(work, s, running[s], seconds[s], others[s], yards) for s in seconds if s.name not in failed]
    return {
        "what": work.label,
        "kind": work.kind,
        **vars(work),
        "unit": "tok/s",
        **{k: statistics.median(y[k] for y in yards) for k in (yards[0] if yards else {})},
        "rows": rows,
        "failed": failed,
        **compared(rows),
    }


def yardsticks(running):
    """What the machine can do right now, by the first of kvist's workers; nothing without one."""
    for side, worker in running.items():
        if side.ours:
            return worker.ask(op="yardsticks")
    return {}


def _try(side, worker, question, failed, tick):
    try:
        return worker.ask(**question)
    except WorkerError as error:
        failed[side.name] = str(error)
        return None
    finally:
        tick()


def _row(work, side, worker, seconds, others, yards):
    rates = [work.counted_tokens / s for s in seconds]
    middle = statistics.median(rates)
    row = {
        "side": side.name,
        "ours": side.ours,
        **{k: worker.about.get(k) for k in ("engine", "version", "weights", "kv", "numerics")},
        "median": middle,
        "min": min(rates),
        "max": max(rates),
        "spread": (max(rates) - min(rates)) / middle,
        "samples": rates,
        "others_share": max(others),
    }
    if side.ours:
        row["floor"] = work.counted_tokens / floor_s(work, worker.about, yards)
        row["share_of_floor"] = middle / row["floor"]
    return row


def floor_s(work, about, yards):
    """The floor of one of kvist's rows, with the medians of this piece of work's yardsticks."""
    packed = about["weights"] == "packed"
    machine = Machine(
        statistics.median(y["read_bytes_per_s"] for y in yards),
        statistics.median(y["f32_flops_per_s"] for y in yards),
        PACKED_SPEEDUP if packed else 1.0,
    )
    return work.floor_s(Shape(**about["shape"]), machine)


def compared(rows):
    """The best of the peers, whatever its KV format, and each of kvist's rows against it (also written into them)."""
    peers = [r for r in rows if not r["ours"]]
    if not peers:
        return {}
    best = max(peers, key=lambda r: r["median"])
    for row in rows:
        if row["ours"]:
            row["ratio"] = row["median"] / best["median"]
    return {"best_peer": best["side"]}
