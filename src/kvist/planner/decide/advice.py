"""What to change first: alternatives are planned like the real thing and ranked by what they gain for what binds.

There are no rules of thumb here. A suggestion is another plan's figures beside this one's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Literal

from kvist.errors import BadValue
from kvist.planner.decide.slo import Slo
from kvist.planner.decide.variants import Variant
from kvist.planner.plan import Plan, plan
from kvist.planner.setup import Load, Setup
from kvist.units import format_seconds

Goal = Literal["users", "ttft", "tpot"]


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One alternative. ``gain`` is for the goal: how many times more users, or shorter seconds; above 1 helps.

    ``devices_ratio`` is what it takes in devices, ``settles`` whether all that was missed is then met. ``how`` has the
    figures of both plans, ``price`` what the figures do not show.
    """

    name: str
    goal: Goal
    gain: float
    users_ratio: float
    ttft_ratio: float
    tpot_ratio: float
    devices_ratio: float
    settles: bool
    plan: Plan
    price: str
    how: str


def what_binds(found: Plan, slo: Slo | None = None) -> Goal:
    """What to improve: users when the load does not fit, else the limit that is missed by most, else users."""
    if not found.verdict.fits or slo is None or slo.met(found):
        return "users"
    over: dict[Goal, float] = {
        "ttft": found.latency.ttft.best / slo.ttft_s if slo.ttft_s is not None else 0.0,
        "tpot": found.latency.tpot.best / slo.tpot_s if slo.tpot_s is not None else 0.0,
    }
    return max(over, key=lambda goal: over[goal])


def advise(
    setup: Setup, load: Load, variants: Iterable[Variant], *, slo: Slo | None = None, goal: Goal | None = None
) -> tuple[Suggestion, ...]:
    """Suggestions, the largest gain first; equal gains with the fewest devices first.

    Variants that gain nothing are left out unless they were asked for, and so are impossible ones. Raises ``BadValue``
    for an impossible one that was asked for, and for what the setup itself cannot be.
    """
    base = plan(setup, load)
    wanted, promise = goal or what_binds(base, slo), slo or Slo()
    found = []
    for variant in variants:
        try:
            other, price = variant.planned(setup, load)
        except BadValue:
            if variant.asked:
                raise
            continue
        made = _suggestion(variant.name, wanted, base, other, price, promise)
        if made.gain > 1 or variant.asked:
            found.append(made)
    return tuple(sorted(found, key=lambda s: (-s.gain, -s.plan.users_fit[1], s.devices_ratio, s.name)))


def _suggestion(name: str, goal: Goal, base: Plan, other: Plan, price: str, slo: Slo) -> Suggestion:
    users = _times(other.users_fit[1], base.users_fit[1])
    ttft = _times(base.latency.ttft.best, other.latency.ttft.best)
    tpot = _times(base.latency.tpot.best, other.latency.tpot.best)
    gain = {"users": users, "ttft": ttft, "tpot": tpot}[goal]
    devices = other.setup.place.devices / base.setup.place.devices
    how = (
        f"{name}: users {base.users_fit[1]:,} -> {other.users_fit[1]:,}, first token "
        f"{_turn(base.latency.ttft.best, other.latency.ttft.best)}, a token "
        f"{_turn(base.latency.tpot.best, other.latency.tpot.best)}"
    )
    if devices != 1:
        how += f", on {other.setup.place.devices} devices instead of {base.setup.place.devices}"
    settles = slo.met(other)
    return Suggestion(name, goal, gain, users, ttft, tpot, devices, settles, other, price, how)


def _times(larger: float, smaller: float) -> float:
    """How many times; from nothing to something is without bound, from nothing to nothing is none."""
    if smaller:
        return larger / smaller
    return inf if larger else 1.0


def _turn(before: float, after: float) -> str:
    return f"{format_seconds(before)} -> {format_seconds(after)}"
