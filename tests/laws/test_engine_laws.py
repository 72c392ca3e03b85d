"""Laws of the engine, on paper: random workloads over layouts, pools, budgets, samples, drafts and aborts.

1. Every request's tokens are those of the request alone, on a fresh engine with everything off.
2. The same trace gives the same letters, byte for byte; no clock is looked at.
3. Letters survive msgpack. 4. At idle the books balance. 5. Cached + computed = prompt.
"""

import time
from random import Random

import msgpack
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kvist.errors import PoolTooSmall
from kvist.sim.draws import PaperModel
from kvist.spec.sampling import Sampling
from kvist.step import StepPlan, StepResult, from_plain, to_plain
from paperwork import LAYOUTS, B, Outcome, ask, computed_of, drive, paper, recorded, same_as_alone, words

MODEL = PaperModel(vocab=500, eos_id=7, eos_probability=0.02)
SEEN: dict[str, int] = {}


def workload(rng: Random, n: int):
    """Requests that share prefixes, some with several samples, log-probabilities, stop ids, priorities."""
    stems = [words(rng.randrange(1, 5 * B), s, 400) for s in range(3)]
    requests = []
    for i in range(n):
        stem = rng.choice(stems)
        prompt = (*stem[: rng.randrange(len(stem) + 1)], *words(rng.randrange(1, 30), rng.randrange(6), 400))
        sampling = Sampling(
            temperature=rng.choice((0.0, 1.0)), seed=rng.randrange(4), min_tokens=rng.choice((0, 3)),
            logprobs=rng.choice((None, 1)),
        )  # fmt: skip
        requests.append(
            ask(
                f"r{i}", prompt, rng.randrange(1, 40), sampling=sampling, n=rng.choice((1, 1, 1, 3)),
                stop_ids=rng.choice(((), (7,))), priority=rng.choice((0, 0, 0, 1)), salt=rng.choice((b"", b"", b"s")),
                prompt_logprobs=rng.choice((None, None, None, 1)), reuse=rng.random() < 0.9,
            )
        )  # fmt: skip
    return requests


def trial(seed: int, layout: str, blocks: int, budget: int, sequences: int, *, unrest: bool):
    """Run one workload; with ``unrest`` there are aborts, cuts, drafts and forced preemptions."""
    rng = Random(seed)
    p = paper(layout, blocks=blocks, budget=budget, sequences=sequences, model=MODEL)
    log = recorded(p)
    waiting = workload(rng, 10)
    taken, out = [], Outcome()

    def each_step(q):
        scheduler = q.engine.scheduler
        while waiting and rng.random() < 0.5:
            request = waiting.pop(0)
            try:
                q.engine.add(request)
                taken.append(request)
            except PoolTooSmall:
                assert blocks < 40
        if not unrest or not scheduler.running:
            return ()
        seq = rng.choice(scheduler.running)
        chance = rng.random()
        if chance < 0.02:
            return q.engine.abort(seq.id if rng.random() < 0.5 else seq.request.id)
        if chance < 0.04:
            return q.engine.finish(seq.id, "stop", rng.randrange(seq.output_tokens + 1))
        if chance < 0.08:
            scheduler.preempt(seq.id)
        elif chance < 0.4:
            scheduler.propose(seq.id, tuple(guess(seq, rng)))
        return ()

    if unrest:
        log.after = lambda plan: out.note(p.engine.abort(rng.choice(plan.chunks).seq)) if rng.random() < 0.01 else None
    while waiting or not p.engine.idle:
        if p.engine.idle:
            p.engine.add(waiting[0]) if _fits(p, waiting[0]) else None
            taken += [waiting[0]] if not p.engine.idle else []
            waiting.pop(0)
            continue
        drive(p, outcome=out, each_step=each_step, limit=20_000, audit=3)
    return p, log, taken, out


def _fits(p, request):
    return len(request.prompt) <= p.engine.scheduler.limits.pool_tokens


def guess(seq, rng):
    """Drafts that are sometimes right: the paper model's own greedy continuation, spoilt at random."""
    from kvist.sim.draws import extend
    from kvist.step import NewSequence

    cells: list = []
    extend(cells, tuple(seq.tokens))
    for i in range(rng.randrange(1, 5)):
        new = NewSequence(seq.id, seq.request.prompt, seq.sampling, seq.request.ending_ids)
        token = MODEL.draw(cells[-1], new, seq.output_tokens + i)[0]
        if rng.random() < 0.3:
            token = rng.randrange(500)
        extend(cells, (token,))
        yield token


def laws(layout, trial_):
    p, log, taken, out = trial_
    limit = p.engine.scheduler.limits.pool_tokens
    whole = [r for r in taken if len(r.prompt) + r.max_tokens <= limit]
    same_as_alone(layout, out, whole, model=MODEL)
    for request in set(taken) - set(whole):
        same_as_alone(layout, _without_length(out, request), [request], model=MODEL)
    for plan in log.plans:
        assert plan.chunks and plan.computed_tokens <= p.engine.scheduler._budget
    for plan in log.plans[::11]:
        assert from_plain(StepPlan, msgpack.unpackb(msgpack.packb(to_plain(plan)))) == plan
    for result in log.results[::11]:
        assert from_plain(StepResult, msgpack.unpackb(msgpack.packb(to_plain(result)))) == result
    for key, event in out.last.items():
        usage = event.usage
        assert event.finish_reason != "error"
        if event.token is not None and usage.held_blocks:
            assert usage.held_blocks == LAYOUTS[layout].blocks_for(usage.computed_tokens)
        computed = first_time(computed_of(log, event.seq), usage.prompt_tokens)
        if out.tokens[key] and key[1] == 0:
            assert usage.cached_tokens + computed == usage.prompt_tokens
        elif event.token is not None:  # a fork that was preempted before it ran shows no chunk, yet had everything
            assert usage.cached_tokens in (usage.prompt_tokens, usage.prompt_tokens - computed)
    for name, value in p.engine.metrics().items():
        SEEN[name] = SEEN.get(name, 0) + value


def first_time(chunks, prompt_tokens):
    """Prompt positions that were computed when they had never been in the cache for this sequence."""
    count = high = 0
    for start, end in chunks:
        high = max(high, min(start, prompt_tokens))
        count += max(0, min(end, prompt_tokens) - high)
        high = max(high, min(end, prompt_tokens))
    return count


def _without_length(out, request):
    """A request that the pool cut short is compared as a prefix."""
    cut = Outcome(dict(out.tokens), out.events, {})
    for key, event in out.last.items():
        wanted = request.max_tokens
        short = key[0] == request.id and len(out.tokens[key]) < wanted and event.finish_reason == "length"
        cut.last[key] = _Cut() if short else event
    return cut


class _Cut:
    finish_reason, token = "cut", None


@settings(
    max_examples=120,
    phases=(Phase.explicit, Phase.generate),
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(
    seed=st.integers(0, 10_000),
    layout=st.sampled_from(sorted(LAYOUTS)),
    blocks=st.sampled_from((8, 12, 20, 40, 120)),
    budget=st.sampled_from((1, 7, 16, 40, 300)),
    sequences=st.sampled_from((1, 3, 8)),
    unrest=st.booleans(),
)
def test_outputs_do_not_depend_on_anything_but_the_request(seed, layout, blocks, budget, sequences, unrest):
    laws(layout, trial(seed, layout, blocks, budget, sequences, unrest=unrest))


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_under_unrest_every_feature_acts(layout):
    SEEN.clear()
    for seed in range(6):
        laws(layout, trial(seed, layout, (16, 24, 40)[seed % 3], (24, 64)[seed % 2], 8, unrest=True))
    for name in (
        "sched_preemptions", "sched_recomputed_tokens", "sched_self_hit_tokens", "sched_cached_tokens", "sched_forks",
        "sched_mixed_steps", "sched_accepted_drafts", "sched_finished_abort", "sched_finished_stop",
        "sched_finished_length", "cache_evicted_blocks", "cache_copied_blocks",
    ):  # fmt: skip
        assert SEEN[name] > 0, name


def letters(seed):
    _, log, _, out = trial(seed, "hybrid", 24, 40, 8, unrest=True)
    return msgpack.packb([to_plain(plan) for plan in log.plans]), out.tokens


def test_the_same_trace_gives_the_same_letters(monkeypatch):
    first = [letters(seed) for seed in range(3)]

    def poisoned(*_):
        raise AssertionError("the thinking half looked at a clock")

    for name in ("monotonic", "time", "perf_counter", "monotonic_ns", "time_ns", "perf_counter_ns"):
        monkeypatch.setattr(time, name, poisoned)
    second = [letters(seed) for seed in range(3)]
    monkeypatch.undo()
    assert first == second
    assert len({blob for blob, _ in first}) == 3
