"""Thousands of requests through a small pool and a slow host tier: no answer may differ from the one without a cache.

    python -m benchmarks.tiers.soak --requests 5000

A real HTTP server over a tiny random model: a pool of 64 blocks, behind it a ``ram`` tier of four times as much whose
reads and writes come 0 to 20 ms late. 64 groups of prompts, each with a marker of its own, come in bursts that share
their beginnings to a whole block, to a part of one, or wholly. Half of the requests run with ``--tier-write through``,
half with ``evict``. Every greedy answer is compared with an engine's that keeps nothing, and searched for other groups'
markers. Exit code 1 when one differs, when one holds a foreign marker, when blocks are left over, or when one of the
kinds of hit did not happen: then the run proves nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.machine import Others, describe, save
from benchmarks.serving.kit import Client, completion
from benchmarks.tiers import soaked

CONCURRENCY = 12
MOST_LATE_S = 0.02
WRITES = ("through", "evict")
NEAR = 16
KERNELS_EVERY = 50
"""One answer in so many is compared with the reference kernels' too: they take ten times as long."""

NEEDED = ("pool_hit", "host_restore", "partial_hit_during_restore", "evict_and_restore")
"""Kinds of hit without which a run fails."""

Tick = Callable[[], None]


@dataclass
class Found:
    """What came of a run. ``different``: the answers that are not the reference's (the first of them, as a sample)."""

    requests: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    different: int = 0
    foreign: int = 0
    refused: int = 0
    kernels: int = 0
    sample: list[dict[str, Any]] = field(default_factory=list)
    left: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def faults(self) -> list[str]:
        """Why the run failed; empty when it did not."""
        out = [f"{n} answers {what}" for n, what in (
            (self.different, "differ from the reference"), (self.foreign, "hold another group's marker"),
            (self.refused, "are no answers"), (self.kernels, "without a cache differ from the reference kernels'"),
        ) if n]  # fmt: skip
        out += [f"no {kind.replace('_', ' ')} happened" for kind in NEEDED if not self.kinds[kind]]
        return out + [f"{n:g} {what} left over" for what, n in self.left.items() if n]


def workload(n: int, seed: int) -> Iterator[tuple[int, soaked.Prompt, int]]:
    """Group, prompt and tokens to draw. Bursts of one group: most of a dozen that changes slowly, some of any.

    The dozen's stems are more than the pool holds and less than the tier does.
    """
    draw, marks = random.Random(seed), soaked.markers(seed)
    stems = [_stem(mark, random.Random(f"{seed} {i}")) for i, mark in enumerate(marks)]
    made = bursts = 0
    while made < n:
        bursts += 1
        near = (bursts // 12 + draw.randrange(NEAR)) % soaked.GROUPS
        group = near if draw.random() < 0.8 else draw.randrange(soaked.GROUPS)
        for _ in range(min(n - made, draw.randrange(1, 4))):
            made += 1
            kind = draw.random()
            end = soaked.STEM_TOKENS if kind < 0.5 else draw.randrange(soaked.B + 1, soaked.STEM_TOKENS)
            tail = tuple(draw.randrange(3, soaked.VOCAB) for _ in range(draw.randrange(1, 12)))
            yield group, (stems[group][:end] + (tail if kind < 0.9 else ())), draw.randrange(4, 13)


def _stem(mark: soaked.Prompt, draw: random.Random) -> soaked.Prompt:
    """The marker first, and again and again; then two blocks that stand in every group's stem at this place."""
    words = itertools.chain.from_iterable((*mark, draw.randrange(3, soaked.VOCAB)) for _ in range(soaked.STEM_TOKENS))
    own = tuple(itertools.islice(words, soaked.STEM_TOKENS - 2 * soaked.B))
    return own + tuple(3 + i * i % (soaked.VOCAB - 3) for i in range(2 * soaked.B))


async def drive(port: int, work: list[tuple[int, soaked.Prompt, int]], found: Found, tick: Tick) -> list[Any]:
    """All requests, twelve at a time; their answers, None where there is none."""
    client, answers = Client(port), [None] * len(work)
    left = iter(range(len(work)))

    async def one() -> None:
        for i in left:
            _, prompt, n_tokens = work[i]
            reply = await client.post("/v1/completions", completion(list(prompt), n_tokens, return_token_ids=True))
            if reply.status == 200:
                answers[i] = tuple(reply.token_ids())
                told = reply.usage["prompt_tokens_details"]["cached_tokens_by_tier"]
                found.kinds["pool_hit"] += told["pool"] > 0 and not told["ram"]
                found.kinds["partial_hit"] += told["pool"] % soaked.B > 0
                found.kinds["host_restore"] += told["ram"] > 0
                found.kinds["miss"] += not any(told.values())
            tick()

    await asyncio.gather(*[one() for _ in range(CONCURRENCY)])
    return answers


def compare(
    work: list[tuple[int, soaked.Prompt, int]], answers: list[Any], found: Found, seed: int, tick: Tick
) -> None:
    """With an engine that keeps nothing, token by token; and for markers of other groups."""
    plain, kernels, marks = soaked.Plain("best"), soaked.Plain("reference"), soaked.markers(seed)
    for i, ((group, prompt, n_tokens), got) in enumerate(zip(work, answers, strict=True)):
        want = plain.answer(prompt, n_tokens)
        if i % KERNELS_EVERY == 0 and kernels.answer(prompt, n_tokens) != want:
            found.kernels += 1
        if got is None:
            found.refused += 1
        elif got != want:
            found.different += 1
            if len(found.sample) < 10:
                found.sample.append({"group": group, "prompt": list(prompt), "got": list(got), "want": list(want)})
        runs = set(zip(*(list(got or ())[i:] for i in range(soaked.MARKER_TOKENS)), strict=False))
        found.foreign += bool(runs & set(marks) - {marks[group]} - _runs(want))
        tick()


def _runs(tokens: soaked.Prompt) -> set[soaked.Prompt]:
    return set(zip(*(tokens[i:] for i in range(soaked.MARKER_TOKENS)), strict=False))


def scrape(port: int) -> dict[str, float]:
    """Every sample of ``/metrics`` that is about tiers or the pool."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        lines = [line.rpartition(" ") for line in answer.read().decode().splitlines() if not line.startswith("#")]
    kept = ("kvist_tier", "kvist_cached_tokens", "kvist_kv_blocks", "kvist_preemptions", "kvist_prompt_tokens")
    return {name: float(value) for name, _, value in lines if name.startswith(kept)}


def play(requests: int, write: str, *, seed: int = 44, tier: Any = None, tick: Tick = lambda: None) -> Found:
    """One server from start to end. ``tier``: instead of the slow one in memory. ``tick`` comes twice a request."""
    found, work = Found(requests), list(workload(requests, seed))
    tier = tier or soaked.slow_ram(soaked.block_bytes(), seed, MOST_LATE_S)
    served = soaked.served(tier, write)
    watch = soaked.Watch(served.engine)
    start = time.perf_counter()
    with soaked.serving(served) as port:
        answers = asyncio.run(drive(port, work, found, tick))
        found.seconds = time.perf_counter() - start
        served.places.flush(30)
        found.metrics = scrape(port)
    watch.close()
    found.kinds += watch.counts
    scheduler, staging = served.engine.scheduler, served.engine.executor._mover._writing._staging
    scheduler.cache.check()
    found.left = {
        "live blocks": scheduler.cache.live_blocks, "loads": len(scheduler.restores._loads),
        "questions": len(scheduler.restores._questions), "staging slots": staging.slots - staging.free_slots,
    }  # fmt: skip
    compare(work, answers, found, seed, tick)
    return found


def table(found: dict[str, Found]) -> Table:
    out = Table(title="a pool of 64 blocks, a host tier of 256, copies 0 to 20 ms late", title_justify="left")
    for head in ("", *found):
        out.add_column(head, justify="left" if not head else "right")
    kinds = sorted({kind for f in found.values() for kind in f.kinds})
    rows = [(kind.replace("_", " "), [str(f.kinds[kind]) for f in found.values()]) for kind in kinds]
    rows += [(what, [str(getattr(f, what)) for f in found.values()]) for what in ("different", "foreign", "refused")]
    rows += [("seconds", [f"{f.seconds:.0f}" for f in found.values()])]
    for name, cells in rows:
        out.add_row(name, *cells)
    return out


def main(argv: list[str] | None = None) -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--requests", type=int, default=5000)
    ap.add_argument("--seed", type=int, default=44)
    given = ap.parse_args(argv)
    import torch

    torch.set_num_threads(1)  # tiny products: two threads would only wait for each other
    console, others = Console(stderr=True), Others()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    found = {}
    with Progress(*columns, console=console, transient=True) as bar:
        for write, n in zip(WRITES, (given.requests - given.requests // 2, given.requests // 2), strict=True):
            task = bar.add_task(f"write {write}: asked, then compared", total=2 * n)
            found[write] = play(n, write, seed=given.seed + len(found), tick=lambda task=task: bar.advance(task))
    machine = {**describe("python -m benchmarks.tiers.soak"), "other_processes_cpu_share": others.share()}
    console.print(table(found))
    pieces = [{"write": write, **vars(f), "kinds": dict(f.kinds), "faults": f.faults()} for write, f in found.items()]
    record = {"machine": machine, "model": "tiny llama, random weights", **vars(given), "pieces": pieces}
    print(f"written to {save('tier-soak', 'tiny', record)}")
    faults = [f"write {write}: {fault}" for write, f in found.items() for fault in f.faults()]
    for fault in faults:
        console.print(f"error: {fault}", style="red", highlight=False)
    raise SystemExit(bool(faults))


if __name__ == "__main__":
    main()
