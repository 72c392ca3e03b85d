"""The contract of an order: who goes first, and by the same token who is preempted last.

``key`` gives a tuple of ints; the smaller key is served first, admitted first and preempted last. It must be total (no
two sequences equal) and may change only when ``seq.preemptions`` does, for a sequence is filed under its key. It
reads the sequence and changes nothing.
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

    def key(self, seq: Sequence) -> tuple[int, ...]:
        """Sort key of a sequence; smaller first."""
        ...
