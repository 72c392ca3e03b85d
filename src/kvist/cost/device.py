"""One kind of device: what it holds, how fast it reads, how fast it multiplies. Facts, with their sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

RATES = ("f32", "tf32", "f16", "bf16", "fp8", "int8", "fp4", "int4")
"""Names of dense multiply rates. One multiply-add counts as two operations; sparsity is never counted."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device as its maker describes it. Rates are per second, links are one direction.

    ``memory_bytes`` is the capacity on the label (``80 GB`` = 80e9 for HBM sold in decimal, 80 GiB where the maker
    means that); ``usable_bytes`` what a driver reports as total (0: unknown). ``flops`` holds dense rates by number
    format (see ``RATES``). ``link_bytes_per_s`` joins devices of one node, ``host_bytes_per_s`` the device and its
    host's memory. A ``soc`` or ``cpu`` computes in the host's own memory.
    """

    name: str
    maker: str
    kind: Literal["gpu", "npu", "soc", "cpu"]
    memory_bytes: int
    bandwidth_bytes_per_s: float
    flops: Mapping[str, float]
    usable_bytes: int = 0
    link_bytes_per_s: float = 0.0
    link: str = ""
    host_bytes_per_s: float = 0.0
    year: int = 0
    aliases: tuple[str, ...] = ()
    sources: tuple[str, ...] = field(default=())
    notes: str = ""

    @property
    def capacity_bytes(self) -> int:
        """What a program can hope for: the driver's total where known, else the label."""
        return self.usable_bytes or self.memory_bytes

    def flops_for(self, name: str) -> float:
        """Dense rate for products of operands in format ``name``: its own, else the next wider format that has one."""
        wider = {
            "fp4": ("fp8", "f16"), "int4": ("int8", "f16"), "fp8": ("f16", "bf16"), "int8": ("f16", "bf16"),
            "bf16": ("f16", "f32"), "f16": ("bf16", "f32"), "tf32": ("f32",), "f32": (),
        }  # fmt: skip
        for candidate in (name, *wider.get(name, ("f16", "bf16", "f32")), "f32"):
            if candidate in self.flops:
                return self.flops[candidate]
        return next(iter(self.flops.values()))
