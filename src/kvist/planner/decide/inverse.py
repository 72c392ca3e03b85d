"""Questions asked the other way round: how many users, how long a context, how few devices, how wide a format.

Every answer is checked against ``plan`` and names the term that stops it from being one larger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from kvist.errors import BadValue
from kvist.planner.decide.fleet import smallest_devices
from kvist.planner.decide.slo import Slo
from kvist.planner.decide.turns import first_yes
from kvist.planner.plan import Plan, budgets_of, fitting_users, plan, request_bytes_of, verdict_of
from kvist.planner.plan import longest_context as context_that_fits
from kvist.planner.setup import MOST_USERS, Load, Setup
from kvist.spec.format import KVFormat
from kvist.units import ceil_div, format_bytes

__all__ = [
    "Answer",
    "FormatAnswer",
    "Slo",
    "longest_context",
    "most_users",
    "smallest_devices",
    "widest_format",
]


@dataclass(frozen=True, slots=True)
class Answer:
    """``value`` holds, one more does not: ``binding`` names what breaks then (``cache``, ``tpot``, ``weights``...)."""

    value: int
    unit: str
    binding: str
    how: str


@dataclass(frozen=True, slots=True)
class FormatAnswer:
    """The widest format that does. None when none of them does; ``plan`` is then that of the narrowest.

    ``sure``: even with the worst of every guess. ``refused`` says of each wider format why not.
    """

    kv_format: KVFormat | None
    plan: Plan
    sure: bool
    refused: tuple[str, ...]
    how: str


def most_users(setup: Setup, load: Load, slo: Slo | None = None) -> Answer:
    """The most users of the load's shape that fit and, with ``slo``, are served in time (best guesses)."""
    most, binding, how = _users_in_memory(setup, load)
    if slo is None or not most:
        return Answer(most, "users", binding, how)
    missed = slo.missed(plan(setup, replace(load, users=most)))
    if missed:
        at = first_yes(lambda n: bool(slo.missed(plan(setup, replace(load, users=n)))), 0, most)
        binding, most = slo.missed(plan(setup, replace(load, users=at)))[0], at - 1
        how = f"with {at:,} users {slo.said(plan(setup, replace(load, users=at)))}"
    return Answer(most, "users", binding, how)


def _users_in_memory(setup: Setup, load: Load) -> tuple[int, str, str]:
    """The most users that fit, and what one more would break, from the same sums as a plan's."""
    most = fitting_users(setup, load)[1]
    own, shared = request_bytes_of(setup, load)
    if most >= MOST_USERS:
        return most, "nothing", f"{most:,} users are as many as are looked at"
    more = most + 1
    budget = min(budgets_of(setup, more), key=lambda b: b.available.best)
    verdict = verdict_of(setup, replace(load, users=more), budget, own, shared, (most, most, most))
    if verdict.broken != "cache":
        return most, verdict.broken, verdict.sentence
    need = ceil_div(more, setup.replicas) * own + shared
    how = (
        f"{more:,} users would need {format_bytes(need)} of cache on a device, "
        f"{format_bytes(verdict.short_bytes)} more than there are"
    )
    return most, "cache", how


def longest_context(setup: Setup, load: Load) -> Answer:
    """The longest context at which the load's users fit; ``plan`` counts it, this says what stops one token more."""
    budget = min(budgets_of(setup, load.users), key=lambda b: b.available.best)
    n = context_that_fits(setup, load, budget.available.best)
    limit = setup.spec.context_tokens
    if limit and n >= limit:
        return Answer(n, "tokens", "context", f"the model itself ends at {limit:,} tokens, and memory holds them")
    asked = replace(load, context_tokens=n + 1, output_tokens=min(load.output_tokens, n + 1))
    own, shared = request_bytes_of(setup, asked)
    verdict = verdict_of(setup, asked, budget, own, shared, (0, 0, 0))
    if verdict.fits:  # the search stops where models without a context of their own are no longer looked at
        return Answer(n, "tokens", "search", f"no model context is known, and nobody looked beyond {n:,} tokens")
    if verdict.broken != "cache":
        return Answer(n, "tokens", verdict.broken, verdict.sentence)
    how = (
        f"at {n + 1:,} tokens {load.users:,} user{'s' * (load.users > 1)} would need "
        f"{format_bytes(verdict.short_bytes)} of cache more than a device has left"
    )
    return Answer(n, "tokens", "cache", how)


def widest_format(
    make_setup: Callable[[KVFormat], Setup], load: Load, formats: Iterable[KVFormat], slo: Slo | None = None
) -> FormatAnswer:
    """The first of ``formats`` (widest first) with which the load fits and meets the ``slo``, best guesses.

    Raises ``BadValue`` when no format is given.
    """
    wanted = slo or Slo()
    refused: list[str] = []
    found: Plan | None = None
    for fmt in formats:
        found = plan(make_setup(fmt), load)
        if wanted.met(found):
            doubt = "" if wanted.sure(found) else ", though not with the worst of every guess"
            how = f"{fmt.name} is the widest that does{doubt}: {found.verdict.sentence}"
            return FormatAnswer(fmt, found, wanted.sure(found), tuple(refused), how)
        refused.append(f"{fmt.name}: {wanted.said(found)}")
    if found is None:
        raise BadValue("formats", (), "at least one format")
    return FormatAnswer(None, found, False, tuple(refused), f"none does; {refused[-1]}")
