"""What admissions teach about how runs come back, for policies that want to know (``evict/base.py``, ``Habits``).

Looked at once per admission, at the end of what it has in common with what is cached or was (``Ghosts``): is it the
first time that this run is asked for again, and if not, did about as much time pass as the time before? Times count by
their length, so a beginning that every prompt has, back within a tick or two, says next to nothing.

Runs that come back in turns are worth an order of their own only where least recently used would lose them, which no
policy but itself can watch: counted are the different blocks used while a run waited (``Turnover``). As many as the
pool has, and it would be gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvist.cache.evict.base import Habits
from kvist.cache.ghosts import Ghost
from kvist.cache.node import TOKEN_BYTES, Node
from kvist.cache.turnover import Turnover

START: Final = Habits(in_turn=True, fresh_first=(True, True), usual_gap=0)
"""Before anything is known: runs come back in turns, and what was never asked for again goes first."""

REGULAR: Final = 0.6
"""Waits are regular when so much of the time is spent in waits within a factor of 1.5 of the one before."""
FRESH: Final = 0.4
"""New runs are not worth keeping when fewer of them are ever asked for again."""
USUAL_TIMES: Final = 8
"""Runs wait an eighth of ``usual_gap`` on average: hardly any waits for longer than all of it."""
SHORT: Final = 0.95
ENOUGH: Final = 0.93
"""The pool is short from where so much of it is used during a wait, until it is less: just before any is lost."""
MOST_POOLS: Final = 1.5
"""What counts for one wait at most, so that one long wait is forgotten soon."""
RECENT_WAITS: Final = 16
RECENT_RUNS: Final = 64
"""Memory: averages are over about so many waits, shares over about so many new runs."""


class Observer:
    """Averages behind ``Habits``. Owner: ``EvictQueue``."""

    __slots__ = (
        "_again", "_last_first", "_mean", "_need", "_new", "_pool_blocks", "_regular", "_seen", "_short",
        "_span_tokens", "_turnover", "_weight", "admissions",
    )  # fmt: skip

    def __init__(self, span_tokens: int, pool_blocks: int) -> None:
        self._span_tokens = span_tokens
        self._pool_blocks = pool_blocks
        self._turnover = Turnover()
        self._need, self._short = 1.0, True
        self._new = [0.0, 0.0]
        self._again = [0.0, 0.0]
        self._regular, self._weight = 1.0, 4.0
        self._mean, self._seen = 0.0, 0
        self._last_first = 0
        self.admissions = 0

    def admit(self, nodes: Sequence[Node], tokens: int, ghost: Ghost | None, now: int, written_blocks: int) -> None:
        """At tick ``now`` the first ``tokens`` of a path are used, and what ``ghost`` remembers would have been.

        ``written_blocks`` came into the cache so far.
        """
        self.admissions += 1
        self._turnover.use(nodes, tokens, written_blocks, now, self._mean)
        span = self._span_tokens
        if ghost:
            if ghost.reach:
                self._wait(ghost.gap, now, ghost.last_use)
            else:
                self._first(ghost.behind, now, ghost.last_use)
        elif nodes:
            fresh = [n for n in nodes[-2:] if not n.reach or min(n.end, tokens) - max(n.reach, n.start) >= span]
            if fresh:
                # What lies behind the used part of a node is behind a used run, whatever the node itself was.
                self._first(fresh[-1].behind or fresh[-1].reach > 0, now, fresh[-1].last_use)
            else:
                self._wait(nodes[-1].gap, now, nodes[-1].last_use)
        kind = bool(ghost or tokens >= span)
        self._new[kind] += 1
        if self._new[kind] > RECENT_RUNS:
            self._new[kind] /= 2
            self._again[kind] /= 2

    def habits(self) -> Habits:
        """What is to be expected. Changes rarely: ``usual_gap`` is a power of two."""
        usual = int(USUAL_TIMES * self._mean)
        return Habits(
            in_turn=self._regular >= REGULAR and self._short,
            fresh_first=(self._again[0] < FRESH * self._new[0], self._again[1] < FRESH * self._new[1]),
            usual_gap=1 << usual.bit_length() - 1 if usual else 0,
        )

    def _first(self, behind: bool, now: int, last_use: int) -> None:
        """A run was used for the first time since it was made: after as long as the last of those waited?"""
        self._again[behind] += 1
        self._wait(self._last_first, now, last_use)
        self._last_first = now - last_use

    def _wait(self, before: int, now: int, last_use: int) -> None:
        """A run was not used for ``before`` ticks, then used, then not until ``now``."""
        if not before:
            return
        gap = now - last_use
        weight = min(1.0, gap / self._mean) if self._mean else 1.0
        near = 2 * before <= 3 * gap and 2 * gap <= 3 * before
        self._weight = min(RECENT_WAITS, self._weight + weight)
        self._regular += (near - self._regular) * weight / self._weight
        if near and 2 * gap > self._mean:
            self._room(self._turnover.since(last_use) / self._pool_blocks)
        self._seen = min(RECENT_WAITS, self._seen + 1)
        self._mean += (gap - self._mean) / self._seen

    def _room(self, pools: float) -> None:
        """Least recently used would have needed ``pools`` times the pool to still have what came back in turn.

        A greater need counts at once (what takes turns grows until it is lost, all of it), a smaller one by and by.
        """
        pools = min(pools, MOST_POOLS)
        self._need += (pools - self._need) / (1 if pools > self._need else RECENT_WAITS)
        self._short = self._need > (ENOUGH if self._short else SHORT)


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
