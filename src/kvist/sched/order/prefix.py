"""Longest cached prefix first: what is in the cache is used before it is evicted (SGLang, arXiv 2312.07104)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvist.sched.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Prefix:
    """Within a priority and a tenant the longest cached prefix is admitted first, then earlier arrival.

    Who runs is served, and preempted, by arrival: what is cached changes from step to step, a key may not. Patience
    is that of ``fcfs``.
    """

    patience: int = 3
    name: ClassVar[str] = "prefix"
    cached_first: ClassVar[bool] = True

    def rank(self, seq: Sequence) -> tuple[int, int]:
        """(patience left, -priority)."""
        return int(seq.preemptions < self.patience), -seq.request.priority

    def key(self, seq: Sequence) -> tuple[int, ...]:
        """(patience left, -priority, arrival, sample)."""
        return (*self.rank(seq), seq.arrival, seq.sample)
