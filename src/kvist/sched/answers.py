"""What the tiers answered comes down: to the sequences that asked, and to the counters."""

from __future__ import annotations

from kvist.sched.carry import Carry
from kvist.sched.counters import Counters
from kvist.sched.restores import Restores
from kvist.step import StepResult


def take_answers(result: StepResult, restores: Restores, carry: Carry, counters: Counters) -> None:
    """Every answer in a result, each to whom it concerns."""
    for found in result.found:
        restores.found(found)
    for loaded in result.loaded:
        restores.loaded(loaded)
    for kept in result.kept:
        counters.saved_blocks += kept.stored
        counters.known_blocks += kept.known
        counters.lost_blocks += kept.lost
    for dropped in result.dropped:
        carry.dropping.discard(dropped.id)
        carry.dropped[dropped.id] = dropped
