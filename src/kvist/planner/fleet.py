"""The fewest devices for a promise: every count, every device, every way to cut the model that divides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from kvist.cost.device import Device
from kvist.errors import BadValue
from kvist.planner.plan import Plan, plan
from kvist.planner.setup import Load, Setup
from kvist.planner.slo import Slo
from kvist.spec.place import Placement
from kvist.units import format_seconds

MakeSetup = Callable[[Device, Placement], Setup]

COUNTS: Final = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Candidate:
    """``count`` devices cut as ``place``. ``met``: it fits and is in time with the best guess, ``sure``: with the worst
    one. ``how`` says what breaks, or what the users feel.
    """

    device: Device
    place: Placement
    plan: Plan
    met: bool
    sure: bool
    how: str

    @property
    def count(self) -> int:
        """Devices of all replicas."""
        return self.place.devices


@dataclass(frozen=True, slots=True)
class Search:
    """``answers``: what meets the promise, best first. ``nearest``: where nothing does, what comes closest.

    ``tried`` placements were planned, ``impossible`` ones were left out (heads that do not divide...).
    """

    answers: tuple[Candidate, ...]
    nearest: Candidate | None
    tried: int
    impossible: int


def smallest_devices(
    make_setup: MakeSetup,
    load: Load,
    slo: Slo,
    counts: Iterable[int] = COUNTS,
    devices: Iterable[Device] = (),
    *,
    attention_dp: bool = False,
) -> Search:
    """For each device the fewest of ``counts`` with which some placement meets the promise; ranked over all devices.

    Fewest devices first, then those that hold with the worst guess, then those with most room in the promise. Counts
    above a device's answer are not tried. ``attention_dp`` also tries placements whose ranks keep attention whole.
    Raises ``BadValue`` when no device is named, and what ``make_setup`` says when nothing can be cut at all.
    """
    named, sizes = tuple(devices), sorted(set(counts))
    if not named or not sizes:
        raise BadValue("devices", [d.name for d in named], "at least one device and one count")
    answers: list[Candidate] = []
    failed: list[Candidate] = []
    refusals: list[BadValue] = []
    for device in named:
        for count in sizes:
            found = list(_planned(make_setup, load, slo, device, places(count, attention_dp=attention_dp), refusals))
            failed += [c for c in found if not c.met]
            if any(c.met for c in found):
                answers += [c for c in found if c.met]
                break
    if not answers and not failed:
        raise refusals[0]
    answers.sort(key=lambda c: (c.count, not c.sure, -slo.room(c.plan), -c.plan.users_fit[1]))
    nearest = min(failed, key=lambda c: _distance(c, slo), default=None) if not answers else None
    return Search(tuple(answers), nearest, len(answers) + len(failed), len(refusals))


def places(count: int, *, attention_dp: bool = False) -> tuple[Placement, ...]:
    """Every way to write ``count`` as tp * pp * dp."""
    out = []
    for tp in (n for n in range(1, count + 1) if count % n == 0):
        for pp in (n for n in range(1, count // tp + 1) if (count // tp) % n == 0):
            out.append(Placement(tp=tp, pp=pp, dp=count // tp // pp))
            if attention_dp and tp > 1:
                out.append(Placement(tp=tp, pp=pp, dp=count // tp // pp, attention_dp=True))
    return tuple(out)


def _planned(
    make_setup: MakeSetup,
    load: Load,
    slo: Slo,
    device: Device,
    cuts: Iterable[Placement],
    refusals: list[BadValue],
) -> Iterator[Candidate]:
    """Plans of the placements that the model allows; why not of the others."""
    for place in cuts:
        try:
            found = plan(make_setup(device, place), load)
        except BadValue as refusal:
            refusals.append(refusal)
            continue
        met = slo.met(found)
        latency = found.latency
        feel = f"first token {format_seconds(latency.ttft.best)}, then {format_seconds(latency.tpot.best)} a token"
        how = f"{found.verdict.sentence}; {feel}" if met else slo.said(found)
        yield Candidate(device, place, found, met, slo.sure(found), how)


def _distance(candidate: Candidate, slo: Slo) -> tuple[bool, float, int]:
    """How far a candidate is from the promise: what does not fit is further than what is only too slow."""
    found = candidate.plan
    if found.verdict.fits:
        return (False, -slo.room(found), candidate.count)
    return (True, found.verdict.short_bytes, candidate.count)
