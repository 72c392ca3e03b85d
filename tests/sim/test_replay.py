"""Traces in virtual time, and the table of costs."""

import pytest

from kvist.cost.table import CostTable
from kvist.errors import BadValue, PoolTooSmall
from kvist.sim.clock import VirtualClock
from kvist.sim.run import Arrival, replay
from paperwork import B, ask, paper, words


def trace(n=12, gap_s=0.004, shared=3 * B):
    return [Arrival(i * gap_s, ask(f"r{i}", (*words(shared, i % 2), *words(10, i)), 12)) for i in range(n)]


COST = CostTable.linear(2e-3, 2e-5, 1e-7)


def test_a_trace_in_virtual_time():
    p = paper(budget=64, cost=COST)
    outcome = replay(p, trace())
    assert len(outcome.timelines) == 12 and not outcome.refused
    assert [line.arrived_s for line in sorted(outcome.timelines, key=lambda t: t.seq)] == pytest.approx(
        [i * 0.004 for i in range(12)], abs=COST.step_s(64, 600)
    )
    assert all(line.ttft_s >= COST.step_s(1, 0) and line.tpot_s >= 2e-3 for line in outcome.timelines)
    assert all(len(tokens) == 12 for tokens in outcome.outputs.values())
    assert sum(line.usage.cached_tokens for line in outcome.timelines) > 0


def test_the_same_trace_twice_takes_the_same_time():
    one, two = paper(budget=64, cost=COST), paper(budget=64, cost=COST)
    a, b = replay(one, trace()), replay(two, trace())
    assert a.timelines == b.timelines and a.outputs == b.outputs
    assert one.clock.now() == two.clock.now() > 0


def test_hits_save_virtual_time():
    def mean_ttft(reuse):
        lines = replay(paper(budget=32, cost=COST, reuse=reuse), trace(gap_s=0.05)).timelines
        return sum(line.ttft_s for line in lines) / len(lines)

    assert mean_ttft(True) < 0.8 * mean_ttft(False)


def test_idle_time_is_skipped_and_refusals_are_kept():
    p = paper(blocks=8, cost=COST)
    outcome = replay(p, [Arrival(1000.0, ask("late", words(5), 2)), Arrival(1.0, ask("huge", words(2000), 2))])
    assert isinstance(outcome.refused["huge"], PoolTooSmall)
    (line,) = outcome.timelines
    assert line.arrived_s == 1000.0 and line.queue_s == 0


def test_tables_interpolate_and_prolong():
    table = CostTable((1, 10, 100), (1.0, 2.0, 11.0), kv_token_s=0.5)
    assert [table.step_s(n, 0) for n in (1, 10, 55, 100, 200)] == pytest.approx([1.0, 2.0, 6.5, 11.0, 21.0])
    assert table.step_s(10, 4) == pytest.approx(4.0)
    assert table.step_s(0, 0) == pytest.approx(1 - 1 / 9)
    assert CostTable((10, 20), (0.1, 1.0)).step_s(0, 0) == 0.0
    assert CostTable.linear(1.0, 2.0, 3.0).step_s(5, 7) == pytest.approx(1 + 10 + 21)


@pytest.mark.parametrize(
    "tokens,seconds", [((1,), (1.0,)), ((1, 2), (1.0,)), ((2, 1), (1.0, 2.0)), ((1, 1), (1.0, 2.0))]
)
def test_bad_tables_are_refused(tokens, seconds):
    with pytest.raises(BadValue):
        CostTable(tokens, seconds)


def test_time_does_not_go_back():
    clock = VirtualClock(3.0)
    clock.advance_to(2.0)
    assert clock.now() == 3.0
    with pytest.raises(AssertionError):
        clock.advance(-1)
