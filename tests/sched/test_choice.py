"""What loading and computing take is learnt, and what a decision cost is known afterwards."""

import pytest

from kvist.config import TierConfig
from kvist.sched.choice import Choice, choose
from kvist.sched.rates import FIRST_BYTES, FIRST_BYTES_PER_S, Fit, Rates
from kvist.sim.tiers import PaperTier
from kvist.transfer import Loaded
from paperwork import SLOW, B, Outcome, ask, drive, paper, same_as_alone, words


def seen(rates, n_bytes, busy_s, times=1):
    for _ in range(times):
        rates.loaded(Loaded(1, (True,), bytes=(n_bytes,), busy_s=(busy_s,)))


def test_before_anything_was_seen_a_belief_stands():
    rates = Rates(2)
    assert rates.load_s([int(FIRST_BYTES), 0], []) == pytest.approx(FIRST_BYTES / FIRST_BYTES_PER_S)
    assert rates.compute_s(0, 100) is None and rates.compute_s(5, 5) == 0


@pytest.mark.parametrize(("latency_s", "bytes_per_s"), [(0.05, 1e8), (0.0, 1e9), (0.002, 5e8), (1.0, 1e6)])
def test_what_a_load_costs_whatever_its_size_is_told_from_what_bytes_cost(latency_s, bytes_per_s):
    """A remote tier seen with small loads only is not thought slow with large ones, nor the other way round."""
    rates = Rates(1)
    for i in range(120):
        n_bytes = (1 + i % 5) * 200_000
        seen(rates, n_bytes, latency_s + n_bytes / bytes_per_s)
    for n_bytes in (100_000, 2_000_000, 50_000_000):
        assert rates.load_s([n_bytes], []) == pytest.approx(latency_s + n_bytes / bytes_per_s, rel=0.08)
    queued = rates.load_s([1_000_000], [9_000_000]) - rates.load_s([1_000_000], [0])
    assert queued == pytest.approx(9e6 / bytes_per_s, rel=0.05), "who waits ahead costs his bytes"


def test_loads_of_one_size_say_what_that_size_takes():
    rates = Rates(1)
    seen(rates, 1_000_000, 0.25, times=200)
    assert rates.load_s([1_000_000], []) == pytest.approx(0.25, rel=0.01)


def test_no_factor_is_below_nothing():
    """Whatever noise: more never takes less time."""
    for pairs in ([(1, 5.0), (10, 1.0)], [(1, 1.0), (10, 100.0)], [(3, 2.0)] * 9, [(1, 0.5), (2, 2.0), (9, 3.0)]):
        fit = Fit()
        for x, y in pairs:
            fit.see(x, 1.0, y, 1.0 / x)
        assert min(fit.factors()) >= 0 and sum(fit.factors()) > 0


def test_a_slow_tier_answers_for_the_slowest():
    rates = Rates(2)
    for _ in range(40):
        rates.loaded(Loaded(1, (True,), bytes=(10**6, 10**6), busy_s=(0.001, 0.5)))
    assert rates.load_s([10**6, 10**6], [0, 0]) == pytest.approx(0.5, rel=0.05)


def test_regret_is_what_the_other_way_would_have_saved():
    loaded = Choice(0, 100, 100, load_s=1.0, compute_s=2.0)
    assert loaded.loaded(100, 5.0, "") == pytest.approx(3.0)
    half = Choice(0, 100, 100, load_s=1.0, compute_s=2.0)
    assert half.loaded(50, 1.5, "missing") == pytest.approx(0.5)
    again = Choice(16, 96, 16, load_s=1.0, compute_s=2.0)
    assert again.what == "recompute"
    assert again.computed(16, 48, 0.75) == 0 == again.computed(48, 80, 0.75), "not known before all is there"
    assert again.computed(80, 112, 0.75) == pytest.approx(1.25) and again.took_s == pytest.approx(2.25)
    assert again.computed(112, 120, 9.0) == 0 and again.took_s == pytest.approx(2.25), "said once"


def test_what_is_computed_again_after_a_preemption_is_no_regret():
    choice = Choice(0, 64, 0, load_s=0.5, compute_s=0.4)
    for _ in range(4):
        assert choice.computed(0, 32, 0.2) == 0
    assert choice.computed(32, 64, 0.2) == 0 and choice.took_s == pytest.approx(0.4)
    grown = Choice(0, 64, 0, load_s=0.1, compute_s=0.4)
    grown.computed(0, 32, 0.2)
    assert grown.computed(96, 112, 0.2) == pytest.approx(0.1) and grown.settled, "the cache had the rest by then"


def tried(true_bytes_per_s, latency_s=1e-4):
    """An engine that has computed something, over a tier that has a prompt it does not know; and that prompt."""
    disk, prompt = PaperTier("disk", true_bytes_per_s, latency_s), words(B * 12 + 3)
    first = paper("full", tiers=[disk], cost=SLOW)
    drive(first, ask("a", prompt), audit=0)
    first.executor.mover.flush()
    p = paper("full", tiers=[disk], cost=SLOW, carry=TierConfig(min_tokens=1))
    drive(p, ask("w", words(B * 4, 9)))
    return p, prompt


def test_loading_in_vain_is_regretted():
    p, prompt = tried(1e5)
    scheduler = p.engine.scheduler
    seen(scheduler.restores.rates, 10**6, 1e-3, times=50)
    same_as_alone("full", drive(p, ask("b", prompt)), [ask("b", prompt)])
    assert scheduler.counters.load_decisions == 1 and scheduler.counters.load_regret_s > 0.01


def test_recomputing_in_vain_is_regretted():
    p, prompt = tried(1e9)
    scheduler = p.engine.scheduler
    for _ in range(50):
        scheduler.restores.rates.computed(100, 5000, 1e-7)
    same_as_alone("full", drive(p, ask("b", prompt)), [ask("b", prompt)])
    assert scheduler.counters.recompute_decisions == 1 and scheduler.counters.load_regret_s > 0.003


def test_a_tier_that_had_a_bad_day_is_tried_again():
    """It is thought twenty times slower than computing is: once it is tried, it is known to be fast."""
    p, prompt = tried(1e9)
    scheduler = p.engine.scheduler
    rates = scheduler.restores.rates
    n_bytes = 12 * p.engine.scheduler.layout.block_bytes
    seen(rates, n_bytes, 20 * rates.compute_s(0, len(prompt)), times=80)
    passed = 0
    while not scheduler.counters.loads:
        scheduler.cache.reset()
        drive(p, ask(f"b{passed}", prompt, 1), audit=0)
        passed += 1
        assert passed < 600
    assert passed > 100, "a tier that is slow is not tried every other time"
    scheduler.cache.reset()
    drive(p, ask("again", prompt, 1), audit=0)
    assert scheduler.counters.loads == 2, "it was seen to be fast"


@pytest.mark.parametrize("times_slower", [1.5, 2, 3, 10])
def test_trying_a_slow_tier_costs_little(times_slower):
    """Beside computing everything a twentieth at most, whatever the tier takes."""
    rates, found, compute_s = Rates(1), 2048, 0.0
    for _ in range(50):
        rates.computed(512, 512 * 1024.0, 0.1)
    alone_s = rates.compute_s(0, found)
    load_s = alone_s * times_slower
    seen(rates, found * 1000, load_s, times=50)
    n, loads = 400, 0
    for _ in range(n):
        choice = choose(rates, lambda end: [0] * (end // 16), base=0, found=found, ends=[found],
                        queued_bytes=[0], block_bytes=16_000, n_tiers=1)  # fmt: skip
        if choice.trial is not None:
            rates.tried(choice.trial)
        if choice.passed_over:
            rates.passed_over(*choice.passed_over)
        if choice.what == "load":
            loads += 1
            seen(rates, found * 1000, load_s)
        compute_s += load_s if choice.what == "load" else alone_s
    assert loads >= 1 and compute_s < 1.06 * n * alone_s


def test_only_the_tier_that_is_slow_when_nobody_waits_is_passed_over():
    rates = Rates(2)
    for _ in range(50):
        rates.computed(512, 512 * 256.0, 0.1)
        rates.loaded(Loaded(1, (True,), bytes=(10**6, 10**6), busy_s=(0.001, 5.0)))

    def decide(tiers, queued=(0, 0)):
        return choose(rates, lambda end: tiers[: end // 16], base=0, found=16 * len(tiers), ends=[160, 16 * len(tiers)],
                      queued_bytes=queued, block_bytes=100_000, n_tiers=2)  # fmt: skip

    part = decide([0] * 10 + [1] * 22)
    assert part.what == "part" and part.passed_over is not None and part.passed_over[0] == 1
    waiting = decide([0] * 32, queued=(10**12, 0))
    assert waiting.what == "recompute" and waiting.passed_over is None, "its queue was too long, not its time"


def test_one_small_slow_load_does_not_rule_large_ones():
    rates = Rates(1)
    for i in range(60):
        n_bytes = (1 + i % 5) * 4_000_000
        seen(rates, n_bytes, 0.001 + n_bytes / 1e9)
    seen(rates, 65_536, 2.0)
    assert rates.load_s([50_000_000]) < 0.7
    for i in range(20):
        n_bytes = (1 + i % 5) * 4_000_000
        seen(rates, n_bytes, 0.001 + n_bytes / 1e9)
    assert rates.load_s([50_000_000]) < 0.1


def test_who_was_sent_back_by_a_failed_load_is_as_urgent_as_before():
    disk, prompt = PaperTier("disk", 1e6, 1e-3), words(B * 8 + 5)
    first = paper("hybrid", tiers=[disk], cost=SLOW)
    drive(first, ask("a", prompt), audit=0)
    first.executor.mover.flush()
    p = paper("hybrid", tiers=[disk], cost=SLOW, carry=TierConfig(load="always", min_tokens=1))
    p.executor.mover.fault = lambda load, i: "error"
    p.engine.add(ask("b", prompt))
    out, scheduler = Outcome(), p.engine.scheduler
    while not scheduler.running:
        out.note(p.engine.step())
    (seq,) = scheduler.running
    assert seq.load is not None
    seq.turn.overtaken, seq.turn.urgent = 5, True
    while not scheduler.waiting:
        out.note(p.engine.step())
    assert scheduler.waiting == (seq,) and seq.turn.overtaken == 5 and seq.turn.urgent
    assert scheduler._roster.urgent == [seq]
    drive(p, outcome=out)
    same_as_alone("hybrid", out, [ask("b", prompt)])
