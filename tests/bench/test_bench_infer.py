"""Hits from time alone: what is found, and when nothing may be said."""

import random

import pytest
from bench_records import record

from kvist.bench import infer


def line(n):
    return 0.05 + 0.001 * n


def cold_ones(*lengths):
    return [record(n, line(n)) for n in lengths]


ALONE = cold_ones(100, 200, 300, 400, 100, 200, 300, 400)
SAME = cold_ones(400, 400, 400, 400, 400)


def test_hits_seen_from_outside():
    cold = cold_ones(100, 200, 300, 400, 150, 250)
    warm = record(400, line(100), optimum_tokens=300)
    fit = infer.fit([*cold, warm], [])
    assert fit.usable and fit.source == "cold prompts of the run"
    assert fit.seconds_per_token == pytest.approx(0.001) and fit.overhead_s == pytest.approx(0.05)
    assert fit.cached_tokens(warm) == pytest.approx(300)
    assert fit.cached_tokens(cold[0]) == pytest.approx(0)
    assert fit.cached_tokens(record(400, 0.001)) == 400
    assert fit.cached_tokens(record(400, 9.0)) == 0


def test_one_stray_measurement_does_not_bend_the_line():
    cold = cold_ones(*range(100, 1100, 100)) + [record(500, 30.0)]
    assert infer.fit(cold, []).seconds_per_token == pytest.approx(0.001)


def test_prompts_that_the_server_calls_cached_are_not_cold():
    liars = [record(n, 0.05, cached_tokens=n - 1) for n in (150, 250, 350, 450)]
    cold = cold_ones(100, 200, 300, 400, 120, 220)
    assert infer.fit([*cold, *liars], []).seconds_per_token == pytest.approx(0.001)


def test_equal_lengths_need_the_calibration():
    assert "0 cold prompts of several lengths" in infer.fit(SAME, []).why
    assert "same length" in infer.fit(SAME, cold_ones(*[100] * 8)).why
    fit = infer.fit(SAME, ALONE)
    assert fit.usable and fit.source == "prompts sent alone before the run"


@pytest.mark.parametrize("points", range(1, 9))
def test_a_line_needs_enough_prompts(points):
    fit = infer.fit(SAME, ALONE[:points])
    assert fit.usable == (points >= 6), fit.why


@pytest.mark.parametrize("alone,usable", [(0, False), (3, False), (7, False), (8, True), (16, True)])
def test_only_requests_that_were_alone_are_judged(alone, usable):
    """Hits that waited: 0.3 s of queue on top of what 100 of 400 tokens take."""
    hits = [record(400, line(100), optimum_tokens=300) for _ in range(alone)]
    waited = [record(400, line(100) + 0.3, optimum_tokens=300, alone=False) for _ in range(16 - alone)]
    fit = infer.fit([*hits, *waited], ALONE)
    assert fit.usable == usable
    if usable:
        assert {round(fit.cached_tokens(r)) for r in hits} == {300}
        assert all(fit.cached_tokens(r) is None for r in waited)
    else:
        assert f"{alone} of 16 requests were alone" in fit.why and "--concurrency 1" in fit.why
        assert fit.cached_tokens(record()) is None


def test_cold_prompts_that_waited_do_not_make_the_line():
    cold = cold_ones(100, 200, 300, 400, 150, 250)
    waited = [record(n, 3 * line(n), alone=False) for n in (100, 200, 300, 400)]
    assert infer.fit([*cold, *waited], []).seconds_per_token == pytest.approx(0.001)


@pytest.mark.parametrize("times,why", [(0.5, "0.5 times as long as before"), (2, "2 times as long"), (1.15, "")])
def test_a_server_that_changed_its_speed(times, why):
    fit = infer.fit([record(400, times * line(400)) for _ in range(5)], ALONE)
    assert fit.why == "" if not why else why in fit.why and "waiting" not in fit.why


@pytest.mark.parametrize(
    "ttft_s,why", [(2 * line(400), "4 of 12 requests took longer than a cold"), (-0.1, "4 of 12 requests took less")]
)
def test_requests_that_the_line_cannot_explain(ttft_s, why):
    hits = [record(400, line(100), optimum_tokens=300) for _ in range(8)]
    strange = [record(400, ttft_s, optimum_tokens=300) for _ in range(4)]
    assert why in infer.fit([*hits, *strange], ALONE).why
    assert infer.fit([*hits, *hits, strange[0]], ALONE).usable, "one in seventeen may be strange"


def test_a_calibration_that_was_cached_is_told():
    cached = [record(n, line(10), cached_tokens=n - 10) for n in (100, 200, 300, 400) * 2]
    assert "in the cache from before" in infer.fit(SAME, cached).why
    by_chance = [record(n, line(n), cached_tokens=2) for n in (20, 40, 60, 80) * 2]
    assert infer.fit(SAME, by_chance).usable


@pytest.mark.parametrize(
    "times,why",
    [
        ((0.6, 0.5, 0.4, 0.3, 0.2, 0.1), "does not grow"),
        ((0.1, 0.5, 0.4, 0.3, 0.2, 0.6), "does not grow"),
        ((0.1, 0.12, 0.14, 0.16, 0.9, 1.5), "scatters"),
    ],
)
def test_lines_that_are_none(times, why):
    cold = [record(n, t) for n, t in zip((100, 150, 200, 250, 300, 350), times, strict=True)]
    assert why in infer.fit(cold, []).why


def test_noise_is_hardly_ever_taken_for_a_line():
    """TTFT that has nothing to do with length, of a server that does not compute: 500 calibrations."""
    usable = 0
    for seed in range(500):
        draw = random.Random(seed)
        noise = [record(n, draw.uniform(0.001, 0.005)) for n in (100, 200, 300, 400) * 2]
        run = [record(400, draw.uniform(0.001, 0.005), optimum_tokens=300) for _ in range(12)]
        usable += infer.fit(run, noise).usable
    assert usable == 0


def test_a_little_noise_is_borne():
    draw = random.Random(1)
    noisy = [record(n, line(n) * draw.uniform(0.97, 1.03)) for n in (100, 200, 300, 400) * 2]
    hits = [record(400, line(100) * draw.uniform(0.97, 1.03), optimum_tokens=300) for _ in range(12)]
    fit = infer.fit(hits, noisy)
    assert fit.usable and sum(fit.cached_tokens(r) for r in hits) / 12 == pytest.approx(300, abs=20)


def test_nothing_measured_infers_nothing():
    assert infer.fit([], []).why == "0 requests were answered, it takes 4"
