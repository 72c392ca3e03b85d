"""The end of a server with tiers: what it was to keep is kept, within bounds; and its thread neither spins nor dies."""

import time
from threading import Thread

import httpx
import pytest
from served_kit import running
from tier_served_kit import Ended, serving, tiered

from kvist.sim.tiers import PaperTier

LONG = list(range(1000, 1200))


def test_whatever_is_full_is_in_the_tier_after_the_end():
    tier, ended = PaperTier("disk"), Ended()
    with serving(tiered(tiers=(tier,), ended=ended, when="back", step_s=0.002)) as client:
        client.complete(LONG, n=30)
    assert len(tier.records) == (200 + 29) // 16
    assert len(ended.closes) == 1 and 0 < ended.closes[0] <= 5.0


def test_running_answers_are_aborted_first_and_what_they_computed_is_kept():
    tier, ended = PaperTier("disk"), Ended()
    with running(tiered(tiers=(tier,), ended=ended, step_s=0.02, when="back"), drain_s=0.2) as server:
        body = {"prompt": LONG, "max_tokens": 4000, "ignore_eos": True, "stream": True}
        with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.host.stop()
            rest = [line for line in lines if line]
        assert '"finish_reason":"abort"' in rest[-2].replace(" ", "") or "abort" in "".join(rest[-3:])
    assert len(ended.closes) == 1
    assert len(tier.records) >= 200 // 16


def test_tiers_that_take_too_long_do_not_hold_the_end_up():
    ended = Ended(takes_s=60, written=False)
    start = time.monotonic()
    with serving(tiered(ended=ended)) as client:
        client.complete(LONG)
    assert len(ended.closes) == 1 and time.monotonic() - start < 15


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_tiers_are_closed_when_the_engine_dies():
    ended = Ended()
    what = tiered(ended=ended)
    with serving(what) as client:

        def step():
            raise RuntimeError("a bug")

        what.engine.step = step
        assert client.post("/v1/completions", {"prompt": LONG, "max_tokens": 4}).status_code == 500
    assert len(ended.closes) == 1


def test_a_prompt_too_short_for_the_tiers_does_no_harm():
    """Blocks that are never sent leave the engine with nothing to plan: that is no fault."""
    with serving(tiered(min_tokens=1000)) as client:
        for n in range(40, 57):
            client.complete(LONG[:n])
            client.settled()
        assert client.get("/health").status_code == 200


def test_an_idle_engine_sleeps_and_wakes_at_once():
    what = tiered()
    with serving(what) as client:
        client.complete(LONG)
        client.settled()
        steps = []
        step, what.engine.step = what.engine.step, lambda: steps.append(1) or step()
        time.sleep(0.3)
        assert not steps
        start = time.monotonic()
        client.complete(LONG[:8], n=1)
        assert time.monotonic() - start < 0.5 and len(steps) < 10


def test_while_tiers_are_waited_for_the_thread_does_not_spin_and_others_go_on():
    """A slow tier: waits are of 5 ms, and a request that needs nothing from it is answered meanwhile."""
    tier = PaperTier("disk")
    what = tiered(tiers=(tier,))
    with serving(what) as client:
        client.complete(LONG)
        client.forget_pool()
        tier.latency_s = 0.6
        steps = []
        step, what.engine.step = what.engine.step, lambda: steps.append(1) or step()
        slow = Thread(target=client.complete, args=(LONG,))
        slow.start()
        time.sleep(0.1)
        start = time.monotonic()
        client.complete([7, 8, 9], n=1)
        assert time.monotonic() - start < 0.4
        slow.join(20)
        assert not slow.is_alive() and len(steps) < 600
