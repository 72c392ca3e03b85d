"""The largest count that still fits, for a test that only ever turns from yes to no."""

from __future__ import annotations

from collections.abc import Callable


def most(fits: Callable[[int], bool], limit: int) -> int:
    """Largest n in ``[0, limit]`` with ``fits(n)``; 0 needs no test."""
    low, high = 0, max(limit, 0)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
