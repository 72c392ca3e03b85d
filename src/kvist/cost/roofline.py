"""Seconds of a step from a device's data sheet: the classic roofline (Williams et al., CACM 2009), part by part.

Linear layers, attention and the head are bound apart, each by arithmetic or by bandwidth; collectives and a fixed cost
per step are added. Data-sheet rates are never reached: efficiencies stand between, as intervals, and the result is one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Protocol

from kvist.cost.device import Device
from kvist.cost.interval import Interval
from kvist.cost.work import Work

Bound = Literal["compute", "bandwidth", "collectives", "overhead"]


@dataclass(frozen=True, slots=True)
class Seconds:
    """One step's time by part, and what the largest part is bound by."""

    linear_s: float
    attention_s: float
    head_s: float
    collective_s: float
    overhead_s: float
    linear_bound: Bound
    attention_bound: Bound

    @property
    def total_s(self) -> float:
        """All parts, one after the other."""
        return self.linear_s + self.attention_s + self.head_s + self.collective_s + self.overhead_s

    @property
    def bound(self) -> str:
        """The largest part and its limit, in words."""
        parts = {
            f"linear layers ({self.linear_bound})": self.linear_s + self.head_s,
            f"attention ({self.attention_bound})": self.attention_s,
            "collectives": self.collective_s,
            "overhead": self.overhead_s,
        }
        return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Share of a data sheet's rates that a good engine reaches, and fixed costs."""

    compute: float
    attention: float
    bandwidth: float
    link: float
    overhead_s: float
    collective_s: float


BEST: Final = Efficiency(0.60, 0.45, 0.80, 0.75, 300e-6, 8e-6)
GOOD: Final = Efficiency(0.75, 0.60, 0.92, 0.90, 50e-6, 4e-6)
POOR: Final = Efficiency(0.40, 0.25, 0.60, 0.50, 2e-3, 20e-6)
"""Assumed: the spread between engines and kernels that published benchmarks show for one and the same device."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one rank exchanges in a step and in how many collectives: see ``cost.collective``."""

    bytes: float = 0.0
    messages: int = 0
    link_bytes_per_s: float = 0.0


class StepCost(Protocol):
    """Anything that can say how long a step takes: a data sheet or a measured machine."""

    def step(self, work: Work, traffic: Traffic = Traffic()) -> Interval:
        """Seconds, with their spread."""
        ...

    def parts(self, work: Work, traffic: Traffic = Traffic()) -> Seconds:
        """Seconds by part, best guess."""
        ...


@dataclass(frozen=True, slots=True)
class Roofline:
    """A device's roofline for products of weights in ``compute`` format and attention in ``attention`` format."""

    device: Device
    compute: str = "bf16"
    attention: str = "bf16"

    def parts(self, work: Work, traffic: Traffic = Traffic(), at: Efficiency = BEST) -> Seconds:
        """Seconds by part at one efficiency."""
        flops = self.device.flops_for(self.compute) * at.compute
        bandwidth = self.device.bandwidth_bytes_per_s * at.bandwidth
        linear = _longer(work.linear_flops / flops, (work.weight_bytes + work.activation_bytes) / bandwidth)
        cache = work.kv_read_bytes + work.kv_write_bytes + work.state_bytes
        rate = self.device.flops_for(self.attention) * at.attention
        attention = _longer((work.attention_flops + work.state_flops) / rate, cache / bandwidth)
        head = _longer(work.head_flops / flops, work.head_bytes / bandwidth)
        link = traffic.link_bytes_per_s * at.link
        wire = traffic.messages * at.collective_s + (traffic.bytes / link if link else 0.0)
        return Seconds(linear[0], attention[0], head[0], wire, at.overhead_s, linear[1], attention[1])

    def step(self, work: Work, traffic: Traffic = Traffic()) -> Interval:
        """Seconds of a step between a good and a poor implementation."""
        low, best, high = (self.parts(work, traffic, at).total_s for at in (GOOD, BEST, POOR))
        return Interval(low, best, high, "assumed")

    @property
    def ridge(self) -> float:
        """FLOPs per byte at which arithmetic and bandwidth take equally long on the data sheet."""
        return self.device.flops_for(self.compute) / self.device.bandwidth_bytes_per_s


def _longer(compute_s: float, bandwidth_s: float) -> tuple[float, Bound]:
    return (compute_s, "compute") if compute_s > bandwidth_s else (bandwidth_s, "bandwidth")
