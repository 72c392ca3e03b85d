"""Times, percentiles, promises, hits: against numbers made by hand."""

import pytest

from kvist.bench import infer
from kvist.bench.record import Record, Timeline
from kvist.bench.slo import Slo
from kvist.bench.spread import Spread
from kvist.bench.wire import Piece
from kvist.errors import BadValue


def record(prompt=100, ttft=1.0, **more):
    fields = {
        "name": "r", "turn": 0, "role": "", "due_s": 0.0, "sent_s": 0.0, "ttft_s": ttft, "tpot_s": 0.1, "e2e_s": 2.0,
        "itl_s": (0.1, 0.1), "prompt_tokens": prompt, "output_tokens": 3, "cached_tokens": None,
        "asked_output_tokens": 3, "optimum_tokens": 0, "events": 3, "usage_reported": True, "finish_reason": "length",
    }  # fmt: skip
    return Record(**{**fields, **more})


def test_a_timeline():
    line = Timeline(sent_s=10.0)
    line.take(Piece(True), 10.5)
    for now, text in ((11.0, "a"), (11.5, "b"), (13.0, "c")):
        line.take(Piece(True, text), now)
    line.take(Piece(False, prompt_tokens=7, output_tokens=5, cached_tokens=2), 13.1)
    assert line.ttft_s == 1.0
    assert line.gaps_s == [0.5, 1.5]
    assert line.tpot_s == 2.0 / 4
    assert (line.prompt_tokens, line.counted_output_tokens, line.cached_tokens, line.events) == (7, 5, 2, 3)
    assert line.answer().text == "abc" and line.answer().token_ids is None


def test_a_timeline_without_usage_counts_ids_then_events():
    line = Timeline(0.0)
    line.take(Piece(True, "a", (1, 2)), 1.0)
    assert line.counted_output_tokens == 2 and line.answer().token_ids == (1, 2)
    assert line.tpot_s is None
    line.take(Piece(True, "b"), 2.0)
    assert line.answer().token_ids == (1, 2)
    other = Timeline(0.0)
    other.take(Piece(True, "a"), 1.0)
    assert other.counted_output_tokens == 1 and other.tpot_s is None


def test_an_answer_of_invisible_tokens_has_a_ttft():
    line = Timeline(0.0)
    line.take(Piece(True), 3.0)
    assert line.ttft_s is None
    line.take(Piece(True, output_tokens=4), 9.0)
    assert line.ttft_s == 3.0


def test_percentiles():
    spread = Spread.of([None, *range(1, 101)])
    assert (spread.count, spread.mean, spread.max) == (100, 50.5, 100)
    assert spread.p50 == 50.5
    assert spread.p90 == pytest.approx(90.1)
    assert spread.p99 == pytest.approx(99.01)
    assert Spread.of([None]) is None
    assert Spread.of([3.0]) == Spread(1, 3.0, 3.0, 3.0, 3.0, 3.0)


def test_promises():
    slo = Slo.parse("ttft=2s, tpot=100ms")
    assert slo.bounds == (("ttft", 2.0), ("tpot", 0.1))
    assert slo.met(record(ttft=2.0)) and not slo.met(record(ttft=2.1))
    assert not slo.met(record(tpot_s=0.11)) and slo.met(record(tpot_s=None))
    assert not slo.met(record(error="cut"))
    longest = Slo.parse("itl=0.5,e2e=1min")
    assert longest.met(record()) and not longest.met(record(itl_s=(0.1, 0.6))) and not longest.met(record(e2e_s=61))


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft=", "ttft=2h", "tttf=2s", "ttft=0", "ttft=-1", "ttft=1,ttft=2", "ttft=1.2.3"]
)
def test_promises_that_are_none(text):
    with pytest.raises(BadValue, match="slo"):
        Slo.parse(text)


def line(n):
    return 0.05 + 0.001 * n


def test_hits_seen_from_outside():
    cold = [record(n, line(n)) for n in (100, 200, 300, 400)]
    warm = record(400, line(100), optimum_tokens=300)
    fit = infer.fit([*cold, warm], [])
    assert fit.usable and fit.source == "cold prompts of the run"
    assert fit.seconds_per_token == pytest.approx(0.001) and fit.overhead_s == pytest.approx(0.05)
    assert fit.cached_tokens(warm) == pytest.approx(300)
    assert fit.cached_tokens(cold[0]) == pytest.approx(0)
    assert fit.cached_tokens(record(400, 0.001)) == 400
    assert fit.cached_tokens(record(400, 9.0)) == 0


def test_one_stray_measurement_does_not_bend_the_line():
    cold = [record(n, line(n)) for n in range(100, 1100, 100)] + [record(500, 30.0)]
    assert infer.fit(cold, []).seconds_per_token == pytest.approx(0.001)


def test_prompts_that_the_server_calls_cached_are_not_cold():
    liars = [record(n, 0.05, cached_tokens=n - 1) for n in (150, 250, 350, 450)]
    cold = [record(n, line(n)) for n in (100, 200, 300, 400)]
    assert infer.fit([*cold, *liars], []).seconds_per_token == pytest.approx(0.001)


def test_equal_lengths_need_the_calibration():
    run = [record(400, line(400)) for _ in range(5)]
    assert "same length" in infer.fit(run, []).why
    alone = [record(n, line(n)) for n in (100, 200, 300, 400)]
    fit = infer.fit(run, alone)
    assert fit.usable and fit.source == "prompts sent alone before the run"


def test_waiting_hides_hits_and_is_told():
    alone = [record(n, line(n)) for n in (100, 200, 300, 400)]
    fit = infer.fit([record(400, 5 * line(400)) for _ in range(5)], alone)
    assert not fit.usable and "waiting" in fit.why


@pytest.mark.parametrize("times,why", [((0.4, 0.3, 0.2, 0.1), "does not grow"), ((0.1, 0.9, 0.1, 0.91), "scatters")])
def test_lines_that_are_none(times, why):
    cold = [record(n, t) for n, t in zip((100, 110, 190, 200), times, strict=True)]
    assert why in infer.fit(cold, []).why


def test_nothing_measured_infers_nothing():
    assert not infer.fit([], []).usable
