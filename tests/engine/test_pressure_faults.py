"""Faults under memory pressure: preemption, resumption, tiny pools (shared/cases/faults.md)."""

import pytest

from kvist.errors import PoolTooSmall
from kvist.spec.sampling import Sampling
from paperwork import LAYOUTS, MODEL, B, Outcome, ask, computed_of, drive, paper, recorded, same_as_alone, words


def pressed(n_requests=8, prompt=64, n_out=200, share=1.5, **more):
    """Requests, and a pool for ``share`` of them."""
    need = -(-(prompt + n_out) // B)
    requests = [ask(f"r{i}", words(prompt, i), n_out, **more) for i in range(n_requests)]
    return requests, int(need * share)


def test_f038_resumed_sequences_neither_lose_nor_double_a_token():
    requests, blocks = pressed()
    p = paper(blocks=blocks, budget=128)
    out = drive(p, *requests)
    calm = drive(paper(blocks=500, budget=128), *requests)
    assert out.tokens == calm.tokens
    assert all(len(t) == 200 for t in out.tokens.values())
    counters = p.engine.scheduler.counters
    # Everyone but the first in order is thrown out once; a second time is what F040 forbids.
    assert counters.preemptions >= len(requests) - 1
    assert counters.recomputed_tokens > 0


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_f038_preempted_at_every_moment(layout):
    request = ask("r", words(40, 1), 12, sampling=Sampling(temperature=1.0, seed=5, logprobs=1))
    calm = drive(paper(layout, budget=B), request)
    for moment in range(1, 14):
        p = paper(layout, budget=B)

        def shove(q, moment=moment):
            if q.engine.scheduler.counters.steps == moment:
                assert q.engine.scheduler.preempt(0)

        out = drive(p, request, each_step=shove)
        assert [(e.token, e.logprob, e.index) for e in out.events] == [
            (e.token, e.logprob, e.index) for e in calm.events
        ]
        assert out.usage("r").preemptions == 1


def test_f039_what_a_request_sees_does_not_depend_on_preemption():
    """Penalties are the executor's: what it needs for them (prompt, drawn tokens) it is told once and keeps."""
    knobs = {
        "plain": {},
        "stop": {"stop_ids": tuple(range(0, 1000, 15))},
        "barred": {"stop_ids": tuple(range(0, 1000, 15)), "sampling": Sampling(seed=3, min_tokens=25)},
        "echo": {"prompt_logprobs": 1, "sampling": Sampling(temperature=0.0, logprobs=3)},
        "drawn": {"sampling": Sampling(seed=11)},
    }
    requests = [ask(name, words(50, i), 60, **more) for i, (name, more) in enumerate(knobs.items())]
    calm = drive(paper(blocks=500, budget=64, model=MODEL), *requests)
    p = paper(blocks=14, budget=64, model=MODEL)
    log = recorded(p)

    def shove(q):
        running = q.engine.scheduler.running
        if running and q.engine.scheduler.counters.steps % 9 == 5:
            q.engine.scheduler.preempt(running[q.engine.scheduler.counters.steps % len(running)].id)

    out = drive(p, *requests, each_step=shove)
    assert p.engine.scheduler.counters.preemptions >= 8
    for name in knobs:
        assert out.tokens[name, 0] == calm.tokens[name, 0]
        a, b = out.usage(name), calm.usage(name)
        assert (a.prompt_tokens, a.output_tokens) == (b.prompt_tokens, b.output_tokens)
        assert out.reason(name) == calm.reason(name)
        mine = [e for e in out.events if e.request == name and e.token is not None]
        theirs = [e for e in calm.events if e.request == name and e.token is not None]
        assert [(e.logprob, e.prompt_logprobs) for e in mine] == [(e.logprob, e.prompt_logprobs) for e in theirs]
    assert len([n for plan in log.plans for n in plan.new]) == len(requests), "a preempted one was introduced again"
    assert out.reason("stop") == "stop" and len(out.tokens["barred", 0]) >= 25


def test_f040_no_ping_pong():
    long_prompt, n_out, chunk = 320, 160, 64
    longs = [ask(f"long{i}", words(long_prompt, i), n_out) for i in range(2)]
    shorts = [ask(f"s{i}", words(20, 50 + i), 10) for i in range(10)]
    blocks = int(2 * (long_prompt + n_out) / B * 0.9)
    p = paper(blocks=blocks, budget=chunk)
    out = drive(p, *longs, *shorts)
    same_as_alone("full", out, [*longs, *shorts])
    counters = p.engine.scheduler.counters
    assert counters.preemptions > 0
    assert max(out.usage(r.id).preemptions for r in (*longs, *shorts)) <= 3
    total = sum(len(r.prompt) + r.max_tokens for r in (*longs, *shorts))
    assert counters.recomputed_tokens <= total
    serial = paper(blocks=blocks, budget=chunk, sequences=1)
    drive(serial, *longs, *shorts)
    assert counters.steps <= 2 * serial.engine.scheduler.counters.steps


@pytest.mark.parametrize("share", [1.1, 1.5, 2.5, 4.5])
@pytest.mark.parametrize("budget", [32, 512])
def test_f040_preemptions_are_bounded_in_every_squeeze(share, budget):
    requests, blocks = pressed(10, 48, 96, share)
    p = paper(blocks=blocks, budget=budget)
    out = drive(p, *requests)
    assert max(out.usage(r.id).preemptions for r in requests) == 1, "who comes back stays, unless priorities differ"
    total = sum(len(r.prompt) + r.max_tokens for r in requests)
    assert p.engine.scheduler.counters.recomputed_tokens <= total


def test_f040_a_stream_of_higher_priority_throws_nobody_out_for_ever():
    p = paper(blocks=20, budget=64, sequences=4)
    p.engine.add(ask("low", words(64, 1), 150, priority=-1))
    sent = 0

    def more(q):
        nonlocal sent
        if sent < 60 and len(q.engine.scheduler.waiting) < 2:
            q.engine.add(ask(f"high{sent}", words(40, 100 + sent), 60, priority=sent // 20))
            sent += 1

    out = drive(p, each_step=more)
    assert out.usage("low").preemptions <= 3
    assert max(out.usage(name).preemptions for name, _ in out.last) <= 3
    assert p.engine.scheduler.counters.preemptions > 0


@pytest.mark.parametrize("n", [2, 3, 5])
def test_f041_one_block_short_preempts_one(n):
    prompt, n_out = 2 * B, B
    p = paper(blocks=3 * n - 1, budget=256)
    requests = [ask(f"r{i}", words(prompt, i), n_out) for i in range(n)]
    out = drive(p, *requests)
    same_as_alone("full", out, requests)
    assert p.engine.scheduler.counters.preemptions == 1
    assert out.usage(f"r{n - 1}").preemptions == 1, "the last one in order is the victim"


def test_f094_recomputation_is_not_a_hit():
    requests, blocks = pressed(24, 40, 50, 4.2)
    p = paper(blocks=blocks, budget=64)
    out = drive(p, *requests)
    counters = p.engine.scheduler.counters
    assert counters.preemptions > 3
    assert counters.cached_tokens == 0 == sum(out.usage(r.id).cached_tokens for r in requests)
    assert counters.self_hit_tokens > 0
    assert counters.prompt_tokens == sum(len(r.prompt) for r in requests)
    assert counters.recomputed_tokens == sum(out.usage(r.id).recomputed_tokens for r in requests) > 0
    useful = sum(len(r.prompt) + len(out.tokens[r.id, 0]) - 1 for r in requests)
    assert counters.computed_tokens == useful + counters.recomputed_tokens


def test_f094_totals_reconcile_when_hits_and_preemptions_mix():
    shared = words(3 * B, 1)
    requests = [ask(f"r{i}", (*shared, *words(20, i + 2)), 60) for i in range(12)]
    p = paper(blocks=24, budget=48)
    log = recorded(p)
    out = drive(p, *requests)
    counters = p.engine.scheduler.counters
    assert counters.preemptions > 0 and counters.cached_tokens > 0
    assert counters.cached_tokens == sum(out.usage(r.id).cached_tokens for r in requests)
    for seq, request in enumerate(requests):
        first_time = set()
        for a, b in computed_of(log, seq):
            first_time |= set(range(a, min(b, len(request.prompt))))
        assert out.usage(request.id).cached_tokens + len(first_time) == len(request.prompt)


def test_f109_impossible_requests_are_refused_and_the_small_ones_proceed():
    blocks = 8
    k = blocks * B
    p = paper(blocks=blocks, context_tokens=4 * k)
    small = [ask(f"s{i}", words(10, i), 5) for i in range(20)]
    for n in (k + 1, 2 * k):
        with pytest.raises(PoolTooSmall) as caught:
            p.engine.add(ask(f"p{n}", words(n, n), 4))
        assert caught.value.total_blocks == blocks < caught.value.needed_blocks
    possible = [ask("k-b", words(k - B, 1), 4), ask("k", words(k, 2), 4), ask("long", words(k // 2, 3), 4 * k)]
    out = drive(p, *possible, *small, limit=2000)
    same_as_alone("full", out, [*small, possible[0]])
    assert out.reason("k") == "length" and len(out.tokens["k", 0]) == 1
    assert out.reason("long") == "length" and len(out.tokens["long", 0]) == k - k // 2 + 1


@pytest.mark.parametrize("layout", ["full", "hybrid", "window", "chunked"])
@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 5, 6, 8, 10, 12])
def test_f110_no_pool_is_so_small_that_the_engine_hangs(layout, blocks):
    p = paper(layout, blocks=blocks, budget=48)
    taken = []
    for i in range(20):
        request = ask(f"r{i}", words(10 + 3 * i, i), 20)
        try:
            p.engine.add(request)
            taken.append(request)
        except PoolTooSmall as refused:
            assert refused.needed_blocks > blocks  # noqa: PT017
    out = drive(p, limit=5000)
    for request in taken:
        assert out.reason(request.id) == "length" and out.tokens[request.id, 0]
        assert out.usage(request.id).preemptions <= 3
    if layout == "full":
        assert len(taken) == sum(10 + 3 * i <= blocks * B for i in range(20))


def test_a_preempted_sequence_whose_blocks_survive_computes_one_token_again():
    p = paper(blocks=64)
    out = Outcome()
    (seq,) = p.engine.add(ask("r", words(2 * B + 5), 12))
    for _ in range(4):
        out.note(p.engine.step())
    assert p.engine.scheduler.preempt(seq)
    drive(p, outcome=out)
    assert out.usage("r").recomputed_tokens == 0, "the token it lacked was new; the rest was found again"
    assert p.engine.scheduler.counters.self_hit_tokens == 2 * B + 5 + 3


def test_a_newcomer_waits_until_its_prompt_fits_beside_the_others():
    p = paper(blocks=10, budget=64)
    requests = [ask("a", words(6 * B, 1), 8), ask("b", words(6 * B, 2), 8)]
    out = drive(p, *requests)
    counters = p.engine.scheduler.counters
    assert counters.preemptions == 0 < counters.postponed_admissions
    assert out.usage("b").recomputed_tokens == 0


def test_a_head_that_would_not_fit_alone_starts_when_another_has_computed_its_prefix():
    p = paper(blocks=10, budget=2 * B, chunk=B)
    shared = words(6 * B, 1)
    out = drive(p, ask("a", shared, 40), ask("b", (*shared, 950, 951), 4))
    order = [e.request for e in out.events]
    assert order.index("b") < len(order) - 1 - order[::-1].index("a"), "b waited for all of a"
    assert p.engine.scheduler.counters.led_admissions == 1
    assert out.usage("b").cached_tokens >= 6 * B - 1


@pytest.mark.parametrize("layout", ["window", "chunked"])
def test_a_pool_too_small_for_a_whole_chunk_takes_smaller_ones(layout):
    need = LAYOUTS[layout].peak_blocks_for(20 * B if layout == "window" else 5 * B, 1)
    p = paper(layout, blocks=need, budget=8 * B)
    request = ask("r", words(15 * B if layout == "window" else 4 * B, 1), 10)
    out = drive(p, request)
    same_as_alone(layout, out, [request])
    assert len(out.tokens["r", 0]) == 10
    assert (p.engine.scheduler.counters.shrunk_chunks > 1) == (layout == "window")
