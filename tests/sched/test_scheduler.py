"""The scheduler's decisions, read from its letters."""

import pytest

from kvist.cache.cache import Cache
from kvist.errors import BadValue, StateError
from kvist.sched.order.fcfs import Fcfs
from kvist.sched.scheduler import Scheduler
from kvist.spec.sampling import Sampling
from kvist.step import Sampled, StepResult
from paperwork import GREEDY, LAYOUTS, MODEL, B, Outcome, ask, drive, paper, recorded, words


def scheduler(blocks=64, budget=64, **more):
    given = {"token_budget": budget, "max_sequences": 8, "context_tokens": 4096, "policy": Fcfs()} | more
    return Scheduler(Cache(LAYOUTS["full"], blocks=blocks), LAYOUTS["full"], **given)


def answer(plan, token=5):
    return StepResult(plan.step, tuple(Sampled(s.seq, s.index, token) for s in plan.samples))


@pytest.mark.parametrize("name", ["token_budget", "max_sequences", "context_tokens", "chunk_tokens"])
def test_knobs_below_one_are_refused(name):
    with pytest.raises(BadValue) as caught:
        scheduler(**{name: 0})
    assert caught.value.name == name


def test_nothing_to_do_is_no_plan():
    s = scheduler()
    assert s.idle and s.plan() is None


def test_one_request_from_first_chunk_to_last_token():
    s = scheduler(budget=16)
    (seq,) = s.add(ask("r", words(20), 3))
    first = s.plan()
    assert [(c.start, len(c.tokens), c.logit_rows) for c in first.chunks] == [(0, 16, ())]
    assert first.new[0].prompt == words(20) and first.samples == ()
    assert s.commit(answer(first)) == []
    second = s.plan()
    assert [(c.start, len(c.tokens), c.logit_rows) for c in second.chunks] == [(16, 4, (3,))]
    assert [(x.seq, x.chunk, x.row, x.index) for x in second.samples] == [(seq, 0, 3, 0)]
    assert second.new == ()
    (event,) = s.commit(answer(second))
    assert (event.token, event.index, event.finish_reason) == (5, 0, None)
    third = s.plan()
    assert [(c.start, c.tokens) for c in third.chunks] == [(20, (5,))]
    s.commit(answer(third))
    (event,) = s.commit(answer(s.plan()))
    assert (event.index, event.finish_reason, event.usage.output_tokens) == (2, "length", 3)
    assert s.idle and s.cache.live_blocks == 0


def test_the_executor_is_told_to_forget_with_the_next_plan():
    s = scheduler()
    (a,) = s.add(ask("a", words(5), 1))
    s.commit(answer(s.plan()))
    s.add(ask("b", words(5, 1), 1))
    assert s.plan().forget == (a,)


def test_one_plan_at_a_time_and_only_its_own_answer():
    s = scheduler()
    s.add(ask("a", words(5), 4))
    with pytest.raises(StateError):
        s.commit(StepResult(1))
    plan = s.plan()
    with pytest.raises(StateError):
        s.plan()
    for wrong in (
        StepResult(plan.step + 1),
        StepResult(plan.step),
        StepResult(plan.step, answer(plan).sampled, epoch=3),
    ):
        with pytest.raises(StateError):
            s.commit(wrong)
    assert s.commit(answer(plan))[0].token == 5


def test_a_living_request_id_is_refused():
    s = scheduler()
    s.add(ask("a", words(5)))
    with pytest.raises(BadValue):
        s.add(ask("a", words(5)))
    s.abort("a")
    s.add(ask("a", words(5)))


def test_decodes_go_on_in_every_step_beside_the_chunks_of_a_long_prompt():
    p = paper(budget=16, blocks=200)
    log = recorded(p)
    short = [p.engine.add(ask(f"s{i}", words(4, i), 60))[0] for i in range(3)]
    out = Outcome()
    out.note(p.engine.step() + p.engine.step())
    (long,) = p.engine.add(ask("long", words(400, 9), 2))
    drive(p, outcome=out)
    during = [plan for plan in log.plans if any(c.seq == long for c in plan.chunks)]
    chunked = [plan for plan in during if any(c.seq == long and len(c.tokens) > 1 for c in plan.chunks)]
    assert len(chunked) == -(-400 // 13)
    for plan in chunked:
        assert {c.seq for c in plan.chunks} == {*short, long}
        assert plan.computed_tokens <= 16
    assert p.engine.metrics()["sched_mixed_steps"] == len(chunked)


def test_f111_decodes_and_small_requests_go_on_beside_a_prompt_of_a_hundred_chunks():
    def run(*, crowd):
        p = paper(budget=64, blocks=600, chunk=32)
        log = recorded(p)
        out = Outcome()
        decodes = [p.engine.add(ask(f"d{i}", words(4, i), 150))[0] for i in range(8 if crowd else 0)]
        for _ in range(2 if crowd else 0):
            out.note(p.engine.step())
        before = len(log.plans)
        (long,) = p.engine.add(ask("long", words(3200, 99), 1))
        small = []

        def arrive(q):
            if crowd and len(small) < 20 and q.engine.scheduler.counters.steps % 4 == 0:
                small.append((len(log.plans), q.engine.add(ask(f"s{len(small)}", words(8, 200 + len(small)), 3))[0]))

        drive(p, outcome=out, each_step=arrive, audit=10)
        during = [plan for plan in log.plans[before:] if any(c.seq == long for c in plan.chunks)]
        return log, decodes, small, during

    alone_, crowded = run(crowd=False), run(crowd=True)
    log, decodes, small, during = crowded
    assert len(small) == 20
    for plan in during:
        assert set(decodes) <= {c.seq for c in plan.chunks}
    for arrived, seq in small:
        first = next(i for i, plan in enumerate(log.plans) if any(s.seq == seq for s in plan.samples))
        assert first - arrived <= 1, "unloaded it takes one step"
    assert len(during) <= 1.3 * len(alone_[3])


def test_priority_goes_first_and_is_preempted_last():
    p = paper(blocks=200, budget=16, sequences=2)
    for name, priority in (("a", 0), ("b", 0), ("c", 5)):
        p.engine.add(ask(name, words(20, hash(name) % 97), 4, priority=priority))
    order = [event.request for event in p.engine.run() if event.finish_reason]
    assert order[0] == "c"


def test_stop_ids_end_a_sequence_unless_ignored_or_barred():
    plain = drive(paper(model=MODEL), ask("r", words(9), 30)).tokens["r", 0]
    stop = plain[10]
    assert stop not in plain[:10]
    out = drive(paper(model=MODEL), ask("r", words(9), 30, stop_ids=(stop,)))
    assert out.tokens["r", 0] == plain[:11] and out.reason("r") == "stop"
    out = drive(paper(model=MODEL), ask("r", words(9), 30, stop_ids=(stop,), ignore_eos=True))
    assert out.tokens["r", 0] == plain and out.reason("r") == "length"
    late = Sampling(temperature=0.0, min_tokens=20)
    out = drive(paper(model=MODEL), ask("r", words(9), 30, stop_ids=(stop,), sampling=late))
    assert out.tokens["r", 0][:10] == plain[:10] and out.tokens["r", 0][10] != stop
    assert len(out.tokens["r", 0]) >= 20


def test_a_stop_id_below_min_tokens_is_a_token_like_any_other():
    s = scheduler()
    s.add(ask("r", words(5), 9, stop_ids=(5,), sampling=Sampling(temperature=0.0, min_tokens=2)))
    reasons = [s.commit(answer(s.plan()))[0].finish_reason for _ in range(3)]
    assert reasons == [None, None, "stop"]


def test_the_context_ends_a_sequence_with_length():
    out = drive(paper(context_tokens=32), ask("r", words(20), 100))
    assert len(out.tokens["r", 0]) == 12 and out.reason("r") == "length"


def test_finish_keeps_what_it_is_told_and_late_finishes_are_quiet():
    p = paper()
    (seq,) = p.engine.add(ask("r", words(20), 100))
    for _ in range(6):
        p.engine.step()
    with pytest.raises(BadValue):
        p.engine.finish(seq, "stop", 7)
    (event,) = p.engine.finish(seq, "stop", 3)
    assert (event.finish_reason, event.usage.output_tokens, event.index, event.token) == ("stop", 3, 3, None)
    assert p.engine.finish(seq, "stop", 3) == [] and p.engine.abort("r") == [] and p.engine.abort(99) == []
    drive(p)


def test_drafts_change_speed_and_nothing_else():
    request = ask("r", words(20), 60)
    plain = drive(paper("hybrid"), request).tokens["r", 0]
    p = paper("hybrid")
    log = recorded(p)

    def guess(q):
        for seq in q.engine.scheduler.running:
            at = seq.output_tokens
            right = plain[at : at + 3]
            wrong = [(t + 1) % 1000 for t in right]
            q.engine.scheduler.propose(seq.id, tuple(right if at % 3 else right[:1] + wrong[1:]))

    out = drive(p, request, each_step=guess)
    counters = p.engine.scheduler.counters
    assert out.tokens["r", 0] == plain
    assert 0 < counters.accepted_drafts < counters.drafted_tokens
    assert len(log.plans) < 40
    assert counters.sampled_tokens == 60


def test_drafts_get_what_a_newcomer_could_not_use():
    """A token set aside for one whom the pool does not take in goes to a draft of the one that merely continues."""
    request = ask("r", words(40), 30)
    plain = drive(paper("full"), request).tokens["r", 0]
    p = paper("full", blocks=6, budget=2)
    log, out = recorded(p), Outcome()
    (seq,) = p.engine.add(request)
    while p.engine.scheduler.sequence(seq).output_tokens < 5:
        out.note(p.engine.step())
    p.engine.add(ask("too large for now", words(50, seed=1), 20))
    assert p.engine.scheduler.propose(seq, tuple(plain[5:8]))
    out.note(p.engine.step())
    (chunk,) = log.plans[-1].chunks
    assert (chunk.seq, chunk.drafts, len(chunk.tokens)) == (seq, 1, 2)
    assert p.engine.scheduler.counters.accepted_drafts == 1
    assert drive(p, outcome=out).tokens["r", 0] == plain


def test_drafts_are_refused_where_they_cannot_be_taken_back():
    import dataclasses

    s = scheduler()
    (seq,) = s.add(ask("a", words(5)))
    assert not s.propose(seq, (1, 2))  # waiting
    s.layout = dataclasses.replace(s.layout, state_bytes=64)
    with pytest.raises(StateError):
        s.propose(seq, (1, 2))


def test_logprobs_come_with_the_tokens():
    out = drive(paper(), ask("r", words(20), 5, sampling=Sampling(temperature=0.0, logprobs=2)))
    tokens = [e for e in out.events if e.token is not None]
    assert all(e.logprob.token == e.token and len(e.logprob.top) == 2 for e in tokens)
    assert all(e.logprob is None for e in drive(paper(), ask("r", words(20), 5)).events)


def test_salt_and_extras_reach_the_cache():
    p = paper()
    prompt = words(3 * B + 2)
    for name, more, cached in (
        ("a", {}, 0),
        ("b", {}, 3 * B + 1),
        ("c", {"salt": b"x"}, 0),
        ("d", {"extras": (b"adapter" * 4,)}, 0),
        ("e", {"salt": b"x"}, 3 * B + 1),
        ("f", {"reuse": False}, 0),
    ):
        out = drive(p, ask(name, prompt, 2, sampling=GREEDY, **more))
        assert out.usage(name).cached_tokens == cached, name
