"""The fewest devices for a promise: every count, every device, every way to cut the model that divides."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from kvist.cost.device import Device
from kvist.errors import BadValue
from kvist.planner.decide.slo import Slo
from kvist.planner.plan import Plan, budgets_of, plan, request_bytes_of, verdict_of
from kvist.planner.setup import Load, Setup
from kvist.spec.place import Placement
from kvist.units import format_seconds

MakeSetup = Callable[[Device, Placement], Setup]

COUNTS: Final = tuple(range(1, 17))


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
    seen = _Seen()
    for device in named:
        for count in sizes:
            known = len(seen.met)
            for place in places(count, attention_dp=attention_dp):
                _look(make_setup, load, slo, device, place, seen)
            if len(seen.met) > known:
                break
    if not seen.tried:
        raise seen.refusals[0]
    answers = sorted(seen.met, key=lambda c: (c.count, not c.sure, -slo.room(c.plan), *_pace(c.plan)))
    nearest = None if answers else _nearest(seen, load, slo)
    return Search(tuple(answers), nearest, seen.tried, len(seen.refusals))


def _pace(found: Plan) -> tuple[float, float, int]:
    """Between equals: faster later tokens, then faster first ones, then room for more users."""
    return found.latency.tpot.best, found.latency.ttft.best, -found.users_fit[1]


def places(count: int, *, attention_dp: bool = False) -> tuple[Placement, ...]:
    """Every way to write ``count`` as tp * pp * dp."""
    out = []
    for tp in (n for n in range(1, count + 1) if count % n == 0):
        for pp in (n for n in range(1, count // tp + 1) if (count // tp) % n == 0):
            out.append(Placement(tp=tp, pp=pp, dp=count // tp // pp))
            if attention_dp and tp > 1:
                out.append(Placement(tp=tp, pp=pp, dp=count // tp // pp, attention_dp=True))
    return tuple(out)


@dataclass(slots=True)
class _Seen:
    """What a search has come across: what meets the promise, what is too slow, what does not fit, what cannot be."""

    met: list[Candidate] = field(default_factory=list)
    slow: list[Candidate] = field(default_factory=list)
    short: list[tuple[float, Setup]] = field(default_factory=list)
    refusals: list[BadValue] = field(default_factory=list)

    @property
    def tried(self) -> int:
        return len(self.met) + len(self.slow) + len(self.short)


def _look(make_setup: MakeSetup, load: Load, slo: Slo, device: Device, place: Placement, seen: _Seen) -> None:
    """One placement. Seconds are only counted where the memory holds the load."""
    try:
        setup = make_setup(device, place)
        short_bytes = _short_bytes(setup, load)
        if short_bytes > 0:
            seen.short.append((short_bytes, setup))
            return
        found = _candidate(plan(setup, load), slo)
    except BadValue as refusal:
        seen.refusals.append(refusal)
        return
    (seen.met if found.met else seen.slow).append(found)


def _short_bytes(setup: Setup, load: Load) -> float:
    """Bytes that one device of the tightest stage lacks; 0 where the load fits."""
    budget = min(budgets_of(setup, load.users), key=lambda b: b.available.best)
    own, shared = request_bytes_of(setup, load)
    return verdict_of(setup, load, budget, own, shared, (0, 0, 0)).short_bytes


def _candidate(found: Plan, slo: Slo) -> Candidate:
    met, latency = slo.met(found), found.latency
    feel = f"first token {format_seconds(latency.ttft.best)}, then {format_seconds(latency.tpot.best)} a token"
    how = f"{found.verdict.sentence}; {feel}" if met else slo.said(found)
    return Candidate(found.setup.device, found.setup.place, found, met, slo.sure(found), how)


def _nearest(seen: _Seen, load: Load, slo: Slo) -> Candidate:
    """What is only too slow is nearer than what does not fit."""
    if seen.slow:
        return max(seen.slow, key=lambda c: (slo.room(c.plan), -c.count))
    _, setup = min(seen.short, key=lambda pair: (pair[0], pair[1].place.devices))
    return _candidate(plan(setup, load), slo)
