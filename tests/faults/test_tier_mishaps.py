"""F042: what was to come back from a tier does not, or a step fails: everybody ends, and the others are right."""

from functools import cache
from random import Random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tier_truth import Poison, TornTier, check_all_records, check_at_rest, marked, settle  # noqa: E402
from tiny_engine import B, ask, engine, run  # noqa: E402

REQUESTS = 20
FAMILIES = ["llama", "gemma3"]


class Failing(TornTier):
    """Reads fail from number ``first`` on, so many of them; each in another way."""

    first, many = 10**9, 0

    def get_many_into(self, ids, buffers, *, timeout_s):
        number = len(self.get_batches)
        if not self.first <= number < self.first + self.many:
            return super().get_many_into(ids, buffers, timeout_s=timeout_s)
        self.get_batches.append(tuple(ids))
        buffers[0][:100] = b"\x5a" * 100  # half a record, and then
        if number % 2:
            raise OSError("the place is gone")
        return [("error", None)] * len(ids)


@cache
def workload():
    """Prompts with common beginnings, and more in them than the pool holds."""
    rng = Random(42)
    stems = [marked(3 + i, 4 * B, rng) for i in range(8)]
    prompts = [(*rng.choice(stems), *marked(20 + i, rng.randrange(1, 2 * B), rng)) for i in range(REQUESTS)]
    return stems, [ask(f"r{i}", prompt, rng.randrange(8, 40)) for i, prompt in enumerate(prompts)]


def started(family, rng):
    """An engine whose tier has the prompts' beginnings, and whose pool has not; the requests to come."""
    stems, requests = workload()
    tier = Failing(delay_s=lambda: 0.0)
    left = engine(family, tiers=(tier,))
    run(left, [ask(f"stem{i}", stem, 1) for i, stem in enumerate(stems)])
    settle(left)
    left.executor._mover.close()
    tier.get_batches.clear()
    slow = Random(rng.random())
    tier.delay_s = lambda: slow.random() * 0.01
    eng = engine(family, tiers=(tier,), blocks=26 if family == "llama" else 50, budget=40, sequences=6)
    return eng, tier, requests


def drive(eng, requests, rng):
    """All of them, a few at a time, some thrown out on the way, the books checked after every step.

    The tokens and the one last event of each.
    """
    poison, waiting = Poison(eng), list(requests)
    tokens, ends = {r.id: [] for r in requests}, {r.id: [] for r in requests}
    while waiting or not eng.idle:
        if waiting and rng.random() < 0.3:
            eng.add(waiting.pop(0))
        for event in eng.step():
            if event.token is not None:
                tokens[event.request].append(event.token)
            if event.finish_reason:
                ends[event.request].append(event)
        if eng.scheduler.running and rng.random() < 0.15:
            eng.scheduler.preempt(rng.choice(eng.scheduler.running).id)
        eng.scheduler.cache.check()
        poison.look()
    settle(eng)
    check_at_rest(eng)
    assert all(len(events) == 1 for events in ends.values()), "a request ended not once"
    return {name: tuple(t) for name, t in tokens.items()}, {name: events[0] for name, events in ends.items()}


@cache
def reference(family):
    eng = engine(family, reuse=False, attention="reference", budget=512)
    return {name: out.tokens for (name, _), out in run(eng, workload()[1], one_by_one=True).items()}


def check_records_and_goes_on(eng, tier, family, requests):
    """What was stored meanwhile is right, and the engine serves as before."""
    group = next(rule.id for rule in eng.scheduler.cache._rules if not rule.bounded)
    stored, compared = check_all_records(tier, family, group=group)
    assert compared > stored // 3 > 10
    tier.many = 0
    tier.delay_s = lambda: 0.0
    got = run(eng, requests[:4])
    assert all(out.tokens == reference(family)[name] for (name, _), out in got.items())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("times", ["once", "always"])
@pytest.mark.parametrize("seed", range(2))
def test_f042_what_cannot_be_loaded_is_computed(family, times, seed):
    rng = Random(f"{family} {times} {seed}")
    eng, tier, requests = started(family, rng)
    tier.first = rng.randrange(6) if times == "once" else 0
    tier.many = 1 if times == "once" else 10**9
    tokens, ends = drive(eng, requests, rng)
    assert {e.finish_reason for e in ends.values()} == {"length"}
    assert tokens == reference(family)
    counters = eng.scheduler.counters
    assert counters.failed_loads == (1 if times == "once" else counters.loads) > 0 and counters.preemptions > 0
    assert counters.loaded_tokens > 0 or times == "always"
    check_records_and_goes_on(eng, tier, family, requests)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(3))
def test_f042_a_step_that_raises_ends_those_who_ran_and_nobody_else(family, seed):
    """Once, at any step, and again while something is being loaded."""
    rng = Random(f"{family} {seed}")
    eng, tier, requests = started(family, rng)
    decoder, steps, failed_at, first = eng.executor._decoder, [], [], rng.randrange(1, 40)
    forward = decoder.forward

    def raising(batch):
        steps.append(eng.scheduler.restores.loading)
        due = len(steps) >= first if not failed_at else len(steps) > first + 10 and steps[-1]
        if due and len(failed_at) < 2:
            failed_at.append(len(steps))
            raise RuntimeError("out of order")
        return forward(batch)

    decoder.forward = raising
    tokens, ends = drive(eng, requests, rng)
    failed = {name for name, e in ends.items() if e.finish_reason == "error"}
    assert len(failed_at) == 2 == eng.scheduler.counters.failures, "no step was computed while something was loaded"
    assert 0 < len(failed) <= 2 * 6
    assert all("out of order" in ends[name].error for name in failed)
    want = reference(family)
    assert {ends[name].finish_reason for name in want.keys() - failed} == {"length"}
    for name, answer in tokens.items():
        assert answer == (want[name][: len(answer)] if name in failed else want[name]), name
    assert eng.scheduler.counters.loaded_tokens > 0
    check_records_and_goes_on(eng, tier, family, requests)
