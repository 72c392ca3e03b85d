"""Where a device's memory goes before the cache gets any: weights, activations, graphs, the runtime. Every term an
interval with how it is known; nothing is rounded away.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvist.cost.device import Device
from kvist.cost.interval import Interval, loosest
from kvist.spec.layer import LayerSpec
from kvist.spec.model import ModelSpec
from kvist.spec.place import Placement
from kvist.units import GIB, MIB, format_bytes


@dataclass(frozen=True, slots=True)
class Term:
    """One line of the budget: bytes on one device, and the sum it came from."""

    name: str
    bytes: Interval
    how: str


@dataclass(frozen=True, slots=True)
class Overheads:
    """What an engine takes beside weights and cache, bytes per device. A log's own numbers may replace a guess."""

    activation: Interval
    runtime: Interval
    graphs: Interval


@dataclass(frozen=True, slots=True)
class Budget:
    """One device's memory: the engine may use ``fraction`` of ``total_bytes``; what ``terms`` leave is the cache's.

    ``available`` may be negative: then the device is too small, and by how much is its ``best``.
    """

    total_bytes: int
    fraction: float
    terms: tuple[Term, ...]
    stage: int = 0

    @property
    def usable_bytes(self) -> float:
        """What the engine lets itself use."""
        return self.total_bytes * self.fraction

    @property
    def available(self) -> Interval:
        """Bytes left for the cache: most when every term is at its lowest."""
        used = [term.bytes for term in self.terms]
        low, best, high = (sum(getattr(u, end) for u in used) for end in ("low", "best", "high"))
        room = self.usable_bytes
        return Interval(room - high, room - best, room - low, loosest(u.tag for u in used))


def activations(
    spec: ModelSpec, place: Placement, *, batched_tokens: int, sequences: int, element_bytes: float = 2.0
) -> Term:
    """Peak of intermediate rows in a step of ``batched_tokens``, and of logits while ``sequences`` rows are sampled.

    The widest moment of a layer holds its input, the residual, q/k/v and the inner rows of the feed-forward part (gate,
    up and their product). Sampling holds ``sequences * vocabulary`` floats several times over: once in a lean sampler,
    nine times where all rows are sorted for top-p.
    """
    inner = max((_inner_elements(x, place) for x in spec.layers), default=0)
    heads = max((x.q_heads * max(x.key_dim, x.value_dim) for x in spec.layers), default=0) // place.attention_tp
    row = (inner + 4 * spec.hidden + 3 * heads) * element_bytes
    logits = sequences * spec.vocab * 4
    rows = batched_tokens * row
    how = (
        f"{batched_tokens:,} tokens x {format_bytes(row)} + {sequences:,} rows x {spec.vocab:,} logits x 4 B, "
        "held 1 to 9 times while sampling"
    )
    return Term("activations", Interval(0.6 * rows + logits, rows + 3 * logits, 1.6 * rows + 9 * logits), how)


def _inner_elements(layer: LayerSpec, place: Placement) -> int:
    ffn = layer.ffn
    if ffn is None:
        return 0
    width = ffn.width if not ffn.experts else ffn.active * ffn.expert_width + ffn.shared_width
    return 3 * width // (1 if place.ep > 1 and ffn.experts else place.tp)


_RUNTIME: Final = {
    "gpu": (Interval(0.03 * GIB, 0.2 * GIB, 0.7 * GIB), Interval(0.2 * GIB, 0.5 * GIB, 1.5 * GIB)),
    "npu": (Interval(0.2 * GIB, 0.7 * GIB, 2.0 * GIB), Interval(0.2 * GIB, 0.7 * GIB, 2.0 * GIB)),
    "soc": (Interval(0.1 * GIB, 0.3 * GIB, 0.8 * GIB), Interval(0.1 * GIB, 0.3 * GIB, 1.0 * GIB)),
    "cpu": (Interval(0.2 * GIB, 0.3 * GIB, 0.5 * GIB), Interval(0.1 * GIB, 0.3 * GIB, 1.0 * GIB)),
}
"""Library contexts, and collective buffers once several devices talk: what published start-up logs show."""


def runtime(device: Device, place: Placement) -> Term:
    """Contexts, allocator slack and collective buffers."""
    alone, talking = _RUNTIME[device.kind]
    several = place.tp * place.pp * place.ep > 1
    total = alone + talking if several else alone
    return Term("runtime", total, "library contexts" + (" and collective buffers" if several else ""))


def graphs(device: Device, layers: int) -> Term:
    """Captured graphs of a stage: engines capture dozens of batch sizes, each with its own buffers. GPUs and NPUs."""
    if device.kind not in ("gpu", "npu"):
        return Term("graphs", Interval.exactly(0.0), "none captured on this kind of device")
    taken = Interval(0.0, 10 * MIB * layers, 32 * MIB * layers)
    return Term("graphs", taken, f"{layers} layers x 0 to 32 MiB of captured graphs")
