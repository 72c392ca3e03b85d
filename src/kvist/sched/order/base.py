"""The contract of an order: who goes first, and by the same token who is preempted last.

``key`` gives a tuple of ints; the smaller key is served first and preempted last. It must be total (no two sequences
equal), begin with ``rank``, and may change only when ``seq.preemptions`` does, for a sequence is filed under its key.
``rank`` is (0 when nobody of its tenant may go before it, else 1; then lower first). A key is compared within a tenant
only: between tenants what they were served decides who starts, and age who runs on (``roster.py``), for the client
says the priority in it. Both read the sequence and change nothing.
"""

from __future__ import annotations

from typing import Protocol

from kvist.sched.sequence import Sequence


class Order(Protocol):
    """One variant of the shelf: a frozen dataclass with its knobs."""

    @property
    def name(self) -> str:
        """What the registry calls it."""
        ...

    @property
    def cached_first(self) -> bool:
        """True: of equal rank in one tenant the one with the longest cached prefix goes first."""
        ...

    def rank(self, seq: Sequence) -> tuple[int, int]:
        """The strict part of the key."""
        ...

    def key(self, seq: Sequence) -> tuple[int, ...]:
        """Sort key of a sequence; smaller first."""
        ...
