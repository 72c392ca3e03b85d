"""Leaves that the policy spares for now, beside the evict queue: which goes first when nothing else is left.

Entries are hints: each node here has its own entry in the queue, so what is dropped here is not lost. One is trusted
when the policy, asked again, gives the same answer; every use of a run ends with its blocks becoming idle, which enters
it anew.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

from kvist.cache.evict.base import EvictPolicy, Habits, Priority
from kvist.cache.habits import START
from kvist.cache.node import Node
from kvist.cache.share import Share

SLACK_ENTRIES: Final = 64

Spared = tuple[Priority, int, Node]
"""What the policy said of the node, its serial, the node."""


class Kept:
    """A heap of spared leaves for each tenant. Owner: ``EvictQueue``, which says under which ``habits`` the policy is
    asked. No heap is empty.
    """

    __slots__ = ("_heaps", "_policy", "_size", "_stage", "habits")

    def __init__(self, policy: EvictPolicy, stage: int) -> None:
        self._policy = policy
        self._stage = stage
        self._heaps: dict[Share, list[Spared]] = {}
        self._size = 0
        self.habits = START

    def __len__(self) -> int:
        return self._size

    def start_over(self, habits: Habits) -> None:
        """Forget all: from here on the policy is asked under these habits."""
        self.habits = habits
        self._heaps.clear()
        self._size = 0

    def push(self, node: Node, now: int, most: int) -> None:
        """Enter a leaf if it is spared. More than ``most`` entries cannot all be true: the others are dropped."""
        said = self._policy.spared(node, now, self.habits)
        if said is None:
            return
        heappush(self._heaps.setdefault(node.share, []), (said, node.serial, node))
        self._size += 1
        if self._size > 2 * most + SLACK_ENTRIES:
            self._compact(now)

    def front(self, share: Share, now: int) -> Spared | None:
        """The spared leaf that a tenant would give first; it stays."""
        heap = self._heaps.get(share)
        while heap:
            if self._true(heap[0], now):
                return heap[0]
            self.pop(share)
        return None

    def pop(self, share: Share) -> None:
        """Take out what ``front`` showed."""
        heap = self._heaps[share]
        heappop(heap)
        self._size -= 1
        if not heap:
            del self._heaps[share]

    def _true(self, entry: Spared, now: int) -> bool:
        said, _, node = entry
        leaf = node.alive and not node.children and node.queued >> self._stage & 1
        return bool(leaf) and self._policy.spared(node, now, self.habits) == said

    def _compact(self, now: int) -> None:
        true = {share: {e[1]: e for e in heap if self._true(e, now)} for share, heap in self._heaps.items()}
        self._heaps = {share: list(entries.values()) for share, entries in true.items() if entries}
        for heap in self._heaps.values():
            heapify(heap)
        self._size = sum(map(len, self._heaps.values()))
