"""F111: a long prompt beside sequences that continue and small requests that come, on a virtual clock."""

import pytest

from kvist.cost.table import CostTable
from paperwork import Outcome, ask, drive, paper, recorded, words

BUDGET, CHUNKS = 128, 100
COST = CostTable.linear(4e-3, 2e-5)


def bench():
    p = paper(blocks=1200, budget=BUDGET, sequences=32, context_tokens=1 << 15, cost=COST, check=False)
    return p, recorded(p)


def long_alone():
    p, log = bench()
    (seq,) = p.engine.add(ask("long", words(CHUNKS * BUDGET, 1), 1))
    drive(p, audit=0)
    return len(log.plans), p.engine.timeline(seq).ttft_s


def crowd(every, small_tokens):
    """The long prompt with 8 running sequences, and a small request every so many steps."""
    p, log = bench()
    out = Outcome()
    decodes = [p.engine.add(ask(f"d{i}", words(4, i), 250))[0] for i in range(8)]
    for _ in range(3):
        out.note(p.engine.step())
    before = len(log.plans)
    (long,) = p.engine.add(ask("long", words(CHUNKS * BUDGET, 99), 1))
    small: dict[int, int] = {}
    while p.engine.scheduler.sequence(long):
        if (len(log.plans) - before) % every == every - 1:
            (seq,) = p.engine.add(ask(f"s{len(small)}", words(small_tokens, 200 + len(small)), 2))
            small[seq] = len(log.plans)
        out.note(p.engine.step())
    drive(p, outcome=out, audit=0)
    during = [plan for plan in log.plans[before:] if any(c.seq == long for c in plan.chunks)]
    return p, log, decodes, long, small, during


@pytest.mark.parametrize("every,small_tokens", [(3, 8), (5, 16), (10, 60)])
def test_f111_everybody_lives(every, small_tokens):
    steps, seconds = long_alone()
    assert steps == CHUNKS
    p, log, decodes, long, small, during = crowd(every, small_tokens)
    for plan in during:
        assert set(decodes) <= {c.seq for c in plan.chunks}, "decodes advance every step"
        assert any(len(c.tokens) > 1 for c in plan.chunks if c.seq == long)
    assert len(during) <= 1.3 * steps, "the long prompt finishes within 1.3x of alone"
    assert p.engine.timeline(long).ttft_s <= 1.3 * seconds
    assert len(small) >= CHUNKS // every
    unloaded = -(-small_tokens // BUDGET)
    for seq, arrived in small.items():
        first = next(i for i, plan in enumerate(log.plans) if any(s.seq == seq for s in plan.samples))
        assert first - arrived + 1 <= 3 * unloaded, "time to the first token in steps"
        assert p.engine.timeline(seq).ttft_s <= 3.001 * unloaded * COST.step_s(BUDGET, 0)


def test_nothing_is_left_unused_while_a_prompt_lacks_tokens():
    _, _, _, long, _, during = crowd(5, 16)
    for plan in during[:-1]:
        assert plan.computed_tokens == BUDGET


def test_what_was_set_aside_for_one_who_follows_goes_to_the_leader():
    p, log = bench()
    for name in "ab":
        p.engine.add(ask(name, words(5 * BUDGET, 1), 1))
    drive(p, audit=0)
    assert [len(c.tokens) for c in log.plans[0].chunks] == [BUDGET]


def test_two_long_prompts_share_four_to_one():
    p, log = bench()
    a, b = (p.engine.add(ask(name, words(50 * BUDGET, i), 1))[0] for i, name in enumerate("ab"))
    drive(p, audit=0)
    parts = {c.seq: len(c.tokens) for c in log.plans[10].chunks}
    assert parts == {a: BUDGET * 80 // 100, b: BUDGET - BUDGET * 80 // 100} or parts[a] == 1 + (BUDGET - 1) * 80 // 100
    assert sum(parts.values()) == BUDGET
