"""The budget of prompt tokens learnt from seconds."""

from dataclasses import replace

import pytest

from kvist.config import CacheConfig, EngineConfig, SchedConfig
from kvist.cost.table import CostTable
from kvist.errors import BadValue
from kvist.sched.pace import FLOOR_TOKENS, Pace, read_slo
from kvist.sim.run import paper_engine
from paperwork import CONTEXT, LAYOUTS, B, Outcome, ask, drive, recorded, words


@pytest.mark.parametrize(
    "text,expected",
    [
        ("off", (None, None)),
        ("80ms", (0.08, None)),
        (" 0.5S ", (0.5, None)),
        ("2x", (None, 2.0)),
        ("1.5x", (None, 1.5)),
    ],
)
def test_slos_are_read(text, expected):
    assert read_slo(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "80", "fast", "-3ms", "0s", "1x", "0.5x", "nanms", "infs", "x", "2xx"])
def test_others_are_refused(text):
    with pytest.raises(BadValue, match="itl_slo"):
        read_slo(text)


def test_nobody_waits_for_a_token_or_no_slo_means_the_whole_budget():
    assert Pace("off").prompt_tokens(512, continues=True) == 512
    pace = Pace("10ms")
    assert pace.prompt_tokens(512, continues=False) == 512 and pace.limit_tokens is None
    assert pace.prompt_tokens(512, continues=True) == FLOOR_TOKENS == pace.limit_tokens
    assert pace.prompt_tokens(7, continues=True) == 7


def test_it_starts_small_and_at_most_doubles():
    pace = Pace("1s")
    seen = []
    for _ in range(6):
        n = pace.prompt_tokens(300, continues=True)
        seen.append(n)
        pace.learn(continued=2, chunk_tokens=n, seconds=1e-3 + n * 1e-5)
    assert seen == [16, 32, 64, 128, 256, 300]


def test_one_hiccup_is_forgiven_and_growth_is_followed():
    pace = Pace("20ms")
    for _ in range(3):
        pace.learn(continued=1, chunk_tokens=0, seconds=2e-3)
    for _ in range(8):
        pace.learn(continued=1, chunk_tokens=100, seconds=2e-3 + 100 * 1e-4)
    assert pace.prompt_tokens(999, continues=True) == pytest.approx(180, abs=1)
    pace.learn(continued=1, chunk_tokens=100, seconds=5.0)
    assert pace.prompt_tokens(999, continues=True) == pytest.approx(180, abs=1)
    for i in range(8):
        pace.learn(continued=1, chunk_tokens=100, seconds=2e-3 + 100 * (2e-4 + i * 1e-6))
    assert pace.prompt_tokens(999, continues=True) == pytest.approx(0.018 / 2.06e-4, abs=1)


def test_it_learns_nothing_from_steps_that_only_compute_prompts():
    pace = Pace("20ms")
    pace.learn(continued=0, chunk_tokens=512, seconds=1.0)
    assert pace.chunk_token_s == pace.decode_step_s == 0


def bench(slo, cost, budget=512):
    config = EngineConfig(
        CacheConfig(blocks=2000, block_tokens=B), SchedConfig(token_budget=budget, max_sequences=32, itl_slo=slo)
    )
    p = paper_engine(LAYOUTS["full"], config, context_tokens=CONTEXT, cost=cost, check=False)
    return p, recorded(p)


def gaps(p, log, long_prompts, warm_up):
    """Seconds of the steps that continued somebody while prompts of 3,000 tokens came, after a warm-up of one."""
    for i in range(6):
        p.engine.add(ask(f"d{i}", words(10, i), 1000))
    out = Outcome()
    for _ in range(10):
        out.note(p.engine.step())
    for i in range(warm_up):
        (seq,) = p.engine.add(ask(f"warm{i}", words(1500, 70 + i), 1))
        while p.engine.scheduler.sequence(seq):
            out.note(p.engine.step())
    first = len(log.plans)
    seqs = [p.engine.add(ask(f"long{i}", words(3000, 50 + i), 1))[0] for i in range(long_prompts)]
    while any(p.engine.scheduler.sequence(s) for s in seqs):
        out.note(p.engine.step())
    last = len(log.plans)
    drive(p, outcome=out, audit=0)
    return log.plans[first:last], [r.seconds for r in log.results[first:last]]


COSTS = {"linear": CostTable.linear(5e-3, 4e-5), "attention": CostTable.linear(5e-3, 4e-5, 2e-7)}


@pytest.mark.parametrize("cost", list(COSTS))
@pytest.mark.parametrize("slo", ["10ms", "20ms", "2x", "3x"])
def test_the_longest_gap_is_bounded_and_prompts_are_not_starved(slo, cost):
    table = COSTS[cost]
    p, log = bench(slo, table)
    plans, seconds = gaps(p, log, 2, warm_up=1)
    decode_s = p.engine.scheduler.pace.decode_step_s
    bound = float(slo[:-2]) / 1e3 if slo.endswith("ms") else float(slo[:-1]) * decode_s
    assert max(seconds) <= bound + table.step_s(FLOOR_TOKENS, 0) - table.step_s(0, 0)
    decoding = {0, 1, 2, 3, 4, 5}
    assert all(decoding <= {c.seq for c in plan.chunks} for plan in plans), "decodes advance every step"
    chunks = [plan.computed_tokens - 6 for plan in plans]
    assert min(chunks[:-2]) >= FLOOR_TOKENS
    possible = (bound - decode_s) / 4e-5
    assert sum(chunks) / len(chunks) >= 0.6 * possible, "and the bound is used"


def test_without_a_bound_gaps_are_as_long_as_the_budget():
    p, log = bench("off", COSTS["linear"])
    plans, seconds = gaps(p, log, 2, warm_up=1)
    assert max(seconds) == pytest.approx(COSTS["linear"].step_s(512, 0), rel=0.05)
    assert p.engine.metrics()["pace_limit_tokens"] == -1


def test_answers_do_not_depend_on_the_pace():
    def run(slo):
        p, _ = bench(slo, COSTS["linear"])
        return drive(p, *[ask(f"r{i}", words(300 + i, i), 30) for i in range(8)], audit=50).tokens

    assert run("off") == run("8ms") == run("1.5x")


def test_the_pace_is_among_the_metrics():
    p, log = bench("10ms", COSTS["linear"])
    gaps(p, log, 1, warm_up=0)
    m = p.engine.metrics()
    assert m["pace_decode_step_s"] == pytest.approx(COSTS["linear"].step_s(6, 0))
    assert m["pace_chunk_token_s"] == pytest.approx(4e-5, rel=0.01)


def test_a_bad_slo_is_refused_when_the_engine_is_put_together():
    with pytest.raises(BadValue, match="itl_slo"):
        paper_engine(LAYOUTS["full"], replace(EngineConfig(), sched=SchedConfig(itl_slo="soon")), context_tokens=64)
