"""Seconds that ``plan`` and ``commit`` take per step of pure decoding, on the paper engine (no model, no checks).

    python benchmarks/engine_overhead.py [--steps 400] [--json]

The clock is the process's CPU time, the figure the median over steps: other processes on the machine do not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from kvist.config import CacheConfig, EngineConfig, SchedConfig
from kvist.ids import RequestId
from kvist.sched.request import Request
from kvist.sim.run import paper_engine
from kvist.spec.format import KVFormat
from kvist.spec.layer import Full, LayerSpec, Window
from kvist.spec.layout import CacheLayout, plan_layout
from kvist.spec.model import ModelSpec


def layout_of(*mixers: Full | Window) -> CacheLayout:
    layers = tuple(LayerSpec(i, mixer, 9, 3, 64, 64) for i, mixer in enumerate(mixers))
    model = ModelSpec(architecture="paper", hidden=576, layers=layers, vocab=49152, context_tokens=8192)
    return plan_layout(model, KVFormat(), block_tokens=32)


LAYOUTS = {"full": layout_of(*[Full()] * 30), "hybrid": layout_of(*[Full(), Window(512)] * 15)}


def measure(layout: str, batch: int, steps: int) -> dict[str, object]:
    config = EngineConfig(CacheConfig(blocks=4000), SchedConfig(token_budget=512, max_sequences=64))
    paper = paper_engine(LAYOUTS[layout], config, context_tokens=8192, check=False)
    for i in range(batch):
        prompt = tuple((i * 977 + j * 31) % 49152 for j in range(300))
        paper.engine.add(Request(RequestId(f"r{i}"), prompt, steps + 100))
    scheduler, executor = paper.engine.scheduler, paper.engine.executor
    while any(seq.lacking > 1 for seq in scheduler.running) or scheduler.waiting:
        paper.engine.step()
    plan_s, commit_s = [], []
    for _ in range(steps):
        t0 = time.process_time_ns()
        plan = scheduler.plan()
        t1 = time.process_time_ns()
        assert plan is not None and len(plan.chunks) == batch
        result = executor.execute(plan)
        t2 = time.process_time_ns()
        scheduler.commit(result)
        t3 = time.process_time_ns()
        plan_s.append((t1 - t0) / 1e3)
        commit_s.append((t3 - t2) / 1e3)
    both = sorted(a + b for a, b in zip(plan_s, commit_s, strict=True))
    return {
        "layout": layout,
        "batch": batch,
        "steps": steps,
        "plan_us": round(statistics.median(plan_s), 1),
        "commit_us": round(statistics.median(commit_s), 1),
        "both_us": round(statistics.median(both), 1),
        "both_p99_us": round(both[int(len(both) * 0.99)], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = [measure(layout, batch, args.steps) for layout in LAYOUTS for batch in (1, 4, 16, 64)]
    if args.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print("  ".join(f"{k}={v}" for k, v in row.items()))


if __name__ == "__main__":
    main()
