"""Moments in which something else happens to what is asked for, loaded or waits to be written."""

from random import Random

import pytest

from kvist.config import TierConfig
from kvist.sim.tiers import PaperTier
from paperwork import SLOW, B, Outcome, ask, drive, paper, recorded, same_as_alone, words

EAGER = TierConfig(load="always", min_tokens=1)


def engine(tiers, layout="full", **more):
    more.setdefault("carry", EAGER)
    return paper(layout, tiers=tiers, cost=SLOW, **more)


def left_by(disk, *requests, layout="full"):
    p = engine([disk], layout, blocks=300)
    drive(p, *requests, audit=0)
    p.executor.mover.flush()


def until(p, out, done, limit=2000):
    """Steps until something is so."""
    for _ in range(limit):
        if done():
            return
        out.note(p.engine.step())
    raise AssertionError("it never came to that")


def test_what_was_asked_from_a_prefix_that_is_gone_is_asked_again() -> None:
    """The pool lost the beginning between the answer and the admission: the load begins at nothing then."""
    disk, prompt = PaperTier("disk", 1e7, 1e-4), words(B * 8 + 5)
    left_by(disk, ask("a", prompt, 1))
    p = engine([disk], blocks=16)
    drive(p, ask("w", prompt[: B * 3 + 2], 1), audit=0)
    scheduler, out = p.engine.scheduler, Outcome()
    p.engine.add(ask("big", words(B * 8, 5), B * 4))
    until(p, out, lambda: scheduler.running and scheduler.running[0].output_tokens)
    p.engine.add(ask("b", prompt, 2))
    before = scheduler.counters.finds
    until(p, out, lambda: scheduler.counters.finds == before + 1)
    for _ in range(5):
        out.note(p.engine.step())
    scheduler.cache.reset()
    drive(p, outcome=out)
    assert scheduler.counters.finds == before + 2
    assert out.usage("b").loaded_tokens == B * 8
    same_as_alone("full", out, [ask("b", prompt, 2)])


def test_what_a_load_brings_after_a_reset_is_not_used() -> None:
    disk, prompt = PaperTier("disk", 1e5, 1e-3), words(B * 6 + 2)
    left_by(disk, ask("a", prompt, 1))
    p = engine([disk])
    scheduler, out = p.engine.scheduler, Outcome()
    p.engine.add(ask("b", prompt, 2))
    until(p, out, lambda: scheduler.restores.loading)
    scheduler.reset()
    drive(p, outcome=out)
    assert out.usage("b").cached_tokens == 0 == out.usage("b").loaded_tokens
    same_as_alone("full", out, [ask("b", prompt, 2)])


def test_what_was_its_own_before_a_preemption_is_no_news_when_it_is_loaded() -> None:
    disk, prompt = PaperTier("disk", 1e8, 1e-4), words(B * 6 + 2)
    p = engine([disk])
    scheduler, out = p.engine.scheduler, Outcome()
    p.engine.add(ask("a", prompt, 40))
    until(p, out, lambda: scheduler.running and scheduler.running[0].output_tokens == 20)
    scheduler.preempt(scheduler.running[0].id)
    p.executor.mover.flush()
    scheduler.cache.reset()
    drive(p, outcome=out)
    counters = scheduler.counters
    assert counters.self_hit_tokens == counters.loaded_tokens == (len(prompt) + 19) // B * B
    assert out.usage("a").cached_tokens == 0 == out.usage("a").loaded_tokens
    same_as_alone("full", out, [ask("a", prompt, 40)])


def test_a_record_that_was_damaged_is_written_anew_once_it_was_computed() -> None:
    disk, prompt = PaperTier("disk", 1e8, 1e-4), words(B * 6 + 2)
    left_by(disk, ask("a", prompt, 1))
    whole = set(disk.records)
    p = engine([disk])
    gone = list(disk.records)[3]

    def fault(load, i):
        if load.records[i] != gone:
            return ""
        disk.records.pop(gone, None)
        return "damaged"

    p.executor.mover.fault = fault
    drive(p, ask("b", prompt, 1))
    p.executor.mover.flush()
    assert p.engine.scheduler.counters.loaded_tokens == B * 3
    assert set(disk.records) == whole


def test_a_prompt_of_more_blocks_than_one_save_takes_is_written_whole() -> None:
    disk, prompt = PaperTier("disk", 1e9, 1e-5), words(B * 150 + 3)
    p = engine([disk], blocks=200, budget=B * 150 + 3)
    drive(p, ask("a", prompt, 1), audit=0)
    p.executor.mover.flush()
    assert len(disk.records) == 150


@pytest.mark.parametrize("when", ["back", "evict", "through"])
def test_what_waits_to_be_written_of_a_tenant_goes_with_his_reset(when) -> None:
    """Another tenant's goes on: both had blocks that waited."""
    disk = PaperTier("disk", 1e9, 1e-5)
    p = engine([disk], blocks=100, carry=TierConfig(when=when, load="always", min_tokens=1))
    scheduler, out = p.engine.scheduler, Outcome()
    mine, its = words(B * 5 + 1, 1), words(B * 5 + 1, 2)
    p.engine.add(ask("busy", words(20, 3), 60, tenant="third", salt=b"3"))
    p.engine.add(ask("a", mine, 2, tenant="one", salt=b"1"))
    p.engine.add(ask("b", its, 2, tenant="two", salt=b"2"))
    until(p, out, lambda: ("a", 0) in out.last and ("b", 0) in out.last)
    scheduler.reset("one")
    drive(p, outcome=out)
    p.executor.mover.flush()
    assert not [r for r, (tenant, _) in disk.records.items() if tenant == "one"]
    kept = sum(tenant == "two" for tenant, _ in disk.records.values())
    assert kept == (0 if when == "evict" else 5)


def test_nobody_is_given_up_while_what_is_being_loaded_holds_the_pool() -> None:
    """One decodes into its next block while all others belong to a slow load: it waits, and ends at its full length."""
    for blocks in range(8, 13):
        disk = PaperTier("disk", 3e4, 1e-3)
        prompt = words(B * 5 + 5, 7)
        left_by(disk, ask("s", prompt, 1))
        p = engine([disk], blocks=blocks)
        out, scheduler = Outcome(), p.engine.scheduler
        p.engine.add(ask("long", words(B + 4, 8), B * 4))
        until(p, out, lambda s=scheduler: s.running and s.running[0].output_tokens)
        p.engine.add(ask("b", prompt, 3))
        drive(p, outcome=out)
        assert out.usage("long").output_tokens == B * 4 and out.usage("b").output_tokens == 3
        same_as_alone("full", out, [ask("b", prompt, 3)])


def test_what_was_loaded_is_its_own_when_it_is_loaded_again() -> None:
    """After a preemption the same tokens come once more: no second hit."""
    disk, prompt = PaperTier("disk", 1e8, 1e-4), words(B * 6 + 2)
    left_by(disk, ask("a", prompt, 1))
    p = engine([disk])
    scheduler, out = p.engine.scheduler, Outcome()
    p.engine.add(ask("b", prompt, 6))
    until(p, out, lambda: scheduler.running and scheduler.running[0].output_tokens == 2)
    scheduler.preempt(scheduler.running[0].id)
    scheduler.cache.reset()
    drive(p, outcome=out)
    counters = scheduler.counters
    assert counters.loaded_tokens == 2 * B * 6 and counters.self_hit_tokens == B * 6 == counters.cached_tokens
    assert out.usage("b").cached_tokens == B * 6 == out.usage("b").loaded_tokens
    same_as_alone("full", out, [ask("b", prompt, 6)])


def test_an_abort_tells_the_mover_that_nobody_waits() -> None:
    disk, prompt = PaperTier("disk", 1e4, 1e-3), words(B * 6 + 2)
    left_by(disk, ask("a", prompt, 1))
    p = engine([disk])
    letters = recorded(p)
    scheduler, out = p.engine.scheduler, Outcome()
    p.engine.add(ask("b", prompt, 6))
    until(p, out, lambda: scheduler.restores.loading)
    (load,) = [load.id for plan in letters.plans for load in plan.loads]
    p.engine.add(ask("c", prompt, 6))
    out.note(p.engine.abort("b"))
    drive(p, outcome=out)
    assert [id for plan in letters.plans for id in plan.cancels] == [load]
    same_as_alone("full", out, [ask("c", prompt, 6)])


def test_blocks_that_wait_are_written_whoever_holds_them_by_then() -> None:
    """A prompt waits to be written while another that shares half of it divides its place in the tree."""
    disk = PaperTier("disk", 1e9, 1e-5)
    p = engine([disk], blocks=300, carry=TierConfig(when="back", load="always", min_tokens=1))
    one = words(B * 6 + 2, 1)
    two = (*one[: B * 3], *words(B * 3 + 2, 2))
    out, done = Outcome(), lambda name: (name, 0) in out.last
    p.engine.add(ask("busy", words(20, 3), 60))
    p.engine.add(ask("a", one, 2))
    until(p, out, lambda: done("a"))
    p.engine.add(ask("b", two, 2))
    until(p, out, lambda: done("b"))
    assert not disk.records, "it was never quiet"
    drive(p, outcome=out)
    p.executor.mover.flush()
    for name, prompt in (("c", one), ("d", two)):
        assert drive(engine([disk]), ask(name, prompt, 1)).usage(name).loaded_tokens == B * 6


@pytest.mark.parametrize("when", ["through", "back"])
@pytest.mark.parametrize("least", [1, 64])
def test_ancestors_are_written_first_and_none_is_left_out(when, least) -> None:
    """Prompts that part ways within their first 64 tokens: what is below the least length lies on longer chains too."""
    stem = words(B * 8, 9)
    for seed in range(6):
        rng = Random(seed)
        disk = PaperTier("disk", 1e9, 1e-5)
        p = engine([disk], blocks=400, carry=TierConfig(when=when, load="always", min_tokens=least))
        letters = recorded(p)
        prompts = [(*stem[: B * rng.randrange(6)], *words(rng.randrange(5, 90), 100 * seed + i)) for i in range(12)]
        for i, prompt in enumerate(sorted(prompts, key=len)):
            drive(p, ask(f"r{i}", prompt, 2))
        p.executor.mover.flush()
        seen = set()
        for save in (save for plan in letters.plans for save in plan.saves):
            for block in save.blocks:
                assert not block.depth or block.parent in seen, "a record was sent before its parent, or without it"
                seen.add(block.record)
        q = engine([disk], blocks=400)
        for i, prompt in enumerate(prompts):
            whole = len(prompt) // B * B
            if whole >= max(least, 2 * B):
                q.engine.scheduler.cache.reset()
                hit = drive(q, ask(f"q{i}", prompt, 1), audit=0).usage(f"q{i}").loaded_tokens
                assert hit == min(whole, len(prompt) - 1)


def test_a_conversation_of_hundreds_of_short_turns_is_no_fault() -> None:
    """Nodes below one another, all of them shorter than what goes to tiers."""
    disk = PaperTier("disk")
    p = engine([disk], blocks=900, context_tokens=1 << 20, carry=TierConfig(min_tokens=10**6))
    tokens = words(B * 401)
    for turn in range(1, 400):
        drive(p, ask(f"t{turn}", tokens[: B * turn + 1], 1), audit=0)
    assert not disk.records and p.engine.scheduler.counters.finished_length == 399
