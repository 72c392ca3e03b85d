"""A number that is not known exactly: low, best and high, and how it came to be known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

Tag = Literal["exact", "measured", "assumed"]
"""``exact`` follows from a file or a definition, ``measured`` was seen on a machine, ``assumed`` is experience."""

_ORDER: Final[tuple[Tag, ...]] = ("exact", "measured", "assumed")


def loosest(tags: Iterable[Tag]) -> Tag:
    """The least certain of some tags; ``exact`` when there are none."""
    return max(tags, key=_ORDER.index, default="exact")


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
        tag = loosest((self.tag, other.tag))
        return Interval(self.low + other.low, self.best + other.best, self.high + other.high, tag)

    def times(self, factor: float) -> Interval:
        """Scaled by a factor >= 0."""
        return Interval(self.low * factor, self.best * factor, self.high * factor, self.tag)
