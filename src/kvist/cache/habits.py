"""What admissions teach about how runs come back, for policies that want to know (``evict/base.py``, ``Habits``).

Looked at once per admission, at the end of what it has in common with what is cached or was (``Ghosts``): is it the
first time that this run is asked for again, and if not, did about as much time pass as the time before? Times count by
their length, so a beginning that every prompt has, back within a tick or two, says next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvist.cache.evict.base import Habits
from kvist.cache.ghosts import Ghost
from kvist.cache.node import TOKEN_BYTES, Node

START: Final = Habits(regular=True, fresh_first=(True, True), usual_gap=0)
"""Before anything is known: runs come back in turns, and what was never asked for again goes first."""

REGULAR: Final = 0.6
"""Runs come back in turns when so much of the time they wait is within a factor of 1.5 of their wait before."""
FRESH: Final = 0.4
"""New runs are not worth keeping when fewer of them are ever asked for again."""
USUAL_TIMES: Final = 8
"""Runs wait an eighth of ``usual_gap`` on average: hardly any waits for longer than all of it."""
RECENT_WAITS: Final = 16
RECENT_RUNS: Final = 64
"""Memory: averages are over about so many waits, shares over about so many new runs."""


class Observer:
    """Averages behind ``Habits``. Owner: ``EvictQueue``."""

    __slots__ = ("_again", "_last_first", "_mean", "_new", "_regular", "_seen", "_weight", "admissions")

    def __init__(self) -> None:
        self._new = [0.0, 0.0]
        self._again = [0.0, 0.0]
        self._regular, self._weight = 1.0, 4.0
        self._mean, self._seen = 0.0, 0
        self._last_first = 0
        self.admissions = 0

    def admit(self, nodes: Sequence[Node], tokens: int, ghost: Ghost | None, now: int, span_tokens: int) -> None:
        """At tick ``now`` the first ``tokens`` of a path are used, and what ``ghost`` remembers would have been."""
        self.admissions += 1
        if ghost:
            if ghost.reach:
                self._wait(ghost.gap, now - ghost.last_use)
            else:
                self._first(ghost.behind, now - ghost.last_use)
        elif nodes:
            fresh = [n for n in nodes[-2:] if not n.reach or min(n.end, tokens) - max(n.reach, n.start) >= span_tokens]
            if fresh:
                self._first(fresh[-1].behind, now - fresh[-1].last_use)
            else:
                self._wait(nodes[-1].gap, now - nodes[-1].last_use)
        kind = bool(ghost or tokens >= span_tokens)
        self._new[kind] += 1
        if self._new[kind] > RECENT_RUNS:
            self._new[kind] /= 2
            self._again[kind] /= 2

    def habits(self) -> Habits:
        """What is to be expected. Changes rarely: ``usual_gap`` is a power of two."""
        usual = int(USUAL_TIMES * self._mean)
        return Habits(
            regular=self._regular >= REGULAR,
            fresh_first=(self._again[0] < FRESH * self._new[0], self._again[1] < FRESH * self._new[1]),
            usual_gap=1 << usual.bit_length() - 1 if usual else 0,
        )

    def _first(self, behind: bool, gap: int) -> None:
        """A run was used for the first time, ``gap`` ticks after it was made: as long as the last of those waited?"""
        self._again[behind] += 1
        self._wait(self._last_first, gap)
        self._last_first = gap

    def _wait(self, before: int, gap: int) -> None:
        """A run was not used for ``before`` ticks, then used, then not for ``gap`` ticks."""
        if not before:
            return
        weight = min(1.0, gap / self._mean) if self._mean else 1.0
        near = 2 * before <= 3 * gap and 2 * gap <= 3 * before
        self._weight = min(RECENT_WAITS, self._weight + weight)
        self._regular += (near - self._regular) * weight / self._weight
        self._seen = min(RECENT_WAITS, self._seen + 1)
        self._mean += (gap - self._mean) / self._seen


def born(child: Node, parent: Node, ghost: Ghost | None, now: int) -> None:
    """A new run behind ``parent``: what is remembered of it when it was evicted, counted as used by who asks now."""
    child.behind = parent.behind or parent.hits > 0
    if ghost and (ghost.reach > child.start or not ghost.reach):
        child.gap, child.reach, child.hits = now - ghost.last_use, min(child.end, ghost.reach), 1


def parted(head: Node, node: Node, at: int) -> None:
    """A node was cut in two at position ``at``: the upper part was used as it was, the lower part if it was reached."""
    head.last_use, head.hits, head.gap, head.reach = node.last_use, node.hits, node.gap, min(node.reach, at)
    head.behind = node.behind
    if node.reach <= at:
        node.behind = head.behind or head.hits > 0
        node.hits = node.gap = node.reach = 0


def known_bytes(node: Node, n_bytes: int, ghost: Ghost | None, span_tokens: int) -> int:
    """How many of ``n_bytes`` that go on behind ``node`` are of one kind with it, or were asked for before.

    All where neither the node was ever used nor the run known; else whole spans up to where uses went.
    """
    reach = max(node.reach, ghost.reach if ghost and ghost.reach > node.end else 0)
    if not reach:
        return n_bytes
    return min(n_bytes, max(0, reach - node.end) // span_tokens * span_tokens * TOKEN_BYTES)
