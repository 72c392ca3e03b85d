"""What a kernel costs on real cores: memory beside arithmetic, and the seconds in which neither works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvist.cost.roofline import Bound
from kvist.cost.work import Work

OVERLAP: Final = 4
"""Exponent of the sum of both sides of a pipe (1: one after the other, large: fully side by side). Found by timing
steps of 1 to 512 rows while the host's memory ran at 53 and at 88 GB/s: 4 follows both within 4 %."""


@dataclass(frozen=True, slots=True)
class Pipe:
    """One kind of kernel: the share of the memory's read bandwidth it reaches, and what the cores behind it do.

    ``stream_bytes_per_s`` is how fast the cores pass over operands whatever they compute (0: not a limit).
    """

    share: float
    flops_per_s: float
    stream_bytes_per_s: float = 0.0

    def sides(self, n_bytes: float, flops: float, bandwidth_bytes_per_s: float) -> tuple[float, float]:
        """Seconds of the memory and of the cores."""
        passing = n_bytes / self.stream_bytes_per_s if self.stream_bytes_per_s else 0.0
        return n_bytes / (self.share * bandwidth_bytes_per_s), passing + flops / self.flops_per_s

    def seconds(self, n_bytes: float, flops: float, bandwidth_bytes_per_s: float) -> float:
        """Seconds to read ``n_bytes`` and compute ``flops`` with them."""
        memory, cores = self.sides(n_bytes, flops, bandwidth_bytes_per_s)
        both: float = (memory**OVERLAP + cores**OVERLAP) ** (1 / OVERLAP)
        return both

    def bound(self, n_bytes: float, flops: float, bandwidth_bytes_per_s: float) -> Bound:
        """Which side rules."""
        memory, cores = self.sides(n_bytes, flops, bandwidth_bytes_per_s)
        return "bandwidth" if memory >= cores else "compute"


@dataclass(frozen=True, slots=True)
class Overhead:
    """Seconds that no kernel works: per step, per sequence of a step, per layer, and per layer and sequence."""

    step_s: float
    sequence_s: float
    layer_s: float
    layer_sequence_s: float

    def seconds(self, work: Work) -> float:
        """Of one step."""
        layers = work.layers * (self.layer_s + self.layer_sequence_s * work.sequences)
        return self.step_s + self.sequence_s * work.sequences + layers


@dataclass(frozen=True, slots=True)
class Spread:
    """How much shorter and longer steps were than the fit says: 0.9 to 1.1 is 10 % either way."""

    low: float
    high: float

    def wider(self, factor: float) -> Spread:
        """The same, ``factor`` times as far from 1 (``low`` stays above 0)."""
        return Spread(max(0.05, 1 - (1 - self.low) * factor), 1 + (self.high - 1) * factor)
