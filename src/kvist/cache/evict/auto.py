"""Looks at how runs come back, and keeps what is worth keeping then: near the optimum for loops, and for prefixes in
random order near the best that does not know the future.

Three questions, all answered by counting (``habits.py``). Do runs come back in turns that least recently used would
lose? Then the order is that of ``interval``: what is overdue first, then the farthest expected use, the offline optimum
for loops (Belady 1966). If not, nothing foretells when a run is used, and the least recently used goes first, whose
chances are worst where uses come in bursts and no worse than others' where they are independent. Are new runs asked for
again, those behind a beginning that was cached already (questions behind a shared prompt, or the next turn of a
conversation), and those that share nothing? If hardly ever, they go before all runs that were: so one-time suffixes and
scans do not push out what is shared, as in 2Q (Johnson & Shasha, VLDB 1994), until that has not been used for very long
itself.

Least recently used would lose what waits while as many different blocks are used as the pool has. That is counted for
every wait like the one before, alike in both orders, so that neither hides the other's reason (``turnover.py``). From
95 % of the pool on the interval order holds; recency again below 93 %, the need fading over 16 waits. So conversations
that take turns, fit and end do not keep those that ended, unless the pool has hardly more than the open ones need, or
less: then the dead stay until overdue, where least recently used may still keep a part of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvist.cache.evict.base import Habits, NodeFacts, Priority
from kvist.errors import BadValue


@dataclass(frozen=True, slots=True)
class Auto:
    """Interval order while turns would be lost, else recency; new runs first while they are not used again.

    ``patience`` is that of ``Interval``. Raises ``BadValue`` for less than 1.
    """

    patience: int = 2
    name: str = "auto"
    learns: bool = True

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise BadValue("patience", self.patience, "at least 1")

    def priority(self, node: NodeFacts, habits: Habits) -> Priority:
        """The tick from which it is overdue: after ``patience`` intervals of its own, or after the usual longest."""
        gap = _gap(node, habits)
        return (0, node.last_use + (self.patience * gap if habits.in_turn else habits.usual_gap if gap else 0))

    def spared(self, node: NodeFacts, now: int, habits: Habits) -> Priority | None:
        """In a loop those not overdue: the farthest expected use goes first. Else nothing is."""
        if not habits.in_turn:
            return None
        gap = _gap(node, habits)
        return (1, -node.last_use - gap) if now < node.last_use + self.patience * gap else None


def _gap(node: NodeFacts, habits: Habits) -> int:
    """The interval of a node; of one that has none yet, twice the mean, or 0 where new ones are not used again."""
    if node.gap:
        return node.gap
    return 0 if habits.fresh_first[node.behind] else habits.usual_gap // 4 or 1
