"""Where one thing gives way to another: the answer, and the searches that find it on exact numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

Test = Callable[[int], bool]

_LOOKS: Final = 32
"""Points looked at before zooming in, where a test may turn more than once."""


@dataclass(frozen=True, slots=True)
class Turn:
    """``before`` holds below ``at``, ``after`` from it on. ``at`` is None when it never turns; ``how`` says why.

    ``for_good`` is from where ``after`` never gives way again: later than ``at`` only where layers forget whole chunks.
    ``reached`` is False when ``at`` lies beyond what the model (its own context) or the search allows.
    """

    at: int | None
    unit: str
    before: str
    after: str
    how: str
    for_good: int | None = None
    reached: bool = False


def first_yes(test: Test, low: int, high: int) -> int:
    """Smallest n in ``(low, high]`` that passes, for a test that turns once; ``low`` fails and ``high`` passes."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if test(middle) else (middle, high)
    return high


def last_no(test: Test, low: int, high: int) -> int:
    """Largest n in ``[low, high)`` that fails, given that ``low`` fails and ``high`` passes.

    A test with small waves on a slope (blocks, steps) may turn several times: it is looked at in 32 places, then in 32
    places behind the last failure among them, and so on down to single counts.
    """
    while high - low > 1:
        points = sorted({low + (high - low) * i // _LOOKS for i in range(1, _LOOKS)} - {low})
        failed = [n for n in points if not test(n)]
        low = failed[-1] if failed else low
        high = min((n for n in points if n > low), default=high)
    return low
