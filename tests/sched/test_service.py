"""The token counter of tenants."""

import pytest

from kvist.errors import BadValue
from kvist.sched.service import IDLE_TENANTS, Service


def test_tokens_over_weight():
    service = Service({"a": 4.0})
    for tenant in "ab":
        service.join(tenant)
    for tenant in "ab":
        service.charge(tenant, 100)
    assert service.totals() == {"a": 100, "b": 100}
    assert service.level("a") == 25 and service.level("b") == 100


def test_idle_time_is_not_saved_up():
    service = Service({})
    service.join("a")
    service.charge("a", 500)
    service.join("b")
    assert service.level("b") == 500, "lifted to the least of the active"
    service.charge("b", 50)
    service.part("b")
    service.charge("a", 1000)
    service.join("b")
    assert service.level("b") == 1500
    service.charge("b", 7)
    service.part("a")
    service.join("a")
    assert service.level("a") == 1507, "not lowered, lifted"
    assert service.totals() == {"a": 1500, "b": 57}, "lifting is no service"


def test_when_nobody_is_active_the_last_to_leave_counts():
    service = Service({})
    service.join("a")
    service.charge("a", 900)
    service.part("a")
    service.join("b")
    assert service.level("b") == 900


def test_debt_stays():
    service = Service({})
    for tenant in "ab":
        service.join(tenant)
    service.charge("a", 900)
    service.part("a")
    service.join("a")
    assert (service.level("a"), service.level("b")) == (900, 0)


def test_pledges_count_until_the_plan_is_over():
    service = Service({"a": 2.0})
    service.join("a")
    service.pledge("a", 30)
    service.pledge("a", 10)
    assert service.level("a") == 20 and service.totals() == {"a": 0}
    service.settle()
    assert service.level("a") == 0


def test_a_tenant_is_active_until_its_last_sequence_ends():
    service = Service({})
    for _ in range(2):
        service.join("a")
    service.part("a")
    service.charge("a", 10)
    service.join("b")
    assert service.level("b") == 10


def test_tenants_that_left_long_ago_are_forgotten():
    service = Service({})
    for i in range(IDLE_TENANTS + 500):
        service.join(f"t{i}")
        service.charge(f"t{i}", 1)
        service.part(f"t{i}")
    assert len(service.totals()) == IDLE_TENANTS and "t0" not in service.totals()
    assert len(service._levels) == IDLE_TENANTS


@pytest.mark.parametrize("weight", [0, -1.0, float("nan"), float("inf")])
def test_weights_are_above_zero(weight):
    with pytest.raises(BadValue, match="weights"):
        Service({"a": weight})
