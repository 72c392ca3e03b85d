"""Hits seen from outside: a prompt that answers sooner than its length takes was not computed whole.

TTFT of prompts known to be cold is a line over their length (Theil-Sen: medians, so that a stray measurement does not
bend it). What a request lacks on that line, in tokens, is what it found. Where the line cannot be drawn, or waiting
drowns it, nothing is inferred and the reason is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Final

from kvist.bench.record import Record

COLD: Final = 0.02
"""A prompt is cold when at most this share of it was known before."""
SPREAD: Final = 1.5
"""The longest cold prompt must be this much longer than the shortest."""
SANE: Final = 1.5
"""Cold prompts of the run may be this much slower than the line says."""
NOISE: Final = 0.25
"""The line's error may be this share of a prompt."""
POINTS: Final = 300
"""More points than these are thinned out."""
_MAD: Final = 1.4826


@dataclass(frozen=True, slots=True)
class Fit:
    """``ttft = overhead_s + seconds_per_token * computed tokens``, or ``why`` there is none."""

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

    def cached_tokens(self, record: Record) -> float:
        """Prompt tokens that were not computed, judged by TTFT; within [0, prompt]."""
        if record.ttft_s is None:
            return 0.0
        computed = (record.ttft_s - self.overhead_s) / self.seconds_per_token
        return min(max(record.prompt_tokens - computed, 0.0), float(record.prompt_tokens))


Point = tuple[int, float]


def fit(records: Sequence[Record], calibration: Sequence[Record]) -> Fit:
    """The line through the run's own cold prompts if their lengths differ, else through the calibration's."""
    own = _points([r for r in records if _is_cold(r)])
    if len(own) >= 4 and _spread(own) >= SPREAD:
        return _line(own, "cold prompts of the run", records)
    alone = _points(calibration)
    if len(alone) < 3 or _spread(alone) < SPREAD:
        return Fit(why="cold prompts all have about the same length (--calibrate 4 sends some of other lengths)")
    line = _line(alone, "prompts sent alone before the run", records)
    if not line.usable or not own:
        return line
    slower = median(ttft_s / max(line.cold_s(n), 1e-9) for n, ttft_s in own)
    if not 1 / SANE <= slower <= SANE:
        return Fit(why=f"waiting hides it: cold prompts of the run took {slower:.2g} times what they take alone")
    return line


def _is_cold(record: Record) -> bool:
    limit = COLD * record.prompt_tokens
    return record.optimum_tokens <= limit and (record.cached_tokens or 0) <= limit


def _points(records: Sequence[Record]) -> list[Point]:
    found = [(r.prompt_tokens, r.ttft_s) for r in records if r.ok and r.ttft_s is not None and r.prompt_tokens]
    return found[:: 1 + len(found) // POINTS]


def _spread(points: Sequence[Point]) -> float:
    lengths = [n for n, _ in points]
    return max(lengths) / min(lengths) if lengths else 0.0


def _line(points: Sequence[Point], source: str, records: Sequence[Record]) -> Fit:
    slopes = [(t2 - t1) / (n2 - n1) for (n1, t1), (n2, t2) in combinations(points, 2) if n1 != n2]
    slope = median(slopes)
    if slope <= 0:
        return Fit(why="TTFT of cold prompts does not grow with their length")
    overhead_s = median(t - slope * n for n, t in points)
    error_tokens = _MAD * median(abs(t - overhead_s - slope * n) for n, t in points) / slope
    typical = median([r.prompt_tokens for r in records if r.ok] or [n for n, _ in points])
    if error_tokens > NOISE * typical:
        return Fit(why=f"TTFT of cold prompts scatters by {error_tokens:.0f} tokens' worth, prompts have {typical:.0f}")
    return Fit(slope, overhead_s, error_tokens, len(points), source)
