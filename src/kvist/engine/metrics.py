"""Numbers of the running engine: the scheduler's effect counters, the cache's state, and where the time went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass

from kvist.cache.cache import Cache
from kvist.sched.scheduler import Scheduler


@dataclass(slots=True)
class Spent:
    """Seconds by the engine's clock. Owner: the engine. ``plan_s`` + ``commit_s`` is the overhead of thinking."""

    plan_s: float = 0.0
    execute_s: float = 0.0
    commit_s: float = 0.0

    @property
    def overhead_s(self) -> float:
        """Seconds in which no executor worked."""
        return self.plan_s + self.commit_s


def snapshot(scheduler: Scheduler, spent: Spent, executed: Mapping[str, int]) -> dict[str, float]:
    """Every number by name: ``sched_*``, ``cache_*`` and ``exec_*`` totals, gauges, seconds.

    ``executed``: the executor's counters.

    ``waiting_capacity``, ``_leader``, ``_queue``: those who wait, by what they wait for. ``pace_limit_tokens``: the
    bound on the prompt tokens of the last step, -1 without one.
    """
    numbers: dict[str, float] = {f"sched_{name}": value for name, value in _numbers(scheduler.counters).items()}
    numbers |= {f"cache_{name}": value for name, value in _numbers(scheduler.cache.counters).items()}
    numbers |= {f"exec_{name}": value for name, value in executed.items()}
    numbers |= _gauges(scheduler.cache)
    waiting = scheduler.waiting_by_reason()
    numbers["waiting_sequences"] = sum(waiting.values())
    numbers |= {f"waiting_{reason}": count for reason, count in waiting.items()}
    numbers["running_sequences"] = len(scheduler.running)
    pace = scheduler.pace
    numbers |= {"pace_decode_step_s": pace.decode_step_s, "pace_chunk_token_s": pace.chunk_token_s}
    numbers["pace_limit_tokens"] = -1 if pace.limit_tokens is None else pace.limit_tokens
    numbers |= {"plan_s": spent.plan_s, "execute_s": spent.execute_s, "commit_s": spent.commit_s}
    return numbers


def _gauges(cache: Cache) -> dict[str, float]:
    return {
        "total_blocks": cache.total_blocks,
        "free_blocks": cache.free_blocks,
        "cached_blocks": cache.cached_blocks,
        "live_blocks": cache.live_blocks,
    }


def _numbers(counters: object) -> dict[str, float]:
    assert is_dataclass(counters)
    values = {f.name: getattr(counters, f.name) for f in fields(counters)}
    return {name: value for name, value in values.items() if isinstance(value, int | float)}
