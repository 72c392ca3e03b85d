"""Several samples of one prompt: computed once, forked, independent ever after."""

import pytest

from kvist.spec.sampling import Sampling
from paperwork import (
    LAYOUTS,
    MODEL,
    B,
    Outcome,
    ask,
    books,
    check,
    computed_of,
    drive,
    paper,
    recorded,
    same_as_alone,
    words,
)

DRAWN = Sampling(temperature=1.0, seed=40)


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("rest", [0, 1, B - 1])
def test_f037_samples_share_the_prompt_and_nothing_else(layout, rest):
    prompt = words(3 * B + rest)
    request = ask("r", prompt, 24, n=4, sampling=DRAWN)
    p = paper(layout, budget=32)
    log = recorded(p)
    seqs = p.engine.add(request)
    out = Outcome()
    while len(out.tokens) < 4:
        out.note(p.engine.step())
    cache = p.engine.scheduler.cache
    check(p)
    tables = [cache.table(s) for s in seqs]
    span = LAYOUTS[layout].span_tokens
    for group, rule in enumerate(LAYOUTS[layout].groups):
        whole = len(prompt) // span * span // rule.tokens_per_block
        assert len({t[group][:whole] for t in tables}) == 1, "whole blocks of the prompt are shared"
        tails = [b for t in tables for b in t[group][whole:] if b >= 0]
        assert len(set(tails)) == len(tails), "what is written to is one's own"
    drive(p, outcome=out)
    same_as_alone(layout, out, [request])
    assert len({tuple(t) for t in out.tokens.values()}) == 4
    assert p.engine.scheduler.counters.forks == 3
    computed = [sum(min(b, len(prompt)) - a for a, b in computed_of(log, s) if a < len(prompt)) for s in seqs]
    assert computed == [len(prompt), 0, 0, 0]


@pytest.mark.parametrize("victim", [0, 1, 3])
@pytest.mark.parametrize("moment", range(1, 9))
def test_f037_aborting_one_sample_leaves_its_siblings(victim, moment):
    request = ask("r", words(2 * B + 5), 12, n=4, sampling=DRAWN)
    p = paper("hybrid", budget=16)
    seqs = p.engine.add(request)

    def leave(q):
        if q.engine.scheduler.counters.steps == moment:
            return q.engine.abort(seqs[victim])

    out = drive(p, each_step=leave)
    assert out.reason("r", victim) == "abort"
    same_as_alone("hybrid", out, [request])
    assert all(len(out.tokens["r", i]) == 12 for i in range(4) if i != victim)


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("moment", range(6))
def test_f037_aborted_while_the_step_runs(victim, moment):
    request = ask("r", words(2 * B + 5), 12, n=3, sampling=DRAWN)
    p = paper(budget=16)
    log = recorded(p)
    seqs = p.engine.add(request)
    out = Outcome()

    def leave(plan):
        if plan.step == moment:
            out.note(p.engine.abort(seqs[victim]))

    log.after = leave
    drive(p, outcome=out)
    same_as_alone("full", out, [request])
    for i in range(3):
        if moment and i == victim:
            assert out.reason("r", i) == "abort"
        else:
            assert len(out.tokens["r", i]) == 12


def test_aborting_a_request_stops_all_samples():
    p = paper()
    p.engine.add(ask("r", words(40), 50, n=4))
    for _ in range(5):
        p.engine.step()
    events = p.engine.abort("r")
    assert [e.sample for e in events] == [0, 1, 2, 3]
    assert {e.finish_reason for e in events} == {"abort"}
    drive(p)


def test_f088_seeds_indices_and_counting():
    request = ask("r", words(37), 20, n=4, sampling=Sampling(seed=9), stop_ids=tuple(range(0, 1000, 25)))
    p = paper(model=MODEL)
    first = drive(p, request)
    again = drive(p, request)
    assert first.tokens == again.tokens and len({tuple(t) for t in first.tokens.values()}) == 4
    assert {sample for _, sample in first.tokens} == {0, 1, 2, 3}
    assert len({len(t) for t in first.tokens.values()}) > 1, "one child stops early"
    assert {first.reason("r", i) for i in range(4)} >= {"stop"}
    counters = p.engine.scheduler.counters
    assert counters.requests == 2 and counters.sequences == 8
    assert counters.prompt_tokens == 2 * 37
    assert counters.cached_tokens == 36
    same_as_alone("full", first, [request], model=MODEL)


def test_samples_of_one_token_never_fork():
    p = paper()
    out = drive(p, ask("r", words(37), 1, n=4, sampling=DRAWN))
    assert all(len(out.tokens["r", i]) == 1 for i in range(4))
    assert p.engine.scheduler.counters.forks == 0


@pytest.mark.parametrize("layout", ["full", "hybrid"])
def test_children_that_cannot_fork_come_later_with_a_hit(layout):
    request = ask("r", words(3 * B + 5), 30, n=5, sampling=DRAWN)
    tight = 6 if layout == "full" else 11
    for more in ({"blocks": tight}, {"sequences": 2}):
        p = paper(layout, **more)
        out = drive(p, request)
        same_as_alone(layout, out, [request])
        counters = p.engine.scheduler.counters
        assert counters.late_forks > 0
        assert counters.sibling_hit_tokens > 0 or "blocks" in more
        assert counters.cached_tokens == 0 and counters.prompt_tokens == len(request.prompt)
        assert all(out.usage("r", i).preemptions <= 3 for i in range(5))


def test_children_get_the_prompt_logprobs_of_the_parent():
    prompt = words(40)
    out = drive(paper(budget=16), ask("r", prompt, 4, n=3, sampling=DRAWN, prompt_logprobs=1))
    lists = [e.prompt_logprobs for e in out.events if e.index == 0]
    assert len(lists) == 3 and len(set(lists)) == 1 and len(lists[0]) == 40


def test_a_fork_that_never_ran_leaves_nothing_behind():
    prompt = words(2 * B + 9)
    p = paper()
    seqs = p.engine.add(ask("r", prompt, 20, n=3, sampling=DRAWN))
    p.engine.step()
    assert p.engine.scheduler.counters.forks == 2
    for seq in reversed(seqs):
        p.engine.abort(seq)
    books(p)
    out = drive(p, ask("again", prompt, 4))
    assert out.usage("again").cached_tokens == len(prompt) - 1
    same_as_alone("full", out, [ask("again", prompt, 4)])


def test_the_heir_of_an_aborted_sample_does_not_count_the_prompt_again():
    p = paper(budget=B)
    seqs = p.engine.add(ask("r", words(3 * B + 5), 4, n=3, sampling=DRAWN))
    out = Outcome()
    out.note(p.engine.step() + p.engine.step() + p.engine.abort(seqs[0]))
    drive(p, outcome=out)
    counters = p.engine.scheduler.counters
    assert counters.prompt_tokens == 3 * B + 5
    assert counters.cached_tokens == 0 and counters.sibling_hit_tokens == 2 * B
    p = paper(budget=B)
    seqs = p.engine.add(ask("r", words(3 * B + 5), 4, n=3, sampling=DRAWN))
    out = Outcome()
    out.note(p.engine.abort(seqs[0]))
    drive(p, outcome=out)
    assert p.engine.scheduler.counters.prompt_tokens == 3 * B + 5


def test_samples_that_wait_hold_no_prompts():
    """128 samples of a long prompt in the queue hold it once; each has its own when it draws or queues."""
    p = paper(budget=64, blocks=100)
    request = ask("r", words(70), 3, n=128, sampling=DRAWN)
    seqs = p.engine.add(request)
    scheduler = p.engine.scheduler
    live = [scheduler.sequence(s) for s in seqs]
    assert sum(len(s.tokens) for s in live) == 70 and all(s.output_tokens == 0 for s in live)
    out = Outcome()
    out.note(p.engine.abort(seqs[5]) + p.engine.finish(seqs[6], "stop", 0))
    assert out.usage("r", 5).output_tokens == out.usage("r", 6).output_tokens == out.last["r", 5].index == 0
    out.note(p.engine.step() + p.engine.abort(seqs[0]))
    heirs = [s for s in live if s.tokens and s.finish_reason is None]
    assert heirs == [live[1]] and live[1].tokens == list(request.prompt)
    drive(p, outcome=out)
    assert all(len(out.tokens["r", i]) == 3 for i in range(128) if i not in (0, 5, 6))
    same_as_alone("full", out, [ask("r", request.prompt, 3, n=5, sampling=DRAWN)])
