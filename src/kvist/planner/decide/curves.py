"""A plan along three axes, as numbers to draw: memory over context, latency over users, and points under a roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvist.cost.interval import Interval
from kvist.cost.work import Chunk
from kvist.planner.explain.step import decode_chunks, prefill_chunks
from kvist.planner.plan import Plan, latency_of, request_bytes_of, timing_of
from kvist.planner.setup import MOST_USERS
from kvist.units import ceil_div

CONTEXTS: Final = 33
BATCHES: Final = 13


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """Bytes on one device of the tightest stage. ``cache_bytes[users][i]`` belongs to ``contexts[i]``."""

    contexts: tuple[int, ...]
    terms: tuple[tuple[str, float], ...]
    cache_bytes: dict[int, tuple[float, ...]]
    usable_bytes: float
    total_bytes: float


@dataclass(frozen=True, slots=True)
class LatencyPoint:
    """Seconds with so many users: between tokens, to the first token alone and on average in a burst."""

    users: int
    tpot: Interval
    ttft: Interval
    burst_mean_s: float
    tokens_per_s: Interval


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """One step of the slowest stage's rank: FLOPs per byte, and FLOPs per second as planned."""

    name: str
    flops_per_byte: float
    flops_per_s: float


def memory_curve(plan: Plan) -> MemoryCurve:
    """Cache of one user, of those asked for and of twice as many, up to the model's context."""
    setup, load = plan.setup, plan.load
    contexts = _evenly(max(setup.spec.context_tokens, load.context_tokens), load.context_tokens)
    asked = [replace(load, context_tokens=n, output_tokens=min(load.output_tokens, n)) for n in contexts]
    held = [request_bytes_of(setup, one) for one in asked]
    counts = sorted({1, load.users, 2 * load.users})
    return MemoryCurve(
        contexts,
        tuple((term.name, term.bytes.best) for term in plan.budget.terms),
        {n: tuple(ceil_div(n, setup.replicas) * own + float(shared) for own, shared in held) for n in counts},
        plan.budget.usable_bytes,
        plan.budget.total_bytes,
    )


def latency_curve(plan: Plan) -> tuple[LatencyPoint, ...]:
    """From one user to twice as many as fit or are asked for, as far as users can be asked for."""
    most = min(2 * max(plan.load.users, plan.users_fit[1]), MOST_USERS)
    points = []
    for users in _by_ratio(1, most, plan.load.users):
        found = latency_of(plan.setup, replace(plan.load, users=users))
        points.append(LatencyPoint(users, found.tpot, found.ttft, found.burst.mean_s, found.tokens_per_s))
    return tuple(points)


def roofline_points(plan: Plan) -> tuple[RooflinePoint, ...]:
    """Decode of one user, decode of all, and a chunk of a prompt."""
    decode = decode_chunks(plan)
    named = [("decode, 1 sequence", decode[:1])]
    if len(decode) > 1:
        named.append((f"decode, {len(decode):,} sequences", decode))
    prefill = prefill_chunks(plan)
    named.append((f"prefill, {prefill[0].new_tokens:,} tokens", prefill))
    return tuple(_point(plan, name, chunks) for name, chunks in named)


def _point(plan: Plan, name: str, chunks: Sequence[Chunk]) -> RooflinePoint:
    timing = timing_of(plan.setup)
    parts = timing.parts(chunks)
    slowest = max(range(len(parts)), key=lambda i: parts[i].total_s)
    work = timing.works(chunks)[slowest][0]
    return RooflinePoint(name, work.intensity, work.flops / parts[slowest].total_s)


def _evenly(longest: int, asked: int) -> tuple[int, ...]:
    """Contexts at equal distances up to ``longest``, ``asked`` among them."""
    return tuple(sorted({max(1, round(longest * i / (CONTEXTS - 1))) for i in range(CONTEXTS)} | {asked}))


def _by_ratio(low: int, high: int, asked: int) -> tuple[int, ...]:
    """Counts from ``low`` to ``high`` at equal ratios, ``asked`` among them."""
    ratio = (high / low) ** (1 / (BATCHES - 1))
    return tuple(sorted({round(low * ratio**i) for i in range(BATCHES)} | {asked}))
