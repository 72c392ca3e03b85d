"""The budget of prompt tokens learnt from seconds."""

from dataclasses import replace

import pytest

from kvist.config import CacheConfig, EngineConfig, SchedConfig
from kvist.cost.table import CostTable
from kvist.errors import BadValue
from kvist.sched.pace import FLOOR_TOKENS, PROBE_EVERY, PROBE_GAP, PROBES, Load, Pace, read_slo
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
    assert Pace("off").prompt_tokens(512, Load(1)) == 512
    pace = Pace("10ms")
    assert pace.prompt_tokens(512, None) == 512 and pace.limit_tokens is None
    assert pace.prompt_tokens(512, Load(1)) == FLOOR_TOKENS == pace.limit_tokens
    assert pace.prompt_tokens(3, Load(1)) == 3


def test_it_starts_small_and_at_most_doubles():
    pace = Pace("1s")
    seen = []
    for _ in range(6):
        n = pace.prompt_tokens(300, Load(1))
        seen.append(n)
        pace.learn(Load(2), chunk_tokens=n, seconds=1e-3 + n * 1e-5)
    assert seen == [FLOOR_TOKENS << i for i in range(6)]


def test_one_hiccup_is_forgiven_and_growth_is_followed():
    pace = Pace("20ms")
    for _ in range(3):
        pace.learn(Load(1), chunk_tokens=0, seconds=2e-3)
    for _ in range(8):
        pace.learn(Load(1), chunk_tokens=100, seconds=2e-3 + 100 * 1e-4)
    assert pace.prompt_tokens(999, Load(1)) == pytest.approx(180, abs=1)
    pace.learn(Load(1), chunk_tokens=100, seconds=5.0)
    assert pace.prompt_tokens(999, Load(1)) == pytest.approx(180, abs=1)
    for i in range(8):
        pace.learn(Load(1), chunk_tokens=100, seconds=2e-3 + 100 * (2e-4 + i * 1e-6))
    assert pace.prompt_tokens(999, Load(1)) == pytest.approx(0.018 / 2.06e-4, abs=1)


def test_it_learns_nothing_from_steps_that_only_compute_prompts():
    pace = Pace("20ms")
    pace.learn(Load(0), chunk_tokens=512, seconds=1.0)
    assert pace.chunk_token_s == pace.decode_step_s == 0


def mixed(pace, load, decode_s, n_steps, token_s=1e-4):
    """Steps with all the prompt tokens there may be; how many each had."""
    chunks = []
    for _ in range(n_steps):
        n = pace.prompt_tokens(10_000, load)
        pace.learn(load, chunk_tokens=n, seconds=decode_s + n * token_s)
        chunks.append(n)
    return chunks


def test_when_the_load_grew_it_looks_again_what_continuing_costs():
    pace = Pace("2x")
    mixed(pace, Load(4, 4000), 10e-3, 40)
    chunks = mixed(pace, Load(40, 40_000), 50e-3, 30)
    assert chunks.count(0) == PROBES and pace.decode_step_s == 50e-3
    assert chunks[-1] == pytest.approx(500, abs=2)
    assert mixed(pace, Load(38, 42_000), 51e-3, PROBE_EVERY // 2).count(0) == 0, "much the same"
    back = mixed(pace, Load(4, 4000), 10e-3, 2)
    assert back[-1] <= 100, "what was seen at this load is still known"


def test_it_looks_again_now_and_then_and_never_for_long():
    pace = Pace("30ms")
    chunks = mixed(pace, Load(4, 4000), 10e-3, 10 * PROBE_EVERY)
    assert 9 * PROBES <= chunks.count(0) <= 11 * PROBES
    wild = [mixed(pace, Load(i, i * 9000), 10e-3, 1)[0] for i in range(1, 1000)]
    assert wild.count(0) <= 1000 * PROBES / PROBE_GAP and max(wild) > 100


def test_a_hiccup_while_it_looks_does_not_count():
    pace = Pace("2x")
    mixed(pace, Load(4, 4000), 10e-3, PROBE_GAP)
    assert pace.prompt_tokens(999, Load(4, 4000)) == 0
    pace.learn(Load(4, 4000), chunk_tokens=0, seconds=5.0)
    mixed(pace, Load(4, 4000), 10e-3, 10)
    assert pace.decode_step_s == 10e-3


@pytest.mark.parametrize("kv_token_s", [1e-8, 1e-7, 2e-7])
def test_a_queue_that_is_never_empty_is_not_starved_and_gaps_are_bounded(kv_token_s):
    """Batch and context grow from 1 to what the pool holds while the queue never empties."""
    table = CostTable.linear(5e-3, 2e-5, kv_token_s)

    def run(slo):
        p, log = bench(slo, table, budget=1024, blocks=8000, max_sequences=64)
        drive(p, ask("warm", words(8), 40), audit=0)
        start, first = p.clock.now(), len(log.plans)
        drive(p, *[ask(f"r{i}", words(800, i), 150) for i in range(90)], audit=0)
        return p.clock.now() - start, log.plans[first:], log.results[first:]

    off_s, *_ = run("off")
    paced_s, plans, results = run("2x")
    assert paced_s <= 1.25 * off_s
    gaps = []
    for plan, result in zip(plans, results, strict=True):
        singles = [c for c in plan.chunks if len(c.tokens) == 1 and c.start >= 800]
        if singles:
            alone_s = table.step_s(len(singles), sum(c.start + 1 for c in singles))
            gaps.append(result.seconds / alone_s)
    assert len(gaps) > 150 and sum(gap > 2.2 for gap in gaps) <= len(gaps) / 100
    assert max(gaps) <= 2.5, "a load seen a while ago, and the prompt's own context"


def bench(slo, cost, budget=512, blocks=2000, max_sequences=32):
    config = EngineConfig(
        CacheConfig(blocks=blocks, block_tokens=B),
        SchedConfig(token_budget=budget, max_sequences=max_sequences, itl_slo=slo),
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
    probes = [plan for plan in plans if plan.computed_tokens == 6]
    assert len(probes) <= len(plans) * PROBES / PROBE_GAP
    decoding = {0, 1, 2, 3, 4, 5}
    assert all(decoding <= {c.seq for c in plan.chunks} for plan in plans), "decodes advance every step"
    chunks = [plan.computed_tokens - 6 for plan in plans if plan not in probes]
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
