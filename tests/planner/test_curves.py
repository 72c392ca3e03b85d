"""Curves go through the plan itself, and turn where it says."""

from dataclasses import replace

import pytest
from hand_plans import DEVICE, FORTY, hand_plan

from kvist.planner.decide.curves import latency_curve, memory_curve, roofline_points
from kvist.planner.setup import MOST_USERS


def test_memory_goes_through_the_plan_and_ends_at_the_models_context():
    plan = hand_plan(users=10, hit_rate=0.5)
    curve = memory_curve(plan)
    at = curve.contexts.index(plan.load.context_tokens)
    assert set(curve.cache_bytes) == {1, 10, 20}
    assert curve.cache_bytes[10][at] == 10 * plan.request_bytes + plan.shared_bytes
    assert curve.contexts[-1] == FORTY["max_position_embeddings"]
    assert list(curve.cache_bytes[10]) == sorted(curve.cache_bytes[10])
    assert curve.usable_bytes - sum(size for _, size in curve.terms) == pytest.approx(plan.budget.available.best)
    assert curve.total_bytes == DEVICE.memory_bytes


def test_latency_goes_through_the_plan():
    plan = hand_plan(users=10)
    points = {p.users: p for p in latency_curve(plan)}
    assert points[10].tpot == plan.latency.tpot and points[10].burst_mean_s == plan.latency.burst.mean_s
    assert max(points) == 2 * plan.users_fit[1] and min(points) == 1
    seconds = [points[n].tpot.best for n in sorted(points)]
    assert seconds == sorted(seconds) and seconds[-1] > 1.5 * seconds[0]


@pytest.mark.parametrize("tp", [1, 2])
def test_points_lie_under_the_roof(tp):
    points = roofline_points(hand_plan(users=10, tp=tp))
    assert [p.name.split(",")[0] for p in points] == ["decode", "decode", "prefill"]
    for p in points:
        roof = min(DEVICE.flops_for("bf16"), p.flops_per_byte * DEVICE.bandwidth_bytes_per_s)
        assert 0 < p.flops_per_s < roof
    assert points[0].flops_per_byte < points[1].flops_per_byte < points[2].flops_per_byte
    assert len(roofline_points(hand_plan(users=1, tp=tp))) == 2


def test_latency_stops_at_the_most_users_that_can_be_asked_for():
    plan = hand_plan(users=10)
    crowded = replace(plan, users_fit=(0, MOST_USERS - 1, MOST_USERS))
    points = latency_curve(crowded)
    assert max(p.users for p in points) == MOST_USERS
