"""The contract of an evict policy: which cached leaf goes first.

A policy sees numbers of one node and answers with something sortable; the smallest goes first. It is asked when a node
enters the evict queue and again when it comes to the front: an answer that rose in between sends the node back, so a
policy costs O(log nodes) per evicted run and never walks the tree. Answers of one node should not fall unless it is
used. A policy may spare nodes for a time (``spared``): they go when all others of their tenant are gone. Time is the
cache's own count of uses: no policy reads a clock.

What a policy cannot decide: nodes with children wait until they have none, blocks that a sequence holds stay, and a
leaf is always cut from its tail, span by span.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

Priority = tuple[int, ...]


class Habits(NamedTuple):
    """What the cache has seen of how runs come back (``kvist.cache.habits``)."""

    in_turn: bool
    """Most wait about as long as the time before, and for longer than least recently used would keep them."""
    fresh_first: tuple[bool, bool]
    """New runs are hardly ever asked for again: those that share nothing, those ``behind`` one that was cached."""
    usual_gap: int
    """Ticks, a power of two: hardly any run waits longer. 0: none came back twice."""


class NodeFacts(Protocol):
    """What a policy may look at. Read-only."""

    @property
    def start(self) -> int:
        """Position of the node's first token: how deep it hangs."""
        ...

    @property
    def end(self) -> int:
        """One past the position of its last token."""
        ...

    @property
    def last_use(self) -> int:
        """Tick of the last admission, insertion or release that passed through the node."""
        ...

    @property
    def gap(self) -> int:
        """Ticks without use before the last admission that used it, be it in the tree or evicted; 0: none is known.

        Of nodes made before anything was evicted, until they are used: about as long as the pool takes to fill.
        """
        ...

    @property
    def hits(self) -> int:
        """Admissions that used the node, or asked for it when it was evicted."""
        ...

    @property
    def behind(self) -> bool:
        """Made behind a run that was cached when it was asked for, or had been."""
        ...

    @property
    def serial(self) -> int:
        """Order of creation."""
        ...


class EvictPolicy(Protocol):
    """Orders leaves. Variants are frozen dataclasses; their knobs are fields."""

    @property
    def name(self) -> str:
        """How the registry and the command line call it."""
        ...

    @property
    def learns(self) -> bool:
        """Whether answers depend on ``Habits``. If so the queue is put in order anew when these change, and while new
        runs behind others go first, what a sequence adds behind a used run becomes a node of its own.
        """
        ...

    def priority(self, node: NodeFacts, habits: Habits) -> Priority:
        """Smallest goes first. Ties go to the node created first."""
        ...

    def spared(self, node: NodeFacts, now: int, habits: Habits) -> Priority | None:
        """None: ``priority`` counts. Else the node is spared at tick ``now``, and the smallest of those goes first.

        Must sort behind every ``priority``, change with the node's use and with habits only, and end (None) as time
        passes, at the tick that ``priority`` orders by if at all: the queue looks for them when one is in front.
        """
        ...
