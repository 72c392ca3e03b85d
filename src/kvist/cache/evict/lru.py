"""Least recently used goes first."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.cache.evict.base import NodeFacts, Priority


@dataclass(frozen=True, slots=True)
class Lru:
    """The leaf that no admission, insertion or release has passed through for longest."""

    name: str = "lru"

    def priority(self, node: NodeFacts) -> Priority:
        """The tick of the last use."""
        return (node.last_use,)

    def spared(self, node: NodeFacts, now: int) -> Priority | None:
        """Nothing is."""
        return None
