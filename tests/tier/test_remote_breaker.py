"""The switch in front of a remote place, and calls that are given up."""

import logging
import threading
import time

import pytest

from kvist.tier.remote.breaker import Breaker
from kvist.tier.remote.calls import Calls
from kvist.tier.remote.lanes import Lanes


class Clock:
    def __init__(self) -> None:
        self.t = 100.0

    def __call__(self) -> float:
        return self.t


def tripped(clock: Clock, **knobs) -> Breaker:
    breaker = Breaker("place://x", failures=3, now=clock, **knobs)
    for _ in range(3):
        assert breaker.allows()
        breaker.bad("no")
    assert breaker.off
    return breaker


def test_it_stays_on_through_single_failures():
    breaker = Breaker("place://x", failures=3, now=Clock())
    for _ in range(5):
        breaker.bad("no")
        breaker.bad("no")
        assert breaker.allows() and not breaker.off and breaker.reason == ""
        breaker.good()


def test_while_off_one_caller_a_pause_is_let_through():
    clock = Clock()
    breaker = tripped(clock, pause_s=1.0)
    assert not breaker.allows()
    clock.t += 0.99
    assert not breaker.allows()
    clock.t += 0.02
    assert [breaker.allows() for _ in range(5)] == [True, False, False, False, False]


def test_pauses_double_up_to_a_minute_and_begin_again_after_success():
    clock = Clock()
    breaker = tripped(clock, pause_s=1.0, most_pause_s=60.0)
    for pause_s in (1, 2, 4, 8, 16, 32, 60, 60):
        clock.t += pause_s - 0.01
        assert not breaker.allows()
        clock.t += 0.02
        assert breaker.allows()
        breaker.bad("still no")
    clock.t += 60.0
    assert breaker.allows()
    breaker.good()
    assert not breaker.off and breaker.allows()
    for _ in range(3):
        breaker.bad("again")
    clock.t += 1.01
    assert breaker.allows()


def test_a_probe_that_never_reports_blocks_nobody_for_ever():
    clock = Clock()
    breaker = tripped(clock, pause_s=1.0)
    clock.t += 1.1
    assert breaker.allows() and not breaker.allows()
    clock.t += 1.1
    assert breaker.allows()


def test_one_log_line_a_change(caplog):
    clock = Clock()
    with caplog.at_level(logging.INFO, logger="kvist.tier"):
        breaker = tripped(clock)
        for _ in range(5):
            clock.t += 60
            assert breaker.allows()
            breaker.bad("no")
        assert "place://x" in breaker.reason and "no" in breaker.reason and "\n" not in breaker.reason
        breaker.good()
        breaker.good()
    assert [r.levelname for r in caplog.records] == ["WARNING", "INFO"]


def test_a_call_that_is_late_is_given_up_and_one_not_begun_is_never_made():
    calls, gate, made = Calls(1, "test"), threading.Event(), []
    slow = calls.begin(lambda: gate.wait(10))
    queued = calls.begin(lambda: made.append(1))
    t = time.monotonic()
    for call in (slow, queued):
        with pytest.raises(TimeoutError):
            call.result(time.monotonic() + 0.05)
    assert time.monotonic() - t < 1.0
    gate.set()
    assert calls.begin(lambda: 7).result(time.monotonic() + 5) == 7
    assert made == []
    with pytest.raises(ZeroDivisionError):
        calls.begin(lambda: 1 // 0).result(time.monotonic() + 5)
    calls.close()


def test_a_lane_comes_back_only_when_its_call_has_ended():
    """F033: memory that a library may still write to is lent to nobody else."""
    calls = Calls(2, "test")
    lanes, gate = Lanes(2, 64, calls), threading.Event()
    addresses = []

    def fill(hang: bool):
        def function(address: int) -> int:
            addresses.append(address)
            return gate.wait(10) if hang else 0

        return lambda lane: function

    def soon(seconds: float = 0.1) -> float:
        return time.monotonic() + seconds

    with pytest.raises(TimeoutError):
        lanes.run(soon(), fill(hang=True), lambda lane, r: None)
    for _ in range(3):
        lanes.run(soon(5), fill(hang=False), lambda lane, r: None)
    assert len(set(addresses[1:])) == 1 and addresses[0] not in addresses[1:]
    with pytest.raises(TimeoutError):
        lanes.run(soon(), fill(hang=True), lambda lane, r: None)
    with pytest.raises(TimeoutError):
        lanes.run(soon(), fill(hang=False), lambda lane, r: None)
    gate.set()
    lanes.run(soon(5), fill(hang=False), lambda lane, r: None)
    calls.close()
