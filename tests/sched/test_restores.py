"""Hits made longer by tiers, on paper: every read is checked, so a wrong byte would be a fault, not an answer."""

from __future__ import annotations

from random import Random

import pytest

from kvist.config import TierConfig
from kvist.sim.tiers import PaperTier
from paperwork import LAYOUTS, SLOW, B, Outcome, ask, check, drive, paper, same_as_alone, words


def engine(tiers, layout="full", **more):
    return paper(layout, tiers=tiers, cost=SLOW, **more)


def left_by(tiers, layout, *requests, **more) -> None:
    """What another engine leaves behind that had time to finish its writing."""
    p = engine(tiers, layout, **more)
    drive(p, *requests, audit=0)
    p.executor.mover.flush()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n", [B * 4 + 3, B * 8, B * 8 + 1, B * 13 + 7])
def test_a_second_engine_loads_what_the_first_left(layout, n) -> None:
    """F017, F045: all whole blocks are in the tier, the next process loads them, the answer is the same."""
    disk = PaperTier()
    first, again = ask("a", words(n)), ask("b", words(n))
    left_by([disk], layout, first)
    span = LAYOUTS[layout].span_tokens
    assert len(disk.records) >= (n + 7) // span
    p = engine([disk], layout)
    out = drive(p, again)
    same_as_alone(layout, out, [again])
    usage, counters = out.usage("b"), p.engine.scheduler.counters
    want = n - 1 if n % span == 0 else n // span * span
    assert usage.loaded_tokens == usage.cached_tokens == want == counters.loaded_tokens
    assert counters.computed_tokens == n - want + 7
    assert counters.load_decisions == 1 and counters.failed_loads == 0
    assert counters.known_blocks <= LAYOUTS[layout].blocks_for(span), "at most the last span was computed again"


def test_nothing_is_asked_without_tiers_or_when_told_so() -> None:
    disk = PaperTier()
    left_by([disk], "full", ask("a", words(200)))
    p = paper("full", tiers=[disk], carry=TierConfig(load="never"))
    out = drive(p, ask("b", words(200)))
    assert out.usage("b").loaded_tokens == 0 == p.engine.scheduler.counters.finds
    q = paper("full")
    drive(q, ask("b", words(200)))
    assert q.engine.scheduler.counters.finds == 0 and q.engine.scheduler.idle


def prompts(rng: Random, n: int) -> list[tuple[int, ...]]:
    """Prompts with common beginnings of every length."""
    stems = [words(200, seed) for seed in range(3)]
    out = []
    for i in range(n):
        stem = stems[rng.randrange(3)][: rng.randrange(1, 200)]
        out.append((*stem, *words(rng.randrange(1, 60), 1000 + i)))
    return out


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("when", ["through", "back", "evict"])
@pytest.mark.parametrize("seed", range(2))
def test_whatever_happens_answers_are_the_same_and_books_hold(layout, when, seed) -> None:
    """F042-F044, F050, F033: slow tiers, a pool too small, failing loads, aborts, resets and steps that fail."""
    rng = Random(f"{layout} {when} {seed}")
    tiers = [PaperTier("ram", 4e6, 1e-3, most_records=30), PaperTier("disk", 1e6, 5e-3)]
    load = rng.choice(["auto", "always"])
    p = engine(
        tiers, layout, blocks=rng.choice([30, 40, 60]), sequences=6, budget=48,
        carry=TierConfig(
            when=when, load=load, min_tokens=rng.choice([1, 40]), second_use=rng.random() < 0.3,
            check=rng.choice([0, 1]),
        ),
    )  # fmt: skip
    reasons = ("missing", "damaged", "timeout", "error", "foreign")
    p.executor.mover.fault = lambda load, i: rng.choice(reasons) if rng.random() < 0.05 else ""
    requests = [ask(f"r{i}", t, rng.randrange(1, 12), n=rng.choice([1, 1, 2])) for i, t in enumerate(prompts(rng, 40))]
    gone: set[str] = set()
    waiting = list(requests)

    def each(p):
        events = []
        if waiting and rng.random() < 0.3:
            p.engine.add(waiting.pop())
        if rng.random() < 0.02 and (live := sorted(p.engine.scheduler._roster.requests)):
            gone.add(name := rng.choice(live))
            events += p.engine.abort(name)
        if rng.random() < 0.01:
            p.engine.scheduler.reset()
        if rng.random() < 0.01 and (running := p.engine.scheduler.running):
            p.engine.scheduler.preempt(rng.choice(running).id)
        return events

    out = drive(p, waiting.pop(), each_step=each)
    while waiting:
        out = drive(p, waiting.pop(), each_step=each, outcome=out)
    same_as_alone(layout, out, [r for r in requests if (r.id, 0) in out.last])
    for request in requests:
        if request.id not in gone:
            assert out.reason(request.id) == "length", out.last[request.id, 0]
    counters = p.engine.scheduler.counters
    assert not p.engine.scheduler.restores.loading and not p.engine.scheduler.carry.asked
    assert not p.engine.scheduler.restores._questions and not p.engine.scheduler.restores._asked
    assert counters.loads >= counters.failed_loads


@pytest.mark.parametrize("layout", ["full", "hybrid"])
@pytest.mark.parametrize("seed", range(4))
def test_f042_steps_that_fail_while_loads_are_out(layout, seed) -> None:
    """What runs ends with an error, what is being loaded goes on, nobody vanishes, the books hold."""
    rng = Random(seed)
    tiers = [PaperTier("disk", 4e5, 5e-3)]
    requests = [ask(f"r{i}", t, 6) for i, t in enumerate(prompts(rng, 24))]
    left_by(tiers, layout, *[ask(f"w{r.id}", r.prompt, 2) for r in requests[:12]], blocks=200)
    p = engine(tiers, layout, blocks=60, sequences=6, budget=48, carry=TierConfig(load="always", min_tokens=1))
    inner, failed = p.executor._draw, []

    def draw(plan, rows):
        if rng.random() < 0.08 and plan.chunks:
            failed.append(plan.step)
            raise RuntimeError("out of order")
        return inner(plan, rows)

    p.executor._draw = draw
    waiting, out = list(requests), Outcome()

    def each(p):
        if waiting and rng.random() < 0.4:
            p.engine.add(waiting.pop())

    while waiting:
        drive(p, waiting.pop(), each_step=each, outcome=out)
    assert failed and {r.id for r in requests} == {name for name, _ in out.last}
    assert {out.reason(r.id) for r in requests} == {"length", "error"}
    same_as_alone(layout, out, requests)
    assert p.engine.scheduler.counters.loads > 0 and not p.engine.scheduler.restores.loading


def test_what_tiers_do_at_all_in_those_runs() -> None:
    """The random runs above load, fail and recompute: else they would prove nothing."""
    totals = dict.fromkeys(("loads", "failed_loads", "loaded_tokens", "saved_blocks", "unloaded_tokens"), 0)
    rng = Random(4)
    for layout in ("full", "hybrid", "window"):
        tiers = [PaperTier("disk", 4e6, 1e-4)]
        p = engine(tiers, layout, blocks=40, sequences=6, budget=48, carry=TierConfig(load="always"))
        p.executor.mover.fault = lambda load, i: "damaged" if rng.random() < 0.15 else ""
        for i, tokens in enumerate(prompts(rng, 30)):
            drive(p, ask(f"r{i}", tokens, 6))
        for name in totals:
            totals[name] += getattr(p.engine.scheduler.counters, name)
    assert all(totals.values()), totals
    assert totals["loads"] > 10 and totals["failed_loads"] > 3


@pytest.mark.parametrize("layout", ["full", "hybrid"])
@pytest.mark.parametrize("bad", [0, 3, 7])
@pytest.mark.parametrize("reason", ["error", "missing", "timeout", "damaged", "foreign"])
def test_f050_a_failed_load_keeps_what_came_before_it(layout, bad, reason) -> None:
    disk, prompt = PaperTier(), words(B * 8 + 5)
    left_by([disk], layout, ask("a", prompt))
    p = engine([disk], layout, carry=TierConfig(load="always"))
    p.executor.mover.fault = lambda load, i: reason if i == bad else ""
    again = ask("b", prompt)
    out = drive(p, again)
    same_as_alone(layout, out, [again])
    counters = p.engine.scheduler.counters
    assert counters.failed_loads == 1
    kept = bad * B if layout == "full" else 0  # windows need all or nothing
    assert counters.loaded_tokens == kept == out.usage("b").loaded_tokens
    assert counters.computed_tokens == len(prompt) - kept + 7


def test_f051_local_and_tier_hits_never_overlap() -> None:
    """Local hits of every length beside tier hits of every length: at least one token is computed, the sum is n."""
    for n in (B * 6, B * 6 + 1, B * 6 - 1, B * 6 + 9):
        prompt = words(n)
        for local in range(0, n + 1, 7):
            for stored in range(n // B + 1):
                disk = PaperTier()
                if stored:
                    left_by([disk], "full", ask("s", prompt[: stored * B], 1))
                p = engine([disk], carry=TierConfig(load="always", min_tokens=1))
                if local:
                    drive(p, ask("l", (*prompt[:local], 5), 1), audit=0)
                    disk.records = dict(list(disk.records.items())[:stored])
                before = p.engine.scheduler.counters.computed_tokens
                again = ask("b", prompt, 2)
                out = drive(p, again)
                same_as_alone("full", out, [again])
                usage = out.usage("b")
                computed = p.engine.scheduler.counters.computed_tokens - before - 1
                assert computed >= 1
                assert usage.cached_tokens + computed == n, (n, local, stored)
                assert usage.loaded_tokens <= usage.cached_tokens


def test_f015_no_tier_serves_another_salt() -> None:
    """RAM, disk and remote, each alone: another salt and none read nothing; the same salt hits."""
    for where in range(3):
        tiers = [PaperTier(name) for name in ("ram", "disk", "remote")]
        prompt = words(B * 6 + 2)
        left_by(tiers, "full", ask("a", prompt, salt=b"one"))
        for i, tier in enumerate(tiers):
            if i != where:
                tier.records.clear()
        for salt, want in ((b"two", 0), (b"", 0), (b"one", B * 6)):
            p = engine(tiers)
            out = drive(p, ask("b", prompt, salt=salt))
            assert out.usage("b").cached_tokens == want == p.engine.scheduler.counters.loaded_tokens
            assert (p.engine.scheduler.counters.loads == 0) == (want == 0), "no record was read"
            drive(p)
            for tier in tiers:
                tier.records = {k: v for k, v in tier.records.items() if tier is tiers[where]}
            tiers[where].records = dict(list(tiers[where].records.items()))


def test_f048_another_fingerprint_is_a_miss() -> None:
    disk, prompt = PaperTier(), words(B * 6 + 2)
    left_by([disk], "full", ask("a", prompt), fingerprint=b"weights one")
    for fingerprint, want in ((b"weights two", 0), (b"weights one", B * 6)):
        out = drive(engine([disk], fingerprint=fingerprint), ask("b", prompt))
        assert out.usage("b").cached_tokens == want


def test_f054_after_a_reset_nothing_is_served_by_any_tier() -> None:
    """Idle, while requests run, and while transfers are under way."""
    for seed in range(30):
        rng = Random(seed)
        tiers = [PaperTier("ram", 1e6, 1e-3), PaperTier("disk", 5e5, 1e-3)]
        p = engine(tiers, blocks=40, carry=TierConfig(load="always"))
        prompt = words(B * 6 + 2)
        drive(p, ask("a", prompt))
        p.engine.scheduler.cache.reset()  # the pool alone: what follows is loaded
        p.engine.add(ask("running", (*prompt, 3), 6))
        out = Outcome()
        for _ in range(rng.randrange(12)):
            out.note(p.engine.step())
        freed, id = p.engine.scheduler.reset()
        drive(p, audit=0, outcome=out)
        assert freed >= 0 and out.reason("running") == "length"
        answer = p.engine.scheduler.carry.dropped.pop(id)
        assert len(answer.records) == 2 and min(answer.records) >= 0
        left = sum(len(t.records) for t in tiers)
        p.engine.scheduler.cache.reset()
        out = drive(p, ask("b", prompt, 3))
        if not left:
            assert out.usage("b").cached_tokens == 0
        same_as_alone("full", out, [ask("b", prompt, 3)])
        check(p)


def test_nothing_is_asked_or_loaded_while_a_reset_is_under_way() -> None:
    """A request that comes right after the reset computes everything, and asks again once the tiers are empty."""
    disk, prompt = PaperTier("disk", 1e6, 5e-2), words(B * 6 + 2)
    left_by([disk], "full", ask("a", prompt))
    p = engine([disk], carry=TierConfig(load="always", min_tokens=1))
    _, id = p.engine.scheduler.reset()
    out = drive(p, ask("b", prompt, 3))
    assert out.usage("b").cached_tokens == 0 == p.engine.scheduler.counters.finds
    assert p.engine.scheduler.carry.dropped[id].records[0] >= 6


def test_what_stays_after_a_reset_is_sent_again() -> None:
    """A conversation that runs through a reset is whole in the tier afterwards, its beginning too."""
    disk, prompt = PaperTier("disk"), words(B * 6 + 2)
    p = engine([disk], carry=TierConfig(min_tokens=1))
    p.engine.add(ask("a", prompt, B * 3))
    out = Outcome()
    for _ in range(12):
        out.note(p.engine.step())
    p.engine.scheduler.reset()
    drive(p, outcome=out)
    p.executor.mover.flush()
    out = drive(engine([disk], carry=TierConfig(load="always", min_tokens=1)), ask("b", prompt, 2))
    assert out.usage("b").loaded_tokens == B * 6


def test_a_load_starts_beside_a_long_answer_where_a_window_has_a_hole() -> None:
    """The cache gives less than the longest match where window blocks are gone: then that is what a load begins at."""
    disk, prompt = PaperTier("disk"), words(B * 12 + 3)
    left_by([disk], "hybrid", ask("a", prompt, 1))
    p = engine([disk], "hybrid", blocks=300, carry=TierConfig(load="always", min_tokens=1))
    drive(p, ask("w", prompt[: B * 5], 1), audit=0)
    tree = p.engine.scheduler.cache._tree
    node = next(iter(next(iter(tree.roots.values())).children.values()))
    rule = tree.bounded[0]
    tree.tombstone(node, rule, [2])
    p.engine.add(ask("long", words(40, 7), 200))
    for _ in range(5):
        p.engine.step()
    p.engine.add(ask("b", prompt, 1))
    steps = 0
    while not any(e.request == "b" for e in p.engine.step()):
        steps += 1
        assert steps < 40
