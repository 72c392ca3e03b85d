"""How much of what could be cached is cached when the pool is too small: evict policies against the optimum.

    python -m benchmarks.serving.hit_rate [--traces SESSIONS.jsonl.gz]

Each workload is served by the cache alone, one request after another, under every policy. *optimum* knows the future
(Belady 1966); *online* is what is to be expected of the best that does not, for prefixes drawn at random
(``tests/laws/belady.py``). Rates are cached prompt tokens in per cent. ``--traces`` adds recorded agent sessions, one
JSON object a line, with ``requests`` of ``t`` (seconds) and ``hash_ids`` (one per 64 tokens; the ids of a session mean
something within it), one session starting every 0, 120 or 600 seconds.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT, describe, save

sys.path.insert(0, str(ROOT / "tests" / "laws"))

from belady import Request, best_online, optimum  # noqa: E402
from cache_prompts import PREFIX, drift, endings, groups, popular, scan, served, turns  # noqa: E402

POLICIES = ("lru", "interval", "auto")
SEEDS = 3
Make = Callable[[int], list[Request]]

WORKLOADS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "8 conversations in turn": (lambda seed: turns("loop", seed), (200, 120)),
    "24 conversations in turn": (lambda seed: turns("loop", seed, 24, 8), (600, 400)),
    "24 conversations shuffled": (lambda seed: turns("shuffled", seed, 24), (200, 120)),
    "12 conversations, ending": (endings, (200, 140, 80)),
    "8 prefixes in turn": (lambda seed: groups("loop", seed, 8, 32), (120, 100)),
    "8 prefixes in turn, 8 rounds": (lambda seed: groups("loop", seed), (120, 100)),
    "32 prefixes in turn": (lambda seed: groups("loop", seed, 32, 32), (420, 300)),
    "8 prefixes drawn": (lambda seed: groups("drawn", seed, 8, 32), (120, 100)),
    "32 prefixes drawn": (lambda seed: groups("drawn", seed, 32, 32), (420, 300)),
    "8 prefixes shuffled, 8 rounds": (lambda seed: groups("shuffled", seed), (120, 100)),
    "40 prefixes, some popular": (popular, (300, 120)),
    "prefixes among single prompts": (scan, (100,)),
    "prefixes that go out of use": (drift, (120, 60)),
}
TRACE_BLOCKS, TRACE_GAPS_S = (10000, 4000), (0, 120, 600)


def sessions(path: Path, gap_s: float) -> list[Request]:
    """Recorded sessions, merged by time: a token for each block."""
    events: list[tuple[float, int, list[int]]] = []

    def walk(requests: list[dict[str, Any]], number: int) -> None:
        for request in requests:
            if request.get("hash_ids"):
                ids = [(number << 20) + block for block in request["hash_ids"]]
                events.append((number * gap_s + request["t"], number, ids))
            walk(request.get("requests", []), number)

    with gzip.open(path, "rt") as lines:
        for number, line in enumerate(lines):
            walk(json.loads(line)["requests"], number)
    events.sort(key=lambda event: event[:2])
    return [(ids, []) for _, _, ids in events]


def measure(name: str, runs: list[list[Request]], size: int, blocks: int) -> dict[str, Any]:
    """One row: means over the runs."""
    total = sum(len(prompt) for requests in runs for prompt, _ in requests) / 100
    row: dict[str, Any] = {"workload": name, "blocks": blocks}
    for policy in POLICIES:
        row[policy] = sum(served(requests, size, blocks, policy) for requests in runs) / total
    row["optimum"] = sum(optimum(requests, size, blocks) for requests in runs) / total
    if name.endswith("drawn"):
        row["online"] = sum(best_online(requests, PREFIX, size, blocks) for requests in runs) / total
    online = f"{row['online']:7.1f}" if "online" in row else ""
    rates = "".join(f"{row[column]:10.1f}" for column in (*POLICIES, "optimum"))
    print(f"{name:32}{blocks:7}{rates} {online}", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path)
    args = parser.parse_args()
    print(f"{'':32}{'blocks':>7}" + "".join(f"{name:>10}" for name in (*POLICIES, "optimum")) + "  online")
    rows = []
    for name, (make, pools) in WORKLOADS.items():
        runs = [make(seed) for seed in range(SEEDS)]
        rows += [measure(name, runs, 32, blocks) for blocks in pools]
    for gap_s in TRACE_GAPS_S if args.traces else ():
        merged = sessions(args.traces, gap_s)
        rows += [measure(f"agents, {gap_s} s apart", [merged], 1, blocks) for blocks in TRACE_BLOCKS]
    record = {"machine": describe("python -m benchmarks.serving.hit_rate"), "seeds": SEEDS, "rows": rows}
    save("serving-hit-rate", "paper", record)


if __name__ == "__main__":
    main()
