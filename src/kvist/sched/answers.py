"""What the tiers answered comes down: to the sequences that asked, and to the counters."""

from __future__ import annotations

from kvist.cache.cache import Cache
from kvist.sched.carry import Carry
from kvist.sched.counters import Counters
from kvist.sched.restores import Restores
from kvist.step import StepResult

MOST_KEPT = 64
"""Answers to drops that wait for somebody to fetch them."""


def take_answers(result: StepResult, restores: Restores, carry: Carry, counters: Counters, cache: Cache) -> None:
    """Every answer in a result, each to whom it concerns."""
    for found in result.found:
        restores.found(found)
    for loaded in result.loaded:
        restores.loaded(loaded)
    for kept in result.kept:
        counters.saved_blocks += kept.stored
        counters.known_blocks += kept.known
        counters.lost_blocks += kept.lost
        cache.unkept(carry.kept(kept))
    for dropped in result.dropped:
        carry.dropping.pop(dropped.id, None)
        while len(carry.dropped) >= MOST_KEPT:
            del carry.dropped[next(iter(carry.dropped))]
        carry.dropped[dropped.id] = dropped
