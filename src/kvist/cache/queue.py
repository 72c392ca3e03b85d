"""The order of eviction: a heap of nodes for each tenant, with lazy invalidation.

Stages come before priorities, so everything a lower stage can give is taken before a higher one is touched:

==========  ============================================================================================
SURPLUS     window-group blocks that no continuation near their node's end needs: tombstoned, oldest first
LEAF        leaves, cut from the tail
ENDS        window-group blocks at the end of nodes that a sequence below still holds up: tombstoned
BURIED      blocks under a run that a sequence holds (it computed duplicates): the run leaves the tree first
==========  ============================================================================================

A node has at most one entry a stage. An entry is trusted only when it comes to the front: a dead node is skipped, a
priority that changed sends it back. When a leaf that the policy spares comes to the front, ``kept.py`` says which of
those goes. Entries of two heaps compare: serials are unique. When what the policy goes by changes (``habits.py``), all
are put in order anew, at most once in as many admissions as make that cheap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from kvist.cache.evict.base import EvictPolicy, Priority
from kvist.cache.ghosts import Ghost
from kvist.cache.habits import Observer
from kvist.cache.kept import Kept, Spared
from kvist.cache.node import Node
from kvist.cache.share import Share

SURPLUS: Final = 0
LEAF: Final = 1
ENDS: Final = 2
BURIED: Final = 3
SLACK_ENTRIES: Final = 64
SORTED_PER_ADMISSION: Final = 16

Entry = tuple[int, Priority, int, Node]
"""Stage, priority when it was queued, serial of the node, node."""


class EvictQueue:
    """Which node gives up blocks next. Owner: ``Tree``, which tells it the tick (``now``). No heap is empty."""

    __slots__ = ("_bounded", "_full", "_heaps", "_kept", "_size", "_sorted_at", "now", "observer", "policy")

    def __init__(self, policy: EvictPolicy, span_tokens: int, pool_blocks: int, *, bounded: bool, full: bool) -> None:
        self.policy = policy
        self._heaps: dict[Share, list[Entry]] = {}
        self._kept = Kept(policy, LEAF)
        self.observer = Observer(span_tokens, pool_blocks)
        self._size = self._sorted_at = self.now = 0
        self._bounded = bounded
        self._full = full

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Entry]:
        return (entry for heap in self._heaps.values() for entry in heap)

    def add(self, node: Node, *, bounded: bool, full: bool) -> None:
        """Blocks of ``node`` may have become evictable: of its bounded groups, of its full groups."""
        if bounded and self._bounded:
            if not node.queued >> SURPLUS & 1:
                node.swept = 0
            self.push(node, SURPLUS)
        if full or not self._full:
            if not node.children:
                self.push(node, LEAF)
            elif self._full:
                self.push(node, BURIED)

    def push(self, node: Node, stage: int) -> None:
        """Queue for one stage, once. Roots have nothing to give."""
        if node.parent is None:
            return
        if not node.queued >> stage & 1:
            node.queued |= 1 << stage
            heap = self._heaps.setdefault(node.share, [])
            heappush(heap, (stage, self.policy.priority(node, self._kept.habits), node.serial, node))
            self._size += 1
        if stage == LEAF:
            self._kept.push(node, self.now, self._size)

    def front(self, share: Share) -> Entry | None:
        """What a tenant would give next; it stays in the queue. None when it has nothing queued."""
        heap = self._heaps.get(share)
        while heap:
            stage, priority, serial, node = heap[0]
            if node.alive:
                now = self.policy.priority(node, self._kept.habits)
                if now <= priority:
                    spared = self._spared(share, heap[0])
                    return (LEAF, *spared) if spared else heap[0]
                heapreplace(heap, (stage, now, serial, node))
            else:
                self._drop(share, heap)
        return None

    def pop(self, share: Share) -> tuple[int, Node]:
        """Take out what ``front`` showed: its stage and node."""
        spared = self._spared(share, self._heaps[share][0])
        if spared:
            self._kept.pop(share)
            return LEAF, spared[2]
        stage, _, _, node = self._drop(share, self._heaps[share])
        node.queued &= ~(1 << stage)
        return stage, node

    def _spared(self, share: Share, first: Entry) -> Spared | None:
        """Which of the spared leaves goes, when even the front of the queue is one. Its entry in the queue stays."""
        if first[0] != LEAF or self.policy.spared(first[3], self.now, self._kept.habits) is None:
            return None
        return self._kept.front(share, self.now)

    @property
    def apart(self) -> bool:
        """Whether new runs behind a used one are to be nodes of their own: they go before it."""
        return self.policy.learns and self._kept.habits.fresh_first[1]

    def learn(self, nodes: Sequence[Node], tokens: int, ghost: Ghost | None, written_blocks: int) -> None:
        """Of an admission that is about to count as a use, if the policy cares (``Observer.admit``)."""
        if self.policy.learns:
            self.observer.admit(nodes, tokens, ghost, self.now + 1, written_blocks)
            self._settle()

    def _settle(self) -> None:
        seen = self.observer.admissions - self._sorted_at
        habits = self.observer.habits()
        if habits == self._kept.habits or seen * SORTED_PER_ADMISSION < self._size:
            return
        self._sorted_at = self.observer.admissions
        self._kept.start_over(habits)
        for heap in self._heaps.values():
            heap[:] = [(s, self.policy.priority(node, habits), serial, node) for s, _, serial, node in heap]
            heapify(heap)
            for stage, _, _, node in heap:
                if stage == LEAF and node.alive:
                    self._kept.push(node, self.now, self._size)

    def compact(self, nodes: int) -> None:
        """Forget dead nodes once they outnumber what ``nodes`` living ones can fill."""
        if self._size > 4 * nodes + SLACK_ENTRIES:
            alive = {share: [e for e in heap if e[3].alive] for share, heap in self._heaps.items()}
            self._heaps = {share: heap for share, heap in alive.items() if heap}
            for heap in self._heaps.values():
                heapify(heap)
            self._size = sum(map(len, self._heaps.values()))

    def _drop(self, share: Share, heap: list[Entry]) -> Entry:
        self._size -= 1
        entry = heappop(heap)
        if not heap:
            del self._heaps[share]
        return entry
