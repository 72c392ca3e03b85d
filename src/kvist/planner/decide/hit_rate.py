"""What a cached, shared prefix is worth: first tokens, users and bytes over the share of the prompt that hits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from kvist.cost.interval import Interval
from kvist.planner.plan import plan, request_bytes_of
from kvist.planner.setup import Load, Setup
from kvist.units import ceil_div


@dataclass(frozen=True, slots=True)
class HitRow:
    """One hit rate against none. ``saved_s``: earlier first token of one prompt (best guess). ``saved_bytes``: cache on
    one rank that the load's users no longer need because they share it.
    """

    rate: float
    cached_tokens: int
    ttft: Interval
    users_fit: tuple[int, int, int]
    saved_s: float
    saved_bytes: int


def hit_rate_curve(setup: Setup, load: Load, rates: Iterable[float]) -> tuple[HitRow, ...]:
    """A row for each rate (0 to 1), in the order asked. Raises ``BadValue`` for other rates."""
    cold = plan(setup, replace(load, hit_rate=0.0))
    need = _need_bytes(setup, cold.load)
    rows = []
    for rate in rates:
        warm = plan(setup, replace(load, hit_rate=rate))
        saved_s = cold.latency.ttft.best - warm.latency.ttft.best
        saved = need - _need_bytes(setup, warm.load)
        rows.append(HitRow(rate, warm.load.cached_tokens, warm.latency.ttft, warm.users_fit, saved_s, saved))
    return tuple(rows)


def _need_bytes(setup: Setup, load: Load) -> int:
    own, shared = request_bytes_of(setup, load)
    return ceil_div(load.users, setup.replicas) * own + shared
