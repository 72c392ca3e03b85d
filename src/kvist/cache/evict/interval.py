"""What is not used again goes first, then what will be used last: a run is expected back after its usual interval.

Least recently used is the worst order for a loop that is larger than the pool (every run goes just before it is asked
for), and it lets prompts seen once push out what all others share. As in LIRS (Jiang & Zhang, SIGMETRICS 2002) the time
between the last two uses of a run, known beyond its eviction, ranks it, and while there is room whoever comes first
stays. Unlike LIRS the choice among the runs that are kept is the farthest next use that this interval foretells, which
for loops is the offline optimum (Belady 1966).

For prompts behind shared prefixes, in loops or mixed with prompts seen once. Not for long sessions that end: what a
session added last has no interval yet and goes before the remains of sessions that nobody continues, where least
recently used does better, and ``auto`` (the default) tells the two apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvist.cache.evict.base import Habits, NodeFacts, Priority
from kvist.errors import BadValue


@dataclass(frozen=True, slots=True)
class Interval:
    """Runs of no known interval and those overdue first, oldest first; then those expected last.

    A run is overdue when ``patience`` intervals have passed since its last use. Raises ``BadValue`` for less than 1.
    """

    patience: int = 2
    name: str = "interval"
    learns: bool = False

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise BadValue("patience", self.patience, "at least 1")

    def priority(self, node: NodeFacts, habits: Habits) -> Priority:
        """The tick from which it is overdue."""
        return (0, node.last_use + self.patience * node.gap)

    def spared(self, node: NodeFacts, now: int, habits: Habits) -> Priority | None:
        """Not overdue: the farthest expected use goes first, behind all that are."""
        if now >= node.last_use + self.patience * node.gap:
            return None
        return (1, -node.last_use - node.gap)
