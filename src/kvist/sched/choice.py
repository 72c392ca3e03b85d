"""Load or recompute: how much of what tiers have is worth loading, by the seconds that either would take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kvist.cache.cache import Probe
from kvist.sched.rates import Rates

MOST_ENDS: Final = 16
"""Ends that are weighed, where tiers alternate."""


@dataclass(slots=True)
class Choice:
    """What was decided for one sequence, and what came of it. Owner: the scheduler.

    The cache had ``base_tokens``, tiers lead to ``found_tokens``, loading was to lead to ``end_tokens`` (the base:
    everything is recomputed). ``load_s`` is what that load was to take and ``compute_s`` what computing the same
    tokens instead; None: not known. ``loaded_tokens`` and ``took_s`` are what came of it, ``reason`` why not all did.
    ``checks``: the last span is left out, to be compared. ``settled``: what came of it is known. ``passed_over`` is the
    tier that seems too slow for what it has, and the seconds in which that is computed instead; ``trial``: the one that
    is loaded from although it seems so.
    """

    base_tokens: int
    found_tokens: int
    end_tokens: int
    load_s: float = 0.0
    compute_s: float | None = None
    loaded_tokens: int = 0
    took_s: float | None = None
    reason: str = ""
    checks: bool = False
    settled: bool = False
    passed_over: tuple[int, float] | None = None
    trial: int | None = None
    reached_tokens: int = 0

    @property
    def what(self) -> str:
        """``load``, ``part`` (of what was found) or ``recompute``."""
        if self.end_tokens <= self.base_tokens:
            return "recompute"
        return "load" if self.end_tokens >= self.found_tokens or self.checks else "part"

    @property
    def regret_s(self) -> float:
        """Seconds that the other way would have saved, as far as anybody knows."""
        if self.took_s is None or self.compute_s is None:
            return 0.0
        if self.what == "recompute":
            return max(0.0, self.took_s - self.load_s)
        came = self.loaded_tokens / max(1, self.end_tokens - self.base_tokens)
        return max(0.0, self.took_s - self.compute_s * came)

    def loaded(self, tokens: int, seconds: float, reason: str) -> float:
        """What was to be loaded is there as far as it came: the regret."""
        self.loaded_tokens, self.took_s, self.reason, self.settled = tokens, seconds, reason, True
        return self.regret_s

    def computed(self, start: int, end: int, seconds: float) -> float:
        """A step of ``seconds`` computed tokens ``[start, end)``: the regret, once it is known what recomputing took.

        The whole step counts, so long the sequence waited for these tokens; what is computed again after a preemption
        does not.
        """
        if self.settled or self.what != "recompute":
            return 0.0
        news = min(end, self.found_tokens) - max(start, self.reached_tokens)
        if news > 0:
            self.took_s = (self.took_s or 0.0) + seconds * news / (min(end, self.found_tokens) - start)
            self.reached_tokens = end
        self.settled = end >= self.found_tokens
        return self.regret_s if self.settled else 0.0


def choose(
    rates: Rates,
    needed: Callable[[int], Sequence[int]],
    *,
    base: int,
    found: int,
    ends: Sequence[int],
    queued_bytes: Sequence[int],
    block_bytes: int,
    n_tiers: int,
) -> Choice:
    """The end among ``ends`` and ``base`` with which ``found`` tokens are in the cache soonest.

    ``needed(end)`` are the tiers of the blocks that a load up to ``end`` reads. Before computing was seen to take any
    time, everything is loaded.
    """
    whole = rates.compute_s(base, found)
    best = Choice(base, found, base, 0.0, whole)
    best_s = whole

    def by_tier(end: int) -> list[int]:
        tiers = needed(end)
        return [tiers.count(t) * block_bytes for t in range(n_tiers)]

    for end in ends:
        load_s = rates.load_s(by_tier(end), queued_bytes)
        rest_s = rates.compute_s(end, found)
        total_s = None if rest_s is None else load_s + rest_s
        if best_s is None or total_s is None or total_s < best_s:
            best = Choice(base, found, end, load_s, rates.compute_s(base, end))
            best_s = total_s
    if best.end_tokens < found and ends:
        everything = by_tier(found)
        if best.end_tokens == base:
            best.load_s = rates.load_s(everything, queued_bytes)
        left = [n - there for n, there in zip(everything, by_tier(best.end_tokens), strict=True)]
        _note_slow(best, rates, left, rates.compute_s(best.end_tokens, found))
    return best


def _note_slow(choice: Choice, rates: Rates, left: Sequence[int], compute_s: float | None) -> None:
    """Which tier is too slow for the bytes that are ``left`` there, even when nobody waits; and whether it is tried."""
    tier = rates.slowest(left)
    load_s = rates.load_s(left)
    if compute_s is None or load_s <= compute_s:
        return
    if rates.is_due(tier, load_s, compute_s):
        choice.end_tokens, choice.load_s, choice.trial = choice.found_tokens, choice.load_s + load_s, tier
        choice.compute_s = rates.compute_s(choice.base_tokens, choice.found_tokens)
    else:
        choice.passed_over = tier, compute_s


def turning_points(asked: Probe, tiers: Sequence[int], span: int, base: int, found: int) -> list[int]:
    """Ends worth weighing: where what follows lies in another tier than what came before, and the end itself."""
    columns = list(zip(*(_by_span(group, asked, span) for group in asked.of_groups(tiers)), strict=False))
    ends = []
    for i in range(1, len(columns)):
        end = asked.base + i * span
        if base < end < found and max(columns[i]) > max(columns[i - 1]):
            ends.append(end)
    step = max(1, len(ends) // MOST_ENDS)
    return [*ends[::step], found]


def _by_span(group: Sequence[int], asked: Probe, span: int) -> list[int]:
    """The slowest tier of one group's blocks in each span."""
    n_spans = -(-(asked.end - asked.base) // span)
    width = len(group) // n_spans if n_spans else 1
    return [max(group[i * width : (i + 1) * width]) for i in range(n_spans)]
