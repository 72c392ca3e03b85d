"""Faults of prefix hits and chunks (shared/cases/faults.md), on the engine with a paper executor.

Paper memory raises when a row may read a slot that does not hold its own history, so "same output" here means that
every slot was right, not merely that tokens agreed.
"""

import pytest

from kvist.errors import PoolTooSmall
from paperwork import (
    LAYOUTS,
    B,
    alone,
    ask,
    books,
    computed_of,
    drive,
    paper,
    recorded,
    same_as_alone,
    words,
)

HYBRIDS = tuple(LAYOUTS)


@pytest.mark.parametrize("layout", HYBRIDS)
def test_f003_a_full_hit_still_computes_the_last_token(layout):
    for length in [1, *(k * B + d for k in range(1, 5) for d in (-1, 0, 1))]:
        p = paper(layout)
        log = recorded(p)
        request = ask("a", words(length, length))
        first = drive(p, request)
        again = drive(p, ask("b", words(length, length)))
        assert first.tokens["a", 0] == again.tokens["b", 0] == alone(layout, request)
        (hit,) = {c.start for plan in log.plans for c in plan.chunks if c.seq == 1 and c.start < length}
        assert hit == again.usage("b").cached_tokens <= length - 1
        assert length < 2 or hit > 0, "no hit at all"


def test_f005_blocks_are_not_matched_before_they_were_computed():
    p = paper(blocks=40, budget=4 * B)
    prompt = words(6 * B + 3)
    p.engine.add(ask("a", prompt))
    plan = p.engine.scheduler.plan()
    assert plan.computed_tokens == 4 * B
    p.engine.scheduler.abort("a")
    assert p.engine.scheduler.fail("never ran") == []
    out = drive(p, ask("b", prompt))
    assert out.usage("b").cached_tokens == 0
    assert out.tokens["b", 0] == alone("full", ask("b", prompt))
    assert drive(p, ask("c", prompt)).usage("c").cached_tokens == len(prompt) - 1


@pytest.mark.parametrize("b_first", [B - 1, 3 * B + 3])
def test_f005_two_in_the_same_step_do_not_share_what_neither_has_computed(b_first):
    """Less than a span in common: both compute it at once. More: the second waits until it was computed."""
    p = paper(budget=256)
    prompt = words(3 * B + 3)
    log = recorded(p)
    other = (*prompt[:b_first], *words(B, 7))
    out = drive(p, ask("a", prompt), ask("b", other))
    together = b_first < B
    assert {c.seq for c in log.plans[0].chunks} == ({0, 1} if together else {0})
    assert out.tokens["a", 0] == alone("full", ask("a", prompt))
    assert out.tokens["b", 0] == alone("full", ask("b", other))
    assert out.usage("b").cached_tokens == (0 if together else 3 * B)


def test_f005_a_later_one_takes_what_an_earlier_one_has_computed_so_far():
    p = paper(budget=2 * B, chunk=B)
    prompt = words(8 * B + 3)
    p.engine.add(ask("a", prompt))
    for _ in range(4):
        p.engine.step()
    log = recorded(p)
    out = drive(p, ask("b", (*prompt[: 6 * B + 2], 950, 951)))
    first = next(plan for plan in log.plans if any(c.seq == 1 for c in plan.chunks))
    assert any(c.seq == 0 and c.start == 6 * B for c in first.chunks), "it waits for the common part and not longer"
    assert out.usage("b").cached_tokens == 6 * B
    assert out.tokens["b", 0] == alone("full", ask("b", (*prompt[: 6 * B + 2], 950, 951)))


@pytest.mark.parametrize("layout", ["full", "window"])
def test_f007_never_a_silent_empty_answer(layout):
    blocks = 8
    p = paper(layout, blocks=blocks)
    most = p.engine.scheduler.limits.pool_tokens if layout == "full" else 6 * B
    for round_ in range(2):
        for length in (most, most - B, most + B):
            request = ask(f"r{length}.{round_}", words(length, 3), 4)
            if layout == "full" and length > most:
                with pytest.raises(PoolTooSmall, match="8"):
                    p.engine.add(request)
                continue
            out = drive(p, request)
            assert len(out.tokens[request.id, 0]) >= 1
            assert out.tokens[request.id, 0] == alone(layout, request)[: len(out.tokens[request.id, 0])]
            assert out.reason(request.id) == "length"
    assert p.engine.scheduler.counters.cached_tokens > 0


@pytest.mark.parametrize("layout", ["full", "hybrid"])
def test_f020_chunks_are_counted_by_the_suffix_and_never_empty(layout):
    chunk = 2 * B
    for cached in (0, B, 3 * B, 3 * B + 5):
        for suffix in (1, chunk - 1, chunk, chunk + 1, 2 * chunk, 2 * chunk + 1):
            p = paper(layout, budget=chunk)
            prompt = words(cached + suffix, cached + 7)
            if cached:
                drive(p, ask("warm", (*prompt[:cached], 950, 951), 1))
            log = recorded(p)
            request = ask("r", prompt, 3)
            out = drive(p, request)
            hit = out.usage("r").cached_tokens
            assert hit == cached if layout == "full" else hit <= cached
            seq = 1 if cached else 0
            chunks = [(a, b) for a, b in computed_of(log, seq) if a < len(prompt)]
            assert all(a < b for a, b in computed_of(log, seq))
            assert len(chunks) == -(-(len(prompt) - hit) // chunk)
            assert out.tokens["r", 0] == alone(layout, request)


@pytest.mark.parametrize("cached_blocks", [0, 1, 2, 3, 4, 5, 6])
def test_f021_each_token_is_written_once_to_its_own_slot(cached_blocks):
    prompt = words(7 * B + 3)
    for chunk in (1, 7, B, 2 * B, 2 * B + 1, len(prompt)):
        p = paper(budget=chunk)
        if cached_blocks:
            drive(p, ask("warm", prompt[: cached_blocks * B], 1))
        log = recorded(p)
        (seq,) = p.engine.add(ask("r", prompt, 1))
        written: dict[tuple[int, int], int] = {}

        def note(plan, seq=seq, written=written, memory=log.inner.memory):
            for c in plan.chunks:
                for position in range(c.start, c.end):
                    slot = memory.place(seq, LAYOUTS["full"].groups[0], position)
                    assert slot[1] == position % B
                    assert slot not in written, f"{slot} was written for {written[slot]}, now for {position}"
                    written[slot] = position

        log.after = note
        out = drive(p)
        hit = out.usage("r").cached_tokens
        assert hit == cached_blocks * B
        assert sorted(written.values()) == list(range(hit, len(prompt)))
        assert out.tokens["r", 0] == alone("full", ask("r", prompt, 1))


@pytest.mark.parametrize("budget", [1, 3, B - 1, B, 64])
def test_f023_prompts_above_the_budget_are_served_in_chunks(budget):
    for length in (budget - 1 or 1, budget, budget + 1, 3 * budget):
        p = paper(budget=budget, sequences=16, blocks=100)
        requests = [ask("big", words(length, 1), 4)] + [ask(f"s{i}", words(3, i + 2), 3) for i in range(10)]
        out = drive(p, *requests, limit=(length + 100) * 8)
        same_as_alone("full", out, requests)
        p = paper(budget=budget, sequences=16, blocks=100)
        out = drive(p, *requests[1:], requests[0], limit=(length + 100) * 8)
        same_as_alone("full", out, requests)


@pytest.mark.parametrize("layout", HYBRIDS)
def test_f086_prompt_logprobs_are_complete_warm_and_cold(layout):
    prompt = words(5 * B + 3)
    p = paper(layout, budget=2 * B)
    cold = drive(p, ask("cold", prompt, 4, prompt_logprobs=2))
    warm = drive(p, ask("warm", prompt, 4, prompt_logprobs=2))
    plain = drive(p, ask("plain", prompt, 4))
    more = drive(p, ask("more", prompt, 4, prompt_logprobs=5))
    lists = {name: out.events[0].prompt_logprobs for name, out in (("cold", cold), ("warm", warm), ("more", more))}
    for items in lists.values():
        assert len(items) == len(prompt) and items[0] is None
        assert tuple(item.token for item in items[1:]) == prompt[1:]
    assert lists["cold"] == lists["warm"]
    assert [len(i.top) for i in lists["more"][1:]] == [5] * (len(prompt) - 1)
    assert cold.usage("cold").cached_tokens == warm.usage("warm").cached_tokens == more.usage("more").cached_tokens == 0
    assert plain.usage("plain").cached_tokens > 0 and plain.events[0].prompt_logprobs is None
    assert cold.tokens["cold", 0] == warm.tokens["warm", 0] == plain.tokens["plain", 0]


def test_f086_prompt_logprobs_survive_preemption():
    prompt = words(5 * B + 3)
    calm = drive(paper(budget=B), ask("r", prompt, 4, prompt_logprobs=1))
    for moment in range(1, 9):
        p = paper(budget=B)
        log = recorded(p)

        def shove(q, moment=moment):
            if q.engine.scheduler.counters.steps == moment:
                assert q.engine.scheduler.preempt(0)

        out = drive(p, ask("r", prompt, 4, prompt_logprobs=1), each_step=shove)
        first = next(e for e in out.events if e.index == 0)
        assert first.prompt_logprobs == calm.events[0].prompt_logprobs
        assert out.tokens == calm.tokens and out.usage("r").preemptions == 1
        assert out.usage("r").cached_tokens == 0
        assert min(c.start for q in log.plans[moment:] for c in q.chunks) >= B, "the rows it had were asked for again"


def test_f095_cached_plus_computed_is_the_prompt_in_every_situation():
    for layout in HYBRIDS:
        p = paper(layout, budget=3 * B, blocks=200)
        log = recorded(p)
        prompt = words(8 * B + 5, 1)
        asked = [
            ask("cold", prompt),
            ask("full-hit", prompt),
            ask("partial", (*prompt[: 5 * B + 3], *words(30, 2))),
            ask("logprobs", prompt, prompt_logprobs=0),
            ask("off", prompt, reuse=False),
            ask("short", prompt[: 2 * B]),
            ask("past-window", (*prompt[: 3 * B], *words(9, 3))),
        ]
        for request in asked:
            (seq,) = p.engine.add(request)
            out = drive(p)
            computed = sum(min(b, len(request.prompt)) - a for a, b in computed_of(log, seq) if a < len(request.prompt))
            usage = out.usage(request.id)
            assert usage.cached_tokens + computed == usage.prompt_tokens == len(request.prompt), (layout, request.id)
        counters = p.engine.scheduler.counters
        assert 0 < counters.cached_tokens <= counters.prompt_tokens == sum(len(r.prompt) for r in asked)


@pytest.mark.parametrize("layout", HYBRIDS)
def test_f075_permuting_requests_permutes_outputs(layout):
    shared = words(2 * B + 4, 5)
    requests = [ask(f"r{n}", (*shared[: min(n, 36)], *words(n, n)), 24) for n in (1, 5, 17, 64)]
    first = drive(paper(layout, budget=48), *requests)
    second = drive(paper(layout, budget=48), *reversed(requests))
    warm = paper(layout, budget=48)
    drive(warm, ask("warm", shared, 1))
    third = drive(warm, *requests[2:], *requests[:2])
    assert first.tokens == second.tokens == third.tokens
    assert warm.engine.scheduler.counters.cached_tokens > 0
    same_as_alone(layout, first, requests)


def test_idle_books_after_nothing():
    books(paper())


def test_a_hit_whose_copy_leaves_no_room_is_cut_to_whole_blocks():
    p = paper("uneven", blocks=7)
    prompt = words(3 * B + 1)
    drive(p, ask("a", prompt[: 3 * B], 1))
    out = drive(p, ask("b", prompt, 4))
    assert p.engine.scheduler.counters.cut_hits == 1
    assert out.usage("b").cached_tokens == 2 * B
    same_as_alone("uneven", out, [ask("b", prompt, 4)])
