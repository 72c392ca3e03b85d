"""The order of eviction: a heap of nodes with lazy invalidation.

Stages come before priorities, so everything a lower stage can give is taken before a higher one is touched:

==========  ============================================================================================
SURPLUS     window-group blocks that no continuation near their node's end needs: tombstoned, oldest first
LEAF        leaves, cut from the tail
ENDS        window-group blocks at the end of nodes that a sequence below still holds up: tombstoned
BURIED      blocks under a run that a sequence holds (it computed duplicates): the run leaves the tree first
==========  ============================================================================================

A node has at most one entry a stage. An entry is trusted only when it comes to the front: a dead node is skipped, a
priority that changed sends it back.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

from kvist.cache.evict.base import EvictPolicy, Priority
from kvist.cache.node import Node

SURPLUS: Final = 0
LEAF: Final = 1
ENDS: Final = 2
BURIED: Final = 3
SLACK_ENTRIES: Final = 64


class EvictQueue:
    """Which node gives up blocks next. Owner: ``Tree``."""

    __slots__ = ("_bounded", "_full", "heap", "policy")

    def __init__(self, policy: EvictPolicy, *, bounded: bool, full: bool) -> None:
        self.policy = policy
        self.heap: list[tuple[int, Priority, int, Node]] = []
        self._bounded = bounded
        self._full = full

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
        if not node.queued >> stage & 1 and node.parent is not None:
            node.queued |= 1 << stage
            heappush(self.heap, (stage, self.policy.priority(node), node.serial, node))

    def pop(self) -> tuple[int, Node] | None:
        """The stage and node to take from next; its entry is gone. None when nothing is queued."""
        heap = self.heap
        while heap:
            stage, priority, serial, node = heappop(heap)
            if not node.alive:
                continue
            now = self.policy.priority(node)
            if now > priority:
                heappush(heap, (stage, now, serial, node))
                continue
            node.queued &= ~(1 << stage)
            return stage, node
        return None

    def compact(self, nodes: int) -> None:
        """Forget dead nodes once they outnumber what ``nodes`` living ones can fill."""
        if len(self.heap) > 4 * nodes + SLACK_ENTRIES:
            self.heap = [entry for entry in self.heap if entry[3].alive]
            heapify(self.heap)
