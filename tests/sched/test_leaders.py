"""One leader per uncached prefix."""

from random import Random

import pytest

from kvist.sched.leaders import LEADER_PLANS, common_prefix
from paperwork import CONTEXT, LAYOUTS, B, Outcome, ask, drive, paper, recorded, same_as_alone, words


def counters(p):
    return p.engine.scheduler.counters


@pytest.mark.parametrize("n", [2, 8])
@pytest.mark.parametrize("length", [4096, 4096 + 5])
def test_the_same_prompt_is_computed_once(n, length):
    p = paper(blocks=1200, budget=512, context_tokens=2 * 4096, check=False)
    prompt = words(length)
    out = drive(p, *[ask(f"r{i}", prompt, 2) for i in range(n)], audit=10)
    own = 1 if length % B == 0 else length % B
    assert [out.usage(f"r{i}").cached_tokens for i in range(n)] == [0] + [length - own] * (n - 1)
    assert counters(p).computed_tokens == length + (n - 1) * own + n
    assert counters(p).led_admissions == n - 1
    # 512 were computed before the others had their turn at all: the budget was used up.
    assert (n - 1) * (length - own - 512) <= counters(p).led_tokens <= (n - 1) * (length - own)
    assert [p.engine.timeline(i).led for i in range(n)] == [False] + [True] * (n - 1)


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_different_tails_share_what_they_have_in_common(layout):
    span = LAYOUTS[layout].span_tokens
    stem = words(6 * span + 3)
    requests = [ask(f"r{i}", (*stem, *words(2 * B + i, i + 1)), 6) for i in range(6)]
    p = paper(layout, blocks=400, budget=4 * B)
    out = drive(p, *requests)
    same_as_alone(layout, out, requests)
    for request in requests[1:]:
        assert out.usage(request.id).cached_tokens >= 6 * span
    assert counters(p).led_admissions == 5


@pytest.mark.parametrize("moment", [1, 2, 5])
def test_when_the_leader_is_aborted_a_follower_takes_over(moment):
    prompt = words(10 * B + 3)
    p = paper(blocks=100, budget=2 * B)
    out = Outcome()
    for i in range(4):
        p.engine.add(ask(f"r{i}", prompt, 4))
    for _ in range(moment):
        out.note(p.engine.step())
    out.note(p.engine.abort("r0"))
    out = drive(p, outcome=out)
    assert out.reason("r0") == "abort"
    done = min(moment * 2 * B, len(prompt))
    assert out.usage("r1").cached_tokens == min(done, len(prompt) - 1)
    assert out.usage("r2").cached_tokens == out.usage("r3").cached_tokens >= 10 * B
    assert counters(p).computed_tokens <= len(prompt) + 4 * 8


def test_when_the_leader_is_preempted_a_follower_takes_over():
    prompt = words(10 * B + 3)
    p = paper(blocks=100, budget=2 * B)
    out = Outcome()
    seqs = [p.engine.add(ask(f"r{i}", prompt, 4))[0] for i in range(3)]
    for _ in range(2):
        out.note(p.engine.step())
    assert p.engine.scheduler.preempt(seqs[0])
    out = drive(p, outcome=out)
    assert counters(p).recomputed_tokens <= 1 and counters(p).computed_tokens <= len(prompt) + 3 * 8


def test_others_are_not_held_up():
    p = paper(blocks=200, budget=4 * B)
    log = recorded(p)
    prompt = words(40 * B)
    p.engine.add(ask("a", prompt, 2))
    p.engine.add(ask("b", prompt, 2))
    (other,) = p.engine.add(ask("c", words(10, 3), 2))
    out = Outcome()
    out.note(p.engine.step())
    assert any(s.seq == other for s in log.plans[0].samples)
    assert p.engine.metrics()["waiting_leader"] == 1 == p.engine.metrics()["waiting_sequences"]
    drive(p, outcome=out)


@pytest.mark.parametrize(
    "more",
    [{"salt": b"x"}, {"extras": (b"adapter" * 4,)}, {"reuse": False}, {"prompt_logprobs": 0}],
)
def test_never_across_namespaces_nor_for_nothing(more):
    """Whether somebody else computes the same prompt may not be seen from a request's time to its first token."""
    prompt = words(8 * B)
    for first, second in (({}, more), (more, {})):
        if "prompt_logprobs" in first:
            continue  # a prompt that is scored is computed by its own, and others may follow it
        p = paper(blocks=200, budget=40 * B)
        log = recorded(p)
        out = drive(p, ask("a", prompt, 2, **first), ask("b", prompt, 2, **second))
        assert {c.seq for c in log.plans[0].chunks} == {0, 1}
        assert counters(p).led_admissions == 0 == out.usage("b").cached_tokens


def test_without_a_cache_nobody_waits():
    p = paper(blocks=200, budget=40 * B, reuse=False)
    log = recorded(p)
    drive(p, ask("a", words(8 * B), 2), ask("b", words(8 * B), 2))
    assert {c.seq for c in log.plans[0].chunks} == {0, 1}


def test_tenants_of_one_namespace_do_share():
    p = paper(blocks=200, budget=4 * B)
    drive(p, ask("a", words(8 * B), 2, tenant="x"), ask("b", words(8 * B), 2, tenant="y"))
    assert counters(p).led_admissions == 1


def test_what_is_cached_already_is_not_waited_for():
    p = paper(blocks=200, budget=8 * B)
    stem = words(6 * B)
    drive(p, ask("warm", stem, 1))
    log = recorded(p)
    drive(p, ask("a", (*stem, *words(9 * B, 1)), 2), ask("b", (*stem, *words(3, 2)), 2))
    assert {c.seq for c in log.plans[0].chunks} == {1, 2}
    assert counters(p).led_admissions == 0


def starved_leader(priority, tenant, n_stream=400):
    """A leader that always stands last for the budget; steps until its follower was admitted, and the bench."""
    p = paper(blocks=4000, budget=4 * B, check=False)
    stem = words(120 * B, 1)
    p.engine.add(ask("leader", (*stem, *words(5, 2)), 4, priority=-1))
    p.engine.step()
    (follower,) = p.engine.add(ask("follower", (*stem, *words(5, 3)), 4, priority=priority, tenant=tenant))
    for i in range(n_stream):
        if p.engine.timeline(follower).admitted_s is not None:
            return i, p
        for k in range(2):
            p.engine.add(ask(f"s{i}.{k}", words(2 * B + 1, 100 + 2 * i + k), 2, priority=0, tenant=""))
        p.engine.step()
    return n_stream, p


@pytest.mark.parametrize("priority,tenant", [(5, ""), (0, "other"), (-3, "other")])
def test_nobody_waits_for_a_less_important_one(priority, tenant):
    """Its tenant's requests of priority 0 leave the leader next to nothing; the follower stands before it."""
    steps, p = starved_leader(priority, tenant)
    assert steps <= 3 and counters(p).led_tokens <= 8 * B
    assert list(p.engine.run())


def test_a_leader_that_does_not_get_on_is_given_up():
    p = paper(blocks=4000, budget=4 * B, check=False)
    stem = words(120 * B, 1)
    for i in range(14):
        p.engine.add(ask(f"before{i}", words(30 * B, 20 + i), 4))
    (leader,) = p.engine.add(ask("leader", stem, 4))
    while p.engine.timeline(leader).admitted_s is None:
        p.engine.step()
    (follower,) = p.engine.add(ask("follower", stem, 4, tenant="other"))
    steps = 0
    while p.engine.timeline(follower).admitted_s is None:
        p.engine.step()
        steps += 1
    assert LEADER_PLANS <= steps <= LEADER_PLANS + 8
    assert p.engine.scheduler.sequence(leader).computed < 20 * B
    assert list(p.engine.run())


def test_a_leader_that_gets_on_by_little_is_waited_for():
    p = paper(blocks=400, budget=B, context_tokens=CONTEXT)
    prompt = words(100 * B + 3)
    drive(p, ask("a", prompt, 2), ask("b", prompt, 2), audit=50)
    assert counters(p).led_admissions == 1 and counters(p).computed_tokens < len(prompt) + 3 * B


def test_a_leader_that_just_ended_holds_nobody():
    p = paper(blocks=200, budget=4 * B)
    prompt = words(40 * B)
    (a,) = p.engine.add(ask("a", prompt, 2))
    p.engine.step()
    p.engine.add(ask("b", prompt, 2))
    fill = p.engine.scheduler._fill
    fill._look()
    assert list(fill._chooser.candidates()) == []
    p.engine.abort(a)
    assert [s.request.id for s in fill._chooser.candidates()] == ["b"]
    drive(p)


def test_when_nobody_may_start_nothing_is_planned():
    p = paper()
    p.engine.add(ask("a", words(40), 2))
    chooser = p.engine.scheduler._fill._chooser
    chooser.candidates, candidates = lambda: iter(()), chooser.candidates
    assert p.engine.scheduler.plan() is None
    chooser.candidates = candidates
    drive(p)


@pytest.mark.parametrize("seed", range(40))
def test_nobody_waits_for_ever(seed):
    """Random families of prefixes, namespaces, priorities, tenants, aborts and preemptions in a small pool."""
    rng = Random(seed)
    layout = rng.choice(sorted(LAYOUTS))
    stems = [words(rng.randrange(B, 6 * B), s) for s in range(2)]
    p = paper(layout, blocks=rng.choice((24, 40, 100)), budget=rng.choice((7, 32, 100)), sequences=rng.choice((2, 6)))
    requests = []
    for i in range(24):
        stem = rng.choice(stems)
        prompt = (*stem[: rng.randrange(1, len(stem) + 1)], *words(rng.randrange(0, 20), i % 4))
        requests.append(
            ask(
                f"r{i}", prompt, rng.randrange(1, 20), salt=rng.choice((b"", b"", b"s")), n=rng.choice((1, 1, 2)),
                tenant=rng.choice("ab"), priority=rng.choice((0, 0, 1)), reuse=rng.random() < 0.9,
            )
        )  # fmt: skip
    pending = list(requests)

    def unrest(q):
        while pending and rng.random() < 0.6:
            q.engine.add(pending.pop())
        running = q.engine.scheduler.running
        chance = rng.random()
        if running and chance < 0.03:
            return q.engine.abort(rng.choice(running).id)
        if running and chance < 0.08:
            q.engine.scheduler.preempt(rng.choice(running).id)
        return ()

    out = Outcome()
    while pending or not p.engine.idle:
        if p.engine.idle:
            p.engine.add(pending.pop())
        out = drive(p, outcome=out, each_step=unrest, limit=5000, audit=20)
    same_as_alone(layout, out, requests)


@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 500])
def test_common_prefix(n):
    a = list(words(700))
    for b in (a[:n], [*a[:n], -1, *a[n:]]):
        assert common_prefix(a, b) == n == common_prefix(b, a)
