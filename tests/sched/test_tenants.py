"""A client's priority moves its requests past others of its tenant, and past nobody else."""

from random import Random

import pytest

from kvist.config import CacheConfig, EngineConfig, SchedConfig
from kvist.sched.order.fcfs import Fcfs
from kvist.sched.roster import Roster
from kvist.sched.sequence import Sequence
from kvist.sched.service import Service
from kvist.sim.run import paper_engine
from paperwork import CONTEXT, LAYOUTS, B, Outcome, ask, drive, paper, recorded, same_as_alone, words


def bench(blocks=64, budget=64, **more):
    config = EngineConfig(CacheConfig(blocks=blocks, block_tokens=B), SchedConfig(token_budget=budget, **more))
    return paper_engine(LAYOUTS["full"], config, context_tokens=CONTEXT)


def starts(log):
    """Sequences in order of their first chunks."""
    return list(dict.fromkeys(chunk.seq for plan in log.plans for chunk in plan.chunks))


def test_higher_priority_first_within_a_tenant():
    p = bench(max_sequences=1)
    log = recorded(p)
    for i in range(9):
        p.engine.add(ask(f"r{i}", words(20, i), 2, priority=i % 3, tenant=f"t{i % 2}"))
    drive(p)
    order = starts(log)
    assert [s for s in order if s % 2 == 0] == [2, 8, 4, 0, 6] and [s for s in order if s % 2] == [5, 1, 7, 3]
    turns = [{order[i] % 2, order[i + 1] % 2} for i in range(0, 8, 2)]
    assert turns == [{0, 1}] * 4, "and tenants take turns, whatever they say of themselves"


@pytest.mark.parametrize("order", ["fcfs", "prefix"])
@pytest.mark.parametrize("blocks", [400, 16])
def test_a_priority_brings_no_more_service(order, blocks):
    """Also where the pool is too small and sequences are preempted."""
    p = bench(blocks=blocks, max_sequences=4, order=order)
    for i in range(120):
        for tenant, priority in (("a", 5), ("b", 0)):
            p.engine.add(ask(f"{tenant}{i}", words(50, i), 30, tenant=tenant, priority=priority, reuse=False))
    while p.engine.scheduler.service().get("b", 0) < 3000:
        p.engine.step()
    service = p.engine.scheduler.service()
    assert service["a"] / service["b"] == pytest.approx(1, rel=0.1)


def test_a_priority_throws_nobody_of_another_tenant_out():
    p = bench(blocks=18, budget=128, max_sequences=8)
    out = Outcome()
    p.engine.add(ask("b", words(40, 1), 90, tenant="b"))
    p.engine.add(ask("a low", words(40, 2), 90, tenant="a"))
    out.note(p.engine.step())
    p.engine.add(ask("a high", words(60, 3), 200, tenant="a", priority=9))
    out = drive(p, outcome=out)
    assert out.usage("b").preemptions == 0 < out.usage("a low").preemptions


def line(*entries):
    """Names in order of running, for (arrival, tenant, priority, preemptions)."""
    roster = Roster(Fcfs(), Service({}))
    for arrival, tenant, priority, preemptions in entries:
        request = ask(f"{tenant}{arrival}", (1,), tenant=tenant, priority=priority)
        seq = Sequence(arrival, request, 0, arrival, request.sampling, 9, [1], preemptions=preemptions)
        roster.run(seq)
    return [seq.request.id for seq in roster.running]


def test_the_line_is_by_age_between_tenants_and_by_key_within():
    assert line((1, "a", 0, 0), (2, "b", 0, 0), (3, "a", 5, 0), (4, "b", 9, 0)) == ["a3", "b4", "a1", "b2"]
    assert line((1, "a", 0, 0), (2, "b", 7, 0), (3, "b", 0, 0), (4, "a", 0, 0)) == ["a1", "b2", "b3", "a4"]
    assert line((1, "a", 9, 0), (2, "b", 0, 3), (3, "a", 0, 3)) == ["b2", "a3", "a1"], "lost patience goes first"
    assert line((1, "a", 0, 0), (2, "a", 1, 0), (3, "a", 2, 0)) == ["a3", "a2", "a1"]


@pytest.mark.parametrize("seed", range(10, 22))
def test_tenants_with_priorities_in_a_pool_too_small(seed):
    """Places change hands while a plan is made: whoever has its room keeps it, and every answer is its own."""
    rng = Random(seed)
    p = paper("full", blocks=rng.choice((14, 20, 30)), budget=rng.choice((24, 48)), sequences=8)
    requests = [
        ask(
            f"r{i}", words(rng.choice((10, 40, 100)), i % 7), rng.choice((8, 40, 90)), priority=rng.choice((-1, 0, 2)),
            tenant=rng.choice("abc"), n=rng.choice((1, 1, 2)),
        )
        for i in range(30)
    ]  # fmt: skip
    pending = list(requests)

    def arrive(q):
        if pending and rng.random() < 0.4:
            q.engine.add(pending.pop(0))

    out = Outcome()
    while pending or not p.engine.idle:
        p.engine.add(pending.pop(0)) if p.engine.idle else None
        out = drive(p, outcome=out, each_step=arrive, audit=20, limit=20_000)
    same_as_alone("full", out, requests)
    assert max(e.usage.preemptions for e in out.last.values()) <= 3
    assert p.engine.scheduler.counters.preemptions > 0


def with_a_large_one(weight_b):
    """Tenant a sends one request for most of the pool into a stream of tenants a and b; steps until it started."""
    p = bench(blocks=60, budget=256, max_sequences=32, weights=(("a", 1.0), ("b", weight_b)))
    for i in range(60):
        p.engine.add(ask(f"b{i}", words(2 * B, i), 20, tenant="b", reuse=False))
    p.engine.step()
    (large,) = p.engine.add(ask("large", words(50 * B, 7), 4, tenant="a"))
    started = {"a": 0, "b": 0}
    urgent_from = None
    for step in range(4000):
        for tenant in "ab":
            p.engine.add(ask(f"{tenant}.{step}", words(2 * B, step), 20, tenant=tenant, reuse=False))
        before = {s.id for s in p.engine.scheduler.running}
        p.engine.step()
        if p.engine.timeline(large).admitted_s is not None:
            return started, True
        if urgent_from is None and p.engine.scheduler.sequence(large).turn.urgent:
            urgent_from = step
        if urgent_from is not None and step > urgent_from:
            for seq in p.engine.scheduler.running:
                started[seq.request.tenant] += seq.id not in before
    return started, False


def test_an_urgent_request_stops_its_own_tenant_and_others_once_they_had_their_share():
    started, done = with_a_large_one(weight_b=1.0)
    assert done and started["a"] == 0
    favoured, done = with_a_large_one(weight_b=30.0)
    assert favoured["a"] == 0 and favoured["b"] > max(100, 5 * started["b"]), "what b paid for is not taken from it"


def test_an_urgent_one_goes_behind_the_tenants_that_were_served_less():
    p = bench(blocks=400, max_sequences=1)
    p.engine.add(ask("hog", words(40), 50, tenant="h"))
    p.engine.step()
    seqs = {
        f"{t}{i}": p.engine.add(ask(f"{t}{i}", words(40), 2, tenant=t, salt=b"s"))[0] for t in "mac" for i in (0, 1)
    }
    scheduler = p.engine.scheduler
    fill = scheduler._fill
    scheduler._service.charge("a", 50)
    scheduler._service.charge("c", 90)
    fill._roster.hurry(scheduler.sequence(seqs["a1"]))

    def candidates():
        fill._look()
        return [seq.request.id for seq in fill._chooser.candidates()]

    assert candidates() == ["m0", "m1", "a1", "c0", "c1"]
    scheduler._service.charge("m", 60)
    assert candidates() == ["a1"]
