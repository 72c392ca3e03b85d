"""Hits seen from outside: a prompt that answers sooner than its length takes was not computed whole.

TTFT of prompts known to be cold is a line over their length (Theil-Sen: medians, so that a stray measurement does not
bend it). What a request lacks on that line, in tokens, is what it found. Only requests that were alone in the server
until their first token are judged: TTFT of others holds waiting, and a hit that waited looks cold. Where the line
cannot be drawn, or the run does not keep to it, nothing is inferred and the reason is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil
from statistics import median
from typing import Final

from kvist.bench.record import Record

COLD: Final = 0.02
"""A prompt is cold when at most this share of it was known before,"""
COLD_TOKENS: Final = 2
"""or this many tokens: a BOS, and one that two prompts share by chance."""
ALONE: Final = 4
"""So many requests must have been alone,"""
ALONE_SHARE: Final = 0.5
"""and this share of all that were answered: fewer say nothing about the rest."""
ENOUGH: Final = 6
"""A line needs this many cold prompts: fewer grow by chance too often."""
SPREAD: Final = 1.5
"""The longest cold prompt must be this much longer than the shortest."""
LONGER: Final = 1.2
"""Of two cold prompts, one of which is this much longer,"""
GROWS: Final = 0.85
"""the longer must take longer in this share of pairs."""
NOISE: Final = 0.2
"""Nine of ten cold prompts lie this close to the line, as a share of a typical prompt."""
SANE: Final = 1.25
"""Cold prompts of the run may be this much slower or faster than the line says."""
OUTSIDE: Final = 0.1
"""This share of requests may take longer than cold, or less than nothing."""
POINTS: Final = 300
"""More points than these are thinned out."""


@dataclass(frozen=True, slots=True)
class Fit:
    """``ttft = overhead_s + seconds_per_token * computed tokens``, or ``why`` there is none.

    ``error_tokens``: nine of ten cold prompts are not farther from the line.
    """

    seconds_per_token: float = 0.0
    overhead_s: float = 0.0
    error_tokens: float = 0.0
    points: int = 0
    source: str = ""
    why: str = ""

    @property
    def usable(self) -> bool:
        """Whether anything can be inferred."""
        return not self.why

    def cold_s(self, prompt_tokens: int) -> float:
        """TTFT of a prompt of which nothing is known."""
        return self.overhead_s + self.seconds_per_token * prompt_tokens

    def computed_tokens(self, ttft_s: float) -> float:
        """Prompt tokens that take so long; below 0 for less than the overhead."""
        return (ttft_s - self.overhead_s) / self.seconds_per_token

    def cached_tokens(self, record: Record) -> float | None:
        """Prompt tokens that were not computed, judged by TTFT; within [0, prompt]. None where it cannot be judged."""
        if not self.usable or not record.alone or record.ttft_s is None:
            return None
        return min(max(record.prompt_tokens - self.computed_tokens(record.ttft_s), 0.0), float(record.prompt_tokens))


Point = tuple[int, float]


def fit(records: Sequence[Record], calibration: Sequence[Record]) -> Fit:
    """The line through the run's own cold prompts if their lengths differ, else through the calibration's."""
    answered = [r for r in records if r.ok]
    judged = [r for r in answered if r.alone]
    if len(answered) < ALONE:
        return Fit(why=f"{len(answered)} requests were answered, it takes {ALONE}")
    if len(judged) < max(ALONE, ALONE_SHARE * len(answered)):
        why = f"{len(judged)} of {len(answered)} requests were alone in the server until their first token"
        return Fit(why=f"{why}: TTFT of the others holds waiting (--concurrency 1)")
    own = _points([r for r in judged if _is_cold(r)])
    typical = median(r.prompt_tokens for r in judged)
    if len(own) >= ENOUGH and _spread(own) >= SPREAD:
        line = _line(own, "cold prompts of the run", typical)
    else:
        line = _by_calibration(own, calibration, typical)
    return _kept_to(line, judged) if line.usable else line


def _by_calibration(own: Sequence[Point], calibration: Sequence[Record], typical: float) -> Fit:
    answered = [r for r in calibration if r.ok]
    cold = [r for r in answered if _is_cold(r)]
    if len(cold) < len(answered):
        return Fit(why="the calibration's prompts were in the cache from before (another --seed)")
    points = _points(cold)
    if len(points) < ENOUGH:
        return Fit(why=f"{len(points)} cold prompts of several lengths were measured, it takes {ENOUGH} (--calibrate)")
    if _spread(points) < SPREAD:
        return Fit(why="cold prompts all have about the same length")
    line = _line(points, "prompts sent alone before the run", typical)
    if not line.usable or not own:
        return line
    times = median(ttft_s / max(line.cold_s(n), 1e-9) for n, ttft_s in own)
    if not 1 / SANE <= times <= SANE:
        return Fit(
            why=f"cold prompts of the run took {times:.2g} times as long as before it: the server's speed changed"
        )
    return line


def _is_cold(record: Record) -> bool:
    limit = max(COLD_TOKENS, COLD * record.prompt_tokens)
    return record.optimum_tokens <= limit and (record.cached_tokens or 0) <= limit


def _points(records: Sequence[Record]) -> list[Point]:
    found = [(r.prompt_tokens, r.ttft_s) for r in records if r.ttft_s is not None and r.prompt_tokens]
    return found[:: 1 + len(found) // POINTS]


def _spread(points: Sequence[Point]) -> float:
    lengths = [n for n, _ in points]
    return max(lengths) / min(lengths)


def _line(points: Sequence[Point], source: str, typical_tokens: float) -> Fit:
    pairs = [(a, b) for a, b in combinations(sorted(points), 2) if a[0] < b[0]]
    slope = median((t2 - t1) / (n2 - n1) for (n1, t1), (n2, t2) in pairs)
    apart = [t2 > t1 for (n1, t1), (n2, t2) in pairs if n2 >= LONGER * n1]
    if slope <= 0 or sum(apart) < GROWS * len(apart):
        how = f"the longer of two was slower in {sum(apart)} of {len(apart)} pairs"
        return Fit(why=f"TTFT of cold prompts does not grow with their length: {how}")
    overhead_s = median(t - slope * n for n, t in points)
    off_tokens = sorted(abs(t - overhead_s - slope * n) / slope for n, t in points)
    error_tokens = off_tokens[ceil(0.9 * len(off_tokens)) - 1]
    if error_tokens > NOISE * typical_tokens:
        typical = f"prompts have {typical_tokens:.0f}"
        return Fit(why=f"TTFT of cold prompts scatters by {error_tokens:.0f} tokens' worth, {typical}")
    return Fit(slope, overhead_s, error_tokens, len(points), source)


def _kept_to(line: Fit, judged: Sequence[Record]) -> Fit:
    """``line``, unless too many requests took longer than a cold prompt, or less than one that is computed nowhere."""
    slower = faster = 0
    for record in judged:
        if record.ttft_s is not None:
            computed, slack = line.computed_tokens(record.ttft_s), line.error_tokens + NOISE * record.prompt_tokens
            slower += computed > record.prompt_tokens + slack
            faster += computed < -slack
    for count, than in ((slower, "longer than a cold prompt of their length"), (faster, "less than no prompt at all")):
        if count > OUTSIDE * len(judged):
            return Fit(why=f"{count} of {len(judged)} requests took {than}: TTFT shows something else")
    return line
