"""A prefix that left the pool: load it from a tier, compute it again, or never have kept it. In seconds, for one user.

Bytes are what the engine holds at rest (blocks, windows' last rows, states) on the fullest rank; every rank loads its
own over its own link. Loading grows with the bytes, recomputing faster than the tokens: so long prefixes may be worth
loading where short ones are not.

``rest_tokens`` are computed behind the prefix in any case. They share a step with what is recomputed, so that a short
prefix may come for free; 0 prices the prefix alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from typing import Final, Literal

from kvist.cost.interval import Interval
from kvist.errors import BadValue
from kvist.planner.decide.prompt import PromptClock, longest_asked
from kvist.planner.decide.tiers import Tier
from kvist.planner.decide.turns import first_yes, last_no
from kvist.planner.plan import request_bytes_of
from kvist.planner.setup import Load, Setup
from kvist.spec.format import KVFormat
from kvist.units import format_bytes, format_seconds

Choice = Literal["load", "recompute"]

_PER_OCTAVE: Final = 8
_WAVES: Final = 32
"""Blocks in a row that must load before later ones are trusted to."""


@dataclass(frozen=True, slots=True)
class Decision:
    """``n_tokens`` of one sequence: ``load_s`` from ``tier`` in ``kv_format`` against ``recompute_s``.

    ``factor`` is how many times faster the choice is, best guess; ``sure`` says that it holds at every end. Storing
    takes ``store_s`` once: dropping the prefix is better unless it is asked for again with a chance (or expected
    count) above ``keep_from_reuse``; None: dropping is always better, because recomputing beats loading.
    """

    tier: Tier
    kv_format: KVFormat
    n_tokens: int
    bytes: int
    load_s: Interval
    store_s: Interval
    recompute_s: Interval
    choice: Choice
    factor: float
    sure: bool
    keep_from_reuse: float | None
    how: str


@dataclass(frozen=True, slots=True)
class Crossover:
    """``tokens``: the shortest prefix from which loading wins and goes on winning, up to ``limit_tokens``.

    1: always. None: not even at the limit. ``recompute_from``: below it loading wins as well (a short prompt takes a
    whole step to recompute); None where recomputing never wins.
    """

    tier: Tier
    kv_format: KVFormat
    tokens: int | None
    recompute_from: int | None
    limit_tokens: int
    how: str


def resting_bytes(setup: Setup, n_tokens: int, kv_format: KVFormat | None = None) -> int:
    """Bytes on the fullest rank of a sequence of ``n_tokens`` that no step is working on, by the engine's rules."""
    if n_tokens < 1:
        raise BadValue("tokens", n_tokens, "a count >= 1")
    still = replace(setup, kv_format=kv_format or setup.kv_format, batched_tokens=1)
    return request_bytes_of(still, Load(n_tokens, 0))[0]


def decide(
    setup: Setup, n_tokens: int, tier: Tier, kv_format: KVFormat | None = None, *, rest_tokens: int = 0
) -> Decision:
    """Load or recompute ``n_tokens``. ``kv_format``: what the tier holds, the pool's own when None.

    Raises ``BadValue`` for a count below 1, and what the engine refuses.
    """
    return _decide(setup, _Again(PromptClock.of(setup), rest_tokens), n_tokens, tier, kv_format or setup.kv_format)


def table(
    setup: Setup, n_tokens: int, tiers: Iterable[Tier], formats: Iterable[KVFormat] = (), *, rest_tokens: int = 0
) -> tuple[Decision, ...]:
    """A decision for every tier, in the pool's format and then in the others."""
    again, wanted = _Again(PromptClock.of(setup), rest_tokens), (setup.kv_format, *formats)
    return tuple(_decide(setup, again, n_tokens, tier, fmt) for tier in tiers for fmt in wanted)


@dataclass(frozen=True, slots=True)
class _Again:
    """Seconds that a recomputed prefix adds to the ``rest_tokens`` behind it."""

    clock: PromptClock
    rest_tokens: int

    def __post_init__(self) -> None:
        if self.rest_tokens < 0:
            raise BadValue("rest_tokens", self.rest_tokens, "a count >= 0")

    def seconds(self, n_tokens: int) -> Interval:
        whole = self.clock.seconds(n_tokens + self.rest_tokens)
        if not self.rest_tokens:
            return whole
        rest = self.clock.timing.prefill(n_tokens + self.rest_tokens, n_tokens, 0, n_tokens)
        ends = sorted((whole.low - rest.low, whole.best - rest.best, whole.high - rest.high))
        best = max(0.0, whole.best - rest.best)
        return Interval(min(max(0.0, ends[0]), best), best, max(best, ends[-1]), whole.tag)


def _decide(setup: Setup, clock: _Again, n_tokens: int, tier: Tier, fmt: KVFormat) -> Decision:
    held = resting_bytes(setup, n_tokens, fmt)
    moved, again = tier.seconds(held), clock.seconds(n_tokens)
    loads = moved.best < again.best
    choice: Choice = "load" if loads else "recompute"
    slow, fast = (again, moved) if loads else (moved, again)
    factor = slow.best / fast.best if fast.best else inf
    keep = moved.best / (again.best - moved.best) if loads else None
    beside = f" beside {clock.rest_tokens:,} more" if clock.rest_tokens else ""
    said = (
        f"{n_tokens:,} tokens are {format_bytes(held)} of {fmt.name} on a device: {format_seconds(moved.best)} to load "
        f"from {tier.name} at {tier.bytes_per_s.best / 1e9:.4g} GB/s, {format_seconds(again.best)} to compute "
        f"again{beside}; {_advice(choice, factor, keep)}"
    )
    sure = fast.high < slow.low
    return Decision(tier, fmt, n_tokens, held, moved, moved, again, choice, factor, sure, keep, said)


def _advice(choice: Choice, factor: float, keep: float | None) -> str:
    won = f"{choice}, {factor:.3g} times faster" if factor < inf else f"{choice}: it comes for free"
    if keep is None:
        return f"{won}, so storing it gains nothing: drop it"
    often = f"with a chance above {keep:.2%}" if keep < 1 else f"more than {keep:.3g} times"
    return f"{won}; storing it pays if it comes back {often}"


def crossover(
    setup: Setup,
    tier: Tier,
    kv_format: KVFormat | None = None,
    limit_tokens: int | None = None,
    *,
    rest_tokens: int = 0,
) -> Crossover:
    """From which prefix on loading beats recomputing, best guesses, up to the model's own context.

    Looks at eight lengths an octave, then zooms in; what is recomputed is convex over whole steps, so recomputing wins
    on one stretch of lengths if at all. Bytes grow a block at a time: the answer lies behind the last block that loses.
    """
    again, fmt = _Again(PromptClock.of(setup), rest_tokens), kv_format or setup.kv_format
    limit = limit_tokens or longest_asked(setup)

    @cache
    def held(n: int) -> int:
        return resting_bytes(setup, n, fmt)

    def loads(n: int) -> bool:
        return tier.seconds(held(n)).best < again.seconds(n).best

    points = sorted({min(limit, round(2 ** (i / _PER_OCTAVE))) for i in range(_PER_OCTAVE * limit.bit_length() + 1)})
    lost = [n for n in points if not loads(n)]
    tokens: int | None = 1
    first: int | None = None
    if lost:
        first = _first_lost(points, lost[0], loads)
        above = next((n for n in points if n > lost[-1]), None)
        if above is None:
            tokens = None
        else:
            found = last_no(loads, lost[-1], above) + 1
            tokens = _behind_waves(loads, held, found, limit)
    said = _say(_decide(setup, again, tokens or limit, tier, fmt), tokens, first, limit)
    return Crossover(tier, fmt, tokens, first, limit, said)


def _first_lost(points: list[int], lost: int, loads: Callable[[int], bool]) -> int:
    """The shortest prefix that is better recomputed, between the last point that loads and ``lost``."""
    below = max((n for n in points if n < lost), default=0)
    return first_yes(lambda n: not loads(n), below, lost)


def _behind_waves(loads: Callable[[int], bool], held: Callable[[int], int], found: int, limit: int) -> int:
    """Move ``found`` behind later blocks whose first token still loses: their bytes came at once, their seconds not."""
    passed, start, gap = 0, found, 1
    while passed < _WAVES and (following := _next_size(held, start, limit, gap)) is not None:
        gap, start = following - start, following
        if loads(start):
            passed += 1
            continue
        end = (_next_size(held, start, limit, gap) or limit + 1) - 1
        found = last_no(loads, start, end) + 1 if end > start and loads(end) else end + 1
        passed = 0
    return found


def _next_size(held: Callable[[int], int], n: int, limit: int, gap: int) -> int | None:
    """The first length above ``n`` that takes more bytes, perhaps ``gap`` tokens on; None up to ``limit``."""
    size = held(n)
    if n + gap <= limit and held(n + gap) != size and held(n + gap - 1) == size:
        return n + gap
    step = 1
    while held(min(n + step, limit)) == size:
        if n + step >= limit:
            return None
        step *= 2
    return first_yes(lambda m: held(m) != size, n + step // 2, min(n + step, limit))


def _say(at: Decision, tokens: int | None, first: int | None, limit: int) -> str:
    name, here = at.tier.name, f"{format_seconds(at.load_s.best)} against {format_seconds(at.recompute_s.best)}"
    if tokens is None:
        start = "" if first is None or first <= 1 else f" (shorter than {first:,} tokens it does)"
        return f"loading {at.kv_format.name} from {name} does not win{start}: at {limit:,} tokens {here}"
    if tokens == 1:
        return f"loading {at.kv_format.name} from {name} always wins: {here} for one token"
    start = "" if first is None or first <= 1 else f", and below {first:,}: few tokens take a whole step"
    return f"loading {at.kv_format.name} from {name} wins from {tokens:,} tokens on: {here}{start}"
