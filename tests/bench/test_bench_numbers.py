"""Times, percentiles, promises: against numbers made by hand."""

import pytest
from bench_records import record

from kvist.bench.record import Timeline
from kvist.bench.slo import Slo
from kvist.bench.spread import Spread
from kvist.bench.wire import Piece
from kvist.errors import BadValue


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
