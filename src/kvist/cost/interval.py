"""A number that is not known exactly: low, best and high, and how it came to be known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tag = Literal["exact", "measured", "assumed"]
"""``exact`` follows from a file or a definition, ``measured`` was seen on a machine, ``assumed`` is experience."""

_WEIGHT = {"exact": 0, "measured": 1, "assumed": 2}


@dataclass(frozen=True, slots=True)
class Interval:
    """``low <= best <= high``. Sums are sums of ends: terms may all be off in the same direction."""

    low: float
    best: float
    high: float
    tag: Tag = "assumed"

    def __post_init__(self) -> None:
        assert self.low <= self.best <= self.high, f"{self.low} <= {self.best} <= {self.high}"

    @staticmethod
    def exactly(value: float, tag: Tag = "exact") -> Interval:
        """A number without doubt."""
        return Interval(value, value, value, tag)

    def __add__(self, other: Interval) -> Interval:
        tag = max(self.tag, other.tag, key=_WEIGHT.__getitem__)
        return Interval(self.low + other.low, self.best + other.best, self.high + other.high, tag)

    def times(self, factor: float) -> Interval:
        """Scaled by a factor >= 0."""
        return Interval(self.low * factor, self.best * factor, self.high * factor, self.tag)
