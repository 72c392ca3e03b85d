"""Least recently used goes first."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.cache.evict.base import Habits, NodeFacts, Priority


@dataclass(frozen=True, slots=True)
class Lru:
    """The leaf that no admission, insertion or release has passed through for longest."""

    name: str = "lru"
    learns: bool = False

    def priority(self, node: NodeFacts, habits: Habits) -> Priority:
        """The tick of the last use."""
        return (node.last_use,)

    def spared(self, node: NodeFacts, now: int, habits: Habits) -> Priority | None:
        """Nothing is."""
        return None
