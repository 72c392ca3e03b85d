"""First come, first served within a priority."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvist.sched.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Fcfs:
    """Higher ``priority`` first, then earlier arrival.

    A sequence that was preempted ``patience`` times goes before all that were not: nobody is thrown out more often
    than that, however many requests of higher priority arrive.
    """

    patience: int = 3
    name: ClassVar[str] = "fcfs"
    cached_first: ClassVar[bool] = False

    def rank(self, seq: Sequence) -> tuple[int, int]:
        """(patience left, -priority)."""
        return int(seq.preemptions < self.patience), -seq.request.priority

    def key(self, seq: Sequence) -> tuple[int, ...]:
        """(patience left, -priority, arrival, sample)."""
        return (*self.rank(seq), seq.arrival, seq.sample)
