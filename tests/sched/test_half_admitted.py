"""F116: several that are being loaded at once fill the pool, and none of them gets the block it still needs."""

from itertools import product
from random import Random

import pytest

from kvist.config import TierConfig
from kvist.errors import PoolTooSmall
from kvist.sim.tiers import PaperTier
from paperwork import LAYOUTS, SLOW, B, Outcome, alone, ask, books, drive, paper, same_as_alone, words


def stored(layout, lengths):
    """A slow tier in which prompts of these lengths are whole."""
    disk = PaperTier("disk", 1e5, 1e-3)
    p = paper(layout, blocks=200, tiers=[disk], cost=SLOW, carry=TierConfig(min_tokens=1))
    drive(p, *[ask(f"s{i}", words(n, i), 1) for i, n in enumerate(lengths)], audit=0)
    p.executor.mover.flush()
    assert layout != "full" or len(disk.records) >= sum(n // B for n in lengths)
    return disk


def play(layout, pool, asks, each_step=None):
    """Everything together in a pool of so many blocks; None: one of them could never be served there."""
    p = paper(layout, blocks=pool, tiers=[stored(layout, [len(r.prompt) for r in asks])], cost=SLOW,
              carry=TierConfig(load="always", min_tokens=1))  # fmt: skip
    try:
        out = drive(p, *asks, limit=1000, audit=0, each_step=each_step)
    except PoolTooSmall:
        return None
    books(p)
    for request in asks:
        n_tokens = p.engine.scheduler.limits.limit_tokens(request) - len(request.prompt)
        for sample in range(request.n):
            assert out.reason(request.id, sample) == "length", (pool, asks)
            want = alone(layout, request, sample)[:n_tokens]
            assert out.tokens[request.id, sample] == want, (pool, request.id, sample)
    return p


def test_a_of_four_blocks_and_b_of_three_in_a_pool_of_seven() -> None:
    """The case as it was met: both loads complete, both want one block more for what they draw or guess."""
    for n_out in (1, 3, B + 1):
        asks = [ask("a", words(4 * B, 0), n_out), ask("b", words(3 * B, 1), n_out)]
        p = play("full", 7, asks)
        assert p is not None and p.engine.scheduler.counters.loads >= 2


def test_every_pool_and_every_need() -> None:
    """Every pool up to 10 blocks, up to 3 requests of every size that fits, all of them in the tier."""
    cases = loads = 0
    for pool in range(3, 11):
        for needs in product(range(1, min(pool, 5) + 1), repeat=3):
            if pool > 7 and sum(needs) < pool:
                continue  # they fit side by side
            asks = [ask(f"r{i}", words(need * B - 4, i), 3) for i, need in enumerate(needs)]
            p = play("full", pool, asks)
            if p is not None:
                cases += 1
                loads += p.engine.scheduler.counters.loads
    assert cases > 300 and loads > 2 * cases


def guessing(p):
    """Everybody who runs guesses four tokens in each step: they need a place, and are wrong."""
    for seq in p.engine.scheduler.running:
        if seq.load is None:
            p.engine.scheduler.propose(seq.id, (1, 2, 3, 4))


EXTRAS = ["a block for what is drawn", "drafts", "copy on write"]


def needy(needs, extra):
    """Requests whose prompts end with their last block, or inside of one that two samples write to."""
    copies = extra == "copy on write"
    return [
        ask(f"r{i}", words(need * B - 5 * copies, i), B // 2 + 1 if copies else 2 * B + 1, n=2 if copies else 1)
        for i, need in enumerate(needs)
    ]


@pytest.mark.parametrize("extra", EXTRAS)
def test_with_a_need_beyond_the_prompt(extra) -> None:
    """Prompts that end with their last block, with guesses, or whose last block two samples write to."""
    copies = extra == "copy on write"
    cases = copied = drafted = loads = 0
    for pool in range(4, 11):
        for needs in product(range(1, min(pool - 1, 4) + 1), repeat=2):
            p = play("full", pool, needy(needs, extra), guessing if extra == "drafts" else None)
            if p is not None:
                cases += 1
                loads += p.engine.scheduler.counters.loads
                copied += p.engine.scheduler.counters.forks
                drafted += p.engine.scheduler.counters.drafted_tokens
    assert cases > 60 and loads > cases
    assert (copied > 20) == copies and (drafted > 100) == (extra == "drafts")


@pytest.mark.parametrize("extra", EXTRAS)
def test_three_with_a_need_beyond_the_prompt(extra) -> None:
    """Some of all pools and needs, drawn anew for each extra; they never fit side by side."""
    rng, three = Random(extra), list(product(range(1, 5), repeat=3))
    grid = [(pool, needs) for pool in range(4, 11) for needs in three if max(needs) < pool <= sum(needs) + 2]
    cases = copied = drafted = loads = 0
    for pool, needs in rng.sample(grid, 30):
        p = play("full", pool, needy(needs, extra), guessing if extra == "drafts" else None)
        if p is not None:
            cases += 1
            loads += p.engine.scheduler.counters.loads
            copied += p.engine.scheduler.counters.forks
            drafted += p.engine.scheduler.counters.drafted_tokens
    assert cases > 20 and loads > 2 * cases
    assert (copied > 20) == (extra == "copy on write") and (drafted > 100) == (extra == "drafts")


@pytest.mark.parametrize("layout", ["window", "hybrid", "chunked", "uneven"])
def test_three_with_the_slack_of_a_window(layout) -> None:
    """The same where a window's blocks come and go, with and without guesses."""
    span, rng = LAYOUTS[layout].span_tokens, Random(layout)
    grid = list(product(range(6, 20), product((2, 3, 5), repeat=3), (None, guessing)))
    cases = loads = drafted = 0
    for pool, needs, each_step in rng.sample(grid, 20):
        asks = [ask(f"r{i}", words(need * span - 4 * i, i), B + 3) for i, need in enumerate(needs)]
        p = play(layout, pool, asks, each_step)
        if p is not None:
            cases += 1
            loads += p.engine.scheduler.counters.loads
            drafted += p.engine.scheduler.counters.drafted_tokens
    assert cases > 8 and loads > 2 * cases and drafted > 100


@pytest.mark.parametrize("layout", ["window", "hybrid", "chunked", "uneven"])
def test_with_the_slack_of_a_window(layout) -> None:
    """Where a window's blocks come and go beside those that stay."""
    span, cases, loads = LAYOUTS[layout].span_tokens, 0, 0
    for pool in range(5, 20):
        for needs in product((2, 3, 5), repeat=2):
            asks = [ask(f"r{i}", words(need * span - 4 * i, i), B + 3) for i, need in enumerate(needs)]
            p = play(layout, pool, asks)
            if p is not None:
                cases += 1
                loads += p.engine.scheduler.counters.loads
    assert cases > 40 and loads > cases


def test_three_that_come_while_the_others_are_being_loaded() -> None:
    """New requests at every moment of two loads: nobody waits for ever."""
    for when in range(14):
        asks = [ask("a", words(4 * B, 0), 4), ask("b", words(3 * B, 1), 4), ask("c", words(5 * B, 2), B)]
        p = paper("full", blocks=8, tiers=[stored("full", [len(r.prompt) for r in asks])], cost=SLOW,
                  carry=TierConfig(load="always", min_tokens=1))  # fmt: skip
        out = Outcome()
        for request in asks[:2]:
            p.engine.add(request)
        for _ in range(when):
            out.note(p.engine.step())
        drive(p, asks[2], outcome=out, limit=1000)
        same_as_alone("full", out, asks)
