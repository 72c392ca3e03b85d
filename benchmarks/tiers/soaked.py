"""What the soak of tiers plays on: a real server over a tiny random model, a small pool, a slow host tier behind it."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[2] / "tests"
sys.path[:0] = [str(TESTS / part) for part in ("agree", "runtime")]

from tiny_engine import ORIGIN, ROOT, VOCAB, B, ask, engine, parts, run  # noqa: E402
from tiny_words import tiny_words  # noqa: E402

from kvist.config import CacheConfig, EngineConfig, SchedConfig, TierConfig  # noqa: E402
from kvist.server.config import ServeConfig  # noqa: E402
from kvist.server.run import Host  # noqa: E402
from kvist.server.served import Places, Served  # noqa: E402
from kvist.tier.ram import RamTier  # noqa: E402

FAMILY = "llama"
GROUPS = 64
STEM_TOKENS = 6 * B
MARKER_TOKENS = 4
POOL_BLOCKS = 64
TIER_TIMES = 4
"""The host tier holds so many pools."""

HEADER_BYTES = 512
"""More than what a record takes besides its block."""

Prompt = tuple[int, ...]


class Slow:
    """A tier whose copies, in both directions, come up to ``most_s`` late: before each there is a wait, drawn anew."""

    name = "ram"

    def __init__(self, inner: RamTier, seed: int, most_s: float) -> None:
        self.inner, self.most_s = inner, most_s
        self._draw = random.Random(seed)

    def _late(self) -> None:
        time.sleep(self._draw.random() * self.most_s)

    def get_many_into(self, ids: Any, buffers: Any, *, timeout_s: float) -> Any:
        self._late()
        return self.inner.get_many_into(ids, buffers, timeout_s=timeout_s)

    def put_many(self, records: Any, *, timeout_s: float) -> Any:
        self._late()
        return self.inner.put_many(records, timeout_s=timeout_s)

    def __getattr__(self, name: str) -> Any:
        if name == "view":
            raise AttributeError(name)
        return getattr(self.inner, name)


@dataclass
class Watch:
    """Counts, plan by plan, what no answer tells: what came together in one step. Looked at on the engine's thread."""

    engine: Any
    counts: Counter[str] = field(default_factory=Counter)
    evicted: int = 0

    def __post_init__(self) -> None:
        execute = self.engine.executor.execute

        def seen(plan: Any) -> Any:
            self._look(plan)
            return execute(plan)

        self.engine.executor.execute = seen

    def close(self) -> None:
        """Look no more."""
        del self.engine.executor.execute

    def _look(self, plan: Any) -> None:
        scheduler = self.engine.scheduler
        evicted, before = scheduler.cache.counters.evicted_blocks, self.evicted
        self.evicted = evicted
        self.counts["evict_and_restore"] += bool(plan.loads) and evicted > before
        leaving = {saved.block for save in plan.saves for saved in save.blocks}
        self.counts["block_saved_and_restored_into"] += any(leaving & set(load.blocks) for load in plan.loads)
        loading = [seq.request.prompt[:MARKER_TOKENS] for seq in scheduler.running if seq.load is not None]
        copied = {copy.dst for copy in plan.copies}
        for change in plan.tables if loading and copied else ():
            found = scheduler.sequence(change.seq)
            if found is not None and copied & set(change.append) and found.output_tokens == 0:
                self.counts["partial_hit_during_restore"] += 1
                self.counts["partial_hit_during_restore_of_its_group"] += (
                    found.request.prompt[:MARKER_TOKENS] in loading
                )


def markers(seed: int) -> list[Prompt]:
    """A run of tokens for each group that no other has."""
    draw = random.Random(f"markers {seed}")
    found: dict[Prompt, None] = {}
    while len(found) < GROUPS:
        found[tuple(draw.randrange(3, VOCAB) for _ in range(MARKER_TOKENS))] = None
    return list(found)


def slow_ram(block_bytes: int, seed: int, most_s: float) -> Slow:
    """Four times the pool."""
    return Slow(RamTier(TIER_TIMES * POOL_BLOCKS * (block_bytes + HEADER_BYTES)), seed, most_s)


def block_bytes() -> int:
    return int(engine(FAMILY).scheduler.layout.block_bytes)


def served(tier: Any, write: str) -> Served:
    """The engine, its void memory poisoned, ready for a server."""
    made = engine(FAMILY, tiers=(tier,), blocks=POOL_BLOCKS, budget=64, sequences=10, tier_write=write)
    mover = made.executor._mover
    config = EngineConfig(
        CacheConfig(blocks=POOL_BLOCKS, block_tokens=B, format="f32"),
        SchedConfig(token_budget=64, max_sequences=10),
        TierConfig((f"ram:{TIER_TIMES}x",), when=write, load="always", min_tokens=1),
    )

    def close(timeout_s: float) -> bool:
        written = bool(mover.flush(timeout_s))
        made.executor.close("the soak is over")
        return written

    places = Places(("ram",), ("ram",), mover.usages, mover.flush, close, (tier,), ORIGIN)
    spec, _ = parts(FAMILY)
    tokenizer = tiny_words(ROOT / "words")
    layout = made.scheduler.layout
    return Served(made, tokenizer, None, spec, layout, "tiny", int(time.time()), config=config, places=places)


@contextmanager
def serving(what: Served) -> Iterator[int]:
    """A server of this process; its port."""
    ready = threading.Event()
    config = ServeConfig(port=0, names=("tiny",), drain_s=5.0, keep_answers=False)
    host = Host(lambda progress: what, config, now=time.perf_counter, on_ready=lambda *_: ready.set())
    failures: list[BaseException] = []

    def body() -> None:
        try:
            host.run()
        except BaseException as error:
            failures.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    if not ready.wait(60) or failures:
        raise SystemExit(f"the server did not start: {failures}")
    try:
        yield int(host.address.rsplit(":", 1)[1])
    finally:
        host.stop()
        thread.join(30)
    if failures:
        raise failures[0]


class Plain:
    """One request at a time, nothing reused, no tier; ``attention`` names the kernels. Answers are remembered."""

    def __init__(self, attention: str) -> None:
        self._engine = engine(FAMILY, reuse=False, attention=attention, budget=512)
        self._known: dict[tuple[Prompt, int], Prompt] = {}

    def answer(self, prompt: Sequence[int], n_tokens: int) -> Prompt:
        key = tuple(prompt), n_tokens
        if key not in self._known:
            self._known[key] = run(self._engine, [ask("r", prompt, n_tokens)])["r", 0].tokens
        return self._known[key]
