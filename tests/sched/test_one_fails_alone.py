"""A sequence whose own numbers made no sense ends; the others of the step go on."""

from dataclasses import replace

import pytest

from kvist.cache.cache import Cache
from kvist.errors import StateError
from kvist.sched.order.fcfs import Fcfs
from kvist.sched.scheduler import Scheduler
from kvist.spec.sampling import Sampling
from kvist.step import Failed, PromptLogprobs, Sampled, StepResult, TokenLogprob
from paperwork import LAYOUTS, B, ask, books, drive, paper, recorded, same_as_alone, words


def scheduler(budget=256):
    cache = Cache(LAYOUTS["full"], blocks=64)
    return Scheduler(cache, LAYOUTS["full"], token_budget=budget, max_sequences=8, context_tokens=4096, policy=Fcfs())


def answer(plan, *failed, scored=()):
    ill = {f.seq for f in failed}
    sampled = tuple(Sampled(s.seq, s.index, 5) for s in plan.samples if s.seq not in ill)
    return StepResult(plan.step, sampled, scored, tuple(failed))


class Spoiler:
    """An executor some of whose sequences fail at a step."""

    def __init__(self, inner, step, seqs):
        self.inner, self.step, self.seqs = inner, step, seqs

    def execute(self, plan):
        result = self.inner.execute(plan)
        if plan.step != self.step:
            return result
        here = {c.seq for c in plan.chunks} | {s.seq for s in plan.samples}
        ill = tuple(Failed(s, "nan") for s in self.seqs if s in here)
        return replace(
            result,
            failed=ill,
            sampled=tuple(s for s in result.sampled if s.seq not in self.seqs),
            prompt_logprobs=tuple(p for p in result.prompt_logprobs if p.seq not in self.seqs),
        )

    def __getattr__(self, name):
        return getattr(self.inner, name)


@pytest.mark.parametrize("layout", ["full", "hybrid"])
@pytest.mark.parametrize("step", range(1, 9))
def test_the_others_do_not_notice(layout, step):
    requests = [ask(f"r{i}", words(20 + i, i), 10, prompt_logprobs=1 if i == 1 else None) for i in range(4)]
    p = paper(layout, budget=48)
    p.engine.executor = Spoiler(p.engine.executor, step, {1})
    out = drive(p, *requests)
    assert out.reason("r1") == "error" and out.last["r1", 0].error == "nan" and out.last["r1", 0].usage is not None
    assert p.engine.scheduler.counters.finished_error == 1 and p.engine.scheduler.counters.failures == 0
    same_as_alone(layout, out, requests)
    assert all(len(out.tokens[f"r{i}", 0]) == 10 for i in (0, 2, 3))


def test_nothing_of_the_step_is_published_and_its_blocks_return():
    s = scheduler(budget=2 * B + 5)
    prompt = words(5 * B + 3)
    (seq,) = s.add(ask("r", prompt))
    s.commit(answer(s.plan()))
    (event,) = s.commit(answer(s.plan(), Failed(seq, "nan")))
    assert (event.finish_reason, event.error, event.usage.computed_tokens) == ("error", "nan", 2 * B + 5)
    assert s.cache.live_blocks == 0 and s.idle
    assert s.cache.match(prompt).cached_tokens == 2 * B, "what the step before had made matchable"
    s.add(ask("next", words(3, 9), 1))
    assert s.plan().forget == (seq,)


@pytest.mark.parametrize("ill", [{0}, {1}, {2}, {0, 1}, {0, 1, 2}])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_samples_fail_one_by_one(ill, logprobs):
    sampling = Sampling(temperature=1.0, seed=4)
    request = ask("r", words(2 * B + 5), 9, n=3, sampling=sampling, prompt_logprobs=logprobs)
    p = paper(budget=64)
    p.engine.executor = Spoiler(p.engine.executor, 1, ill)
    out = drive(p, request)
    if 0 in ill and logprobs is not None:
        ill = {0, 1, 2}  # nobody has the log-probabilities of the prompt
    for i in range(3):
        assert (out.reason("r", i) == "error") == (i in ill)
        assert len(out.tokens["r", i]) == (0 if i in ill else 9)
    counters = p.engine.scheduler.counters
    if 0 in ill:
        assert (counters.forks, counters.late_forks) == (0, 3 - len(ill)), "what a failed one computed is not shared"
    if logprobs is None:
        same_as_alone("full", out, [request])
    books(p)


def test_one_that_was_aborted_meanwhile_ends_once():
    s = scheduler()
    (a, b) = s.add(ask("a", words(20)))[0], s.add(ask("b", words(20, 1)))[0]
    plan = s.plan()
    (event,) = s.abort(a)
    assert event.finish_reason == "abort"
    events = s.commit(answer(plan, Failed(a, "nan")))
    assert [e.seq for e in events] == [b] and s.cache.sequences() == (b,)


def test_only_failed_sequences_may_lack_samples():
    s = scheduler()
    a, b = s.add(ask("a", words(20), prompt_logprobs=0))[0], s.add(ask("b", words(20, 1)))[0]
    plan = s.plan()
    whole = answer(plan, Failed(a, "nan"))
    scored = (PromptLogprobs(a, 1, tuple(TokenLogprob(t, -1.0) for t in words(20)[1:])),)
    for wrong in (
        replace(whole, sampled=()),
        replace(whole, failed=()),
        replace(whole, failed=(Failed(a, "nan"), Failed(99, "nan"))),
        replace(whole, failed=(Failed(a, "nan"), Failed(a, "nan"))),
        replace(whole, failed=(Failed(b, "nan"),)),
        replace(whole, sampled=answer(plan).sampled),
        replace(whole, prompt_logprobs=scored),
    ):
        with pytest.raises(StateError):
            s.commit(wrong)
    events = s.commit(whole)
    assert {e.seq: e.finish_reason for e in events} == {a: "error", b: None}


def test_a_follower_of_a_leader_that_failed_goes_on_alone():
    prompt = words(6 * B + 3)
    p = paper(budget=2 * B)
    p.engine.executor = Spoiler(p.engine.executor, 2, {0})
    log = recorded(p)
    out = drive(p, ask("a", prompt), ask("b", prompt))
    assert out.reason("a") == "error"
    assert out.usage("b").cached_tokens == 2 * B and len(out.tokens["b", 0]) == 8
    assert not any(c.seq == 1 for plan in log.plans[:2] for c in plan.chunks)
