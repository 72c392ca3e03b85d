"""Other places for KV bytes and how fast they are: a neighbour's memory, the host's, a drive, the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvist.cost.device import Device
from kvist.cost.interval import Interval, loosest
from kvist.errors import BadValue


@dataclass(frozen=True, slots=True)
class Tier:
    """A place for KV bytes. ``bytes_per_s`` is what one device gets of it, ``latency_s`` what every transfer waits."""

    name: str
    bytes_per_s: Interval
    latency_s: Interval
    how: str = ""

    def __post_init__(self) -> None:
        if self.bytes_per_s.low <= 0:
            raise BadValue("bytes_per_s", self.bytes_per_s.low, "a rate above 0")
        if self.latency_s.low < 0:
            raise BadValue("latency_s", self.latency_s.low, "seconds >= 0")

    @staticmethod
    def given(name: str, bytes_per_s: float, latency_s: float = 0.0, how: str = "given") -> Tier:
        """A tier of one's own, its numbers known. Raises ``BadValue`` for a rate that is not above 0."""
        return Tier(name, Interval.exactly(bytes_per_s), Interval.exactly(latency_s), how)

    def seconds(self, n_bytes: float) -> Interval:
        """Latency and transfer of ``n_bytes``: shortest with the least latency and the highest rate."""
        rate, wait = self.bytes_per_s, self.latency_s
        tag = loosest((rate.tag, wait.tag))
        return Interval(
            wait.low + n_bytes / rate.high, wait.best + n_bytes / rate.best, wait.high + n_bytes / rate.low, tag
        )


_SHARE: Final = (0.5, 0.8, 0.92)
"""Assumed: the part of a link's rate that copies of whole blocks reach, packet overhead and small blocks included."""

_PLAIN_HOST: Final = 32e9
"""PCIe 4.0 x16, one direction, where a device's entry says nothing of its host link."""

NVME: Final = Tier(
    "nvme",
    Interval(2e9, 6e9, 13e9),
    Interval(50e-6, 100e-6, 500e-6),
    "assumed: one drive, PCIe 3.0 x4 to PCIe 5.0 x4 (their makers print 3.5, 7 and 14 GB/s), one reader",
)
NETWORK: Final = Tier(
    "network",
    Interval(1e9, 11e9, 45e9),
    Interval(20e-6, 100e-6, 2e-3),
    "assumed: one port, 10 to 400 Gbit/s, best guess 100",
)


def usual_tiers(device: Device) -> tuple[Tier, ...]:
    """The tiers a device of this kind usually has, fastest first. Links come from its entry, the rest is assumed."""
    found = []
    if device.link_bytes_per_s:
        found.append(_link("neighbour", device.link_bytes_per_s, 5e-6, device.link or "the link between devices"))
    if device.kind in ("gpu", "npu"):
        rate, said = device.host_bytes_per_s, "the host link"
        if not rate:
            rate, said = _PLAIN_HOST, "PCIe 4.0 x16 (the device's entry names none)"
        found.append(_link("host", rate, 10e-6, said))
    return (*found, NVME, NETWORK)


def _link(name: str, rate: float, wait_s: float, said: str) -> Tier:
    low, best, high = (rate * share for share in _SHARE)
    how = (
        f"{said}: {rate / 1e9:.4g} GB/s one way, of which {_SHARE[0]:.0%} to {_SHARE[2]:.0%} are assumed to be reached"
    )
    return Tier(name, Interval(low, best, high), Interval(wait_s / 2, wait_s, 10 * wait_s), how)
