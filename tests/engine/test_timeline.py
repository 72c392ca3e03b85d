"""What the engine says of each sequence, of those who wait, and of tenants."""

import pytest

from paperwork import SLOW, B, Outcome, ask, drive, paper, words


def test_what_was_found_and_when_the_prompt_was_there():
    p = paper(budget=2 * B, blocks=100, cost=SLOW)
    prompt = words(5 * B)
    (a,) = p.engine.add(ask("a", prompt, 3, tenant="x"))
    (b,) = p.engine.add(ask("b", (*prompt[: 4 * B + 2], *words(9, 4)), 3, tenant="y"))
    drive(p)
    first, second = p.engine.timeline(a), p.engine.timeline(b)
    assert (first.tenant, first.prompt_tokens, first.led, first.matched.reason) == ("x", 5 * B, False, "empty")
    assert (second.tenant, second.led, second.matched.cached_tokens) == ("y", True, 4 * B)
    assert second.usage.cached_tokens == 4 * B
    for line in (first, second):
        assert line.arrived_s <= line.admitted_s < line.computed_s <= line.first_token_s < line.done_s
    assert p.engine.metrics()["sched_miss_empty"] == 1 == p.engine.metrics()["sched_led_admissions"]


def test_the_prompt_is_there_before_anybody_is_told():
    class Ticking:
        seconds = 0

        def now(self):
            self.seconds += 1
            return self.seconds

    p = paper(budget=2 * B, blocks=100)
    p.engine._clock = Ticking()
    (seq,) = p.engine.add(ask("a", words(5 * B), 3))
    drive(p)
    line = p.engine.timeline(seq)
    assert line.admitted_s < line.computed_s < line.first_token_s < line.done_s


def test_misses_are_counted_once_per_request():
    p = paper(blocks=100)
    prompt = words(4 * B)
    for name, tail, more in (("a", (), {}), ("b", words(5, 2), {}), ("c", (), {"reuse": False}), ("d", (), {})):
        drive(p, ask(name, (*prompt, *tail), 2, n=2, **more))
    m = p.engine.metrics()
    assert {k.removeprefix("sched_miss_"): v for k, v in m.items() if k.startswith("sched_miss_") and v} == {
        "empty": 1,
        "diverged": 1,
        "off": 1,
        "limit": 1,
    }
    assert sum(v for k, v in m.items() if k.startswith("sched_miss_")) == m["sched_requests"] == 4


def test_recomputed_tokens_and_first_lookup_stay_with_the_sequence():
    p = paper(blocks=100)
    (seq,) = p.engine.add(ask("r", words(40), 9, reuse=False))
    out = Outcome()
    for _ in range(4):
        out.note(p.engine.step())
    computed = p.engine.timeline(seq).computed_s
    assert p.engine.scheduler.preempt(seq)
    drive(p, outcome=out)
    line = p.engine.timeline(seq)
    assert line.recomputed == line.usage.recomputed_tokens > 40 and line.computed_s == computed
    assert line.matched.reason == "off"


def test_samples_have_the_prompt_when_the_first_has_it():
    p = paper(blocks=100, budget=2 * B, cost=SLOW)
    seqs = p.engine.add(ask("r", words(3 * B), 3, n=3))
    drive(p)
    lines = [p.engine.timeline(s) for s in seqs]
    assert len({line.computed_s for line in lines}) == 1
    assert [line.matched is None for line in lines] == [False, True, True]


def test_samples_were_admitted_when_the_first_was():
    """The seconds in the queue hold no seconds of computing."""
    p = paper(blocks=100, budget=2 * B, cost=SLOW)
    seqs = p.engine.add(ask("r", words(9 * B), 3, n=3))
    p.clock.advance(0.001)
    drive(p)
    lines = [p.engine.timeline(s) for s in seqs]
    assert len({line.admitted_s for line in lines}) == 1
    assert 0 < lines[1].queue_s == lines[0].queue_s < lines[1].ttft_s / 2


def test_those_who_wait_are_counted_by_what_they_wait_for():
    p = paper(blocks=12, budget=64 * B, sequences=3)
    prompt = words(5 * B, 1)
    for name, tokens in (("a", prompt), ("b", prompt), ("large", words(9 * B, 2)), ("c", words(B, 3))):
        p.engine.add(ask(name, tokens, 4))
    for i in range(5):
        p.engine.add(ask(f"q{i}", words(B, 10 + i), 4))
    out = Outcome()
    out.note(p.engine.step())
    m = p.engine.metrics()
    assert m["waiting_leader"] == 1 and m["waiting_capacity"] == 1 and m["waiting_queue"] == 4
    assert m["waiting_sequences"] == 6 and m["running_sequences"] == 3
    drive(p, outcome=out)
    assert p.engine.metrics()["waiting_sequences"] == 0


@pytest.mark.parametrize("n", [1, 3])
def test_service_is_what_was_computed_and_drawn(n):
    p = paper(blocks=100)
    drive(p, ask("a", words(50, 1), 5, tenant="x", n=n), ask("b", words(30, 2), 5, tenant="y"))
    assert p.engine.scheduler.service() == {"x": 50 + 5 * n, "y": 35}
