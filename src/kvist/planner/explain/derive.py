"""The derivation behind a plan, with this model's own numbers: from one token's bytes to seconds."""

from __future__ import annotations

from typing import Final

from kvist.cost.interval import Interval
from kvist.cost.work import ModelWork
from kvist.planner.decide.no_cache import Row, rows
from kvist.planner.explain.cache import heads, per_token, rank_spec, sequence, users
from kvist.planner.explain.derivation import Equation, Section, exact
from kvist.planner.explain.step import decode_step, prefill_step
from kvist.planner.plan import Plan
from kvist.spec.shard import with_drafts

LENGTHS: Final = (128, 1024, 4096)
"""Texts to compare with and without a cache; every step of the longest is counted."""


def derivation(plan: Plan) -> tuple[Section, ...]:
    """Sections in the order in which a person would work them out. Values are the plan's own, never computed twice."""
    setup, n = plan.setup, plan.load.context_tokens
    spec, fmt = with_drafts(setup.spec, setup.draft_layers), setup.kv_format
    found = [
        per_token(spec, fmt, f"Bytes of one token, {fmt.name}"),
        heads(spec, fmt),
        sequence(spec, fmt, n, f"One sequence of {n:,} tokens"),
    ]
    if setup.place.devices > 1:
        rank = rank_spec(plan)
        where = f"one rank of {setup.place.name}" + (f", stage {plan.tightest}" if setup.place.pp > 1 else "")
        found += [
            per_token(rank, fmt, f"Bytes of one token on {where}"),
            sequence(rank, fmt, n, f"The sequence on {where}"),
        ]
    return (*found, users(plan), memory(plan), decode_step(plan), prefill_step(plan), answer(plan))


def memory(plan: Plan) -> Section:
    """One device's memory, line by line."""
    budget = plan.budget
    total = f"{budget.total_bytes:,} x {budget.fraction:.4g}"
    found = [exact("usable", "device x memory_fraction", total, budget.usable_bytes)]
    found += [Equation(f"- {term.name}", "", term.how, term.bytes, "bytes") for term in budget.terms]
    found.append(Equation("available", "usable - terms", "what is left for the cache", budget.available, "bytes"))
    return Section(f"Memory of one device: {plan.setup.device.name}", tuple(found))


def answer(plan: Plan) -> Section:
    """What the plan says at the end."""
    load, latency = plan.load, plan.latency
    found = [
        Equation(
            "TTFT",
            "alone",
            f"{load.prompt_tokens - load.cached_tokens:,} tokens to compute",
            latency.ttft,
            "seconds",
            latency.ttft_bound,
        ),
        exact(
            "TTFT_burst",
            f"mean of {load.users:,} at once",
            f"{latency.burst.steps:,} steps",
            latency.burst.mean_s,
            "seconds",
            known=False,
        ),
        Equation(
            "TPOT",
            "",
            "1 user answers" if load.users == 1 else f"{load.users:,} users answer",
            latency.tpot,
            "seconds",
            latency.tpot_bound,
        ),
    ]
    rate = Interval(latency.tokens_per_s.low, latency.tokens_per_s.best, latency.tokens_per_s.high, latency.tpot.tag)
    found.append(Equation("tokens/s", "users / TPOT", f"{load.users:,} / {latency.tpot.best:.4g}", rate, "ratio"))
    return Section("What users feel", tuple(found))


def cache_or_none(plan: Plan) -> tuple[Row, ...]:
    """The whole model's work for texts of a few lengths, with a cache and without."""
    setup = plan.setup
    limit = setup.spec.context_tokens or LENGTHS[-1]
    return rows(ModelWork(setup.spec, setup.kv_format, setup.widths), [n for n in LENGTHS if n <= limit])
