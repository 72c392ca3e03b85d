"""How many different blocks were used since some tick: what least recently used would have to hold to still have what
was last used then (the working set, Denning, CACM 1968), whatever the policy in force holds.

Blocks that are written count in full, be they new or computed again. Those that are used again count by the part of the
time ``since`` usually asks about that they waited: what is used five times within it counts five fifths.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from kvist.cache.node import Node

TIMES: Final = 2048
"""Ticks remembered. Beyond it every other is forgotten: old ones lie further and further apart."""


class Turnover:
    """A running sum of used blocks and its value at past ticks. Owner: ``Observer``."""

    __slots__ = ("_sums", "_ticks", "_total", "_written")

    def __init__(self) -> None:
        self._ticks: list[int] = []
        self._sums: list[float] = []
        self._total = 0.0
        self._written = 0

    def use(self, nodes: Sequence[Node], tokens: int, written_blocks: int, now: int, usual: float) -> None:
        """At tick ``now`` the first ``tokens`` of a path are used; ``written_blocks`` were written so far, in all.

        ``usual``: how many ticks ``since`` looks back, 0 if that is not known.
        """
        self._total += written_blocks - self._written
        self._written = written_blocks
        self._ticks.append(now)
        self._sums.append(self._total)
        for node in nodes:
            # Of the last node perhaps only the beginning.
            used = max(0.0, min(1.0, (tokens - node.start) / max(1, node.end - node.start)))
            seldom = min(1.0, (now - node.last_use) / usual) if usual else 1.0
            self._total += used * seldom * (sum(map(len, node.blocks)) - node.holes)
        if len(self._ticks) > TIMES:
            del self._ticks[1::2], self._sums[1::2]

    def since(self, tick: int) -> float:
        """Different blocks used by the last admission up to ``tick`` and those after it, but for the latest."""
        place = max(0, bisect_right(self._ticks, tick) - 1)
        return self._sums[-1] - self._sums[place]
