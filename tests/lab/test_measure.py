"""Measuring a machine: the points, the fit on steps of a known law, and a whole measurement of a tiny model."""

import json
import random
from dataclasses import replace

import pytest

pytest.importorskip("torch")

from tiny_engine import parts  # noqa: E402

from kvist.cost.measured import MeasuredMachine, Overhead, Pipe  # noqa: E402
from kvist.cost.work import Chunk, ModelWork, Widths  # noqa: E402
from kvist.errors import BadValue, StateError  # noqa: E402
from kvist.lab import host, yardsticks  # noqa: E402
from kvist.lab.fit import Reading, fit, usable  # noqa: E402
from kvist.lab.measure import Measurement, measure  # noqa: E402
from kvist.lab.outcome import machine_of, origin_of  # noqa: E402
from kvist.lab.points import DECODED, POINTS, Point, fitting, pool_tokens  # noqa: E402
from kvist.lab.rig import Model, Rig  # noqa: E402
from kvist.spec.ffn import Ffn  # noqa: E402
from kvist.spec.format import ELEMENTS, KVFormat  # noqa: E402
from kvist.spec.layer import Full, LayerSpec  # noqa: E402
from kvist.spec.model import ModelSpec  # noqa: E402

GRID = {(c, b) for c in (128, 1024, 4096, 7500) for b in (1, 4, 16)}
SPEC = ModelSpec(
    architecture="paper",
    hidden=576,
    layers=tuple(LayerSpec(i, Full(), 9, 3, 64, 64, ffn=Ffn(1536)) for i in range(30)),
    vocab=49152,
    context_tokens=8192,
    tied_embeddings=True,
)
MEASURED = [name for name, element in ELEMENTS.items() if not element.in_cells]
"""Formats with cells are planned by the measured one nearest in width, with a note and a wider spread."""

WORK = {f: ModelWork(SPEC, KVFormat.parse(f), Widths(4, 4, 4, 4)) for f in MEASURED}

LINEAR = Pipe(1.0, 310e9, 75e9)
ATTENTION = {"f16": Pipe(0.72, 260e9, 100e9), "f32": Pipe(0.61, 290e9, 100e9), "bf16": Pipe(0.8, 240e9, 100e9)}
ATTENTION["int8t"] = Pipe(0.55, 280e9, 100e9)
OVERHEAD = Overhead(6e-4, 3e-5, 8e-5, 9e-7)


def test_few_points_none_of_them_on_the_grid_and_every_format():
    assert len(POINTS) <= 10
    assert not {(p.context_tokens, p.batch) for p in POINTS} & GRID
    assert {p.kv_format for p in POINTS} == set(MEASURED)
    assert len(set(POINTS)) == len(POINTS)
    for fmt in MEASURED:
        cached = [p.context_tokens * p.batch for p in POINTS if p.kv_format == fmt]
        assert max(cached) > 10 * min(cached), "reading the cache cannot be told from the rest of a step"


def law(fmt, work, bandwidth):
    cache = work.kv_read_bytes + work.kv_write_bytes
    return (
        OVERHEAD.seconds(work)
        + LINEAR.seconds(work.weight_bytes, work.linear_flops, bandwidth)
        + LINEAR.seconds(work.head_bytes, work.head_flops, bandwidth)
        + ATTENTION[fmt].seconds(cache, work.attention_flops, bandwidth)
    )


def readings(noise=0.0, outliers=0.0, seed=1):
    """What cold and warm rounds of all points would read on a machine that keeps the law."""
    draw, out = random.Random(seed), []

    def add(i, point, chunks, continues):
        bandwidth = draw.choice((53e9, 88e9))
        work = WORK[point.kv_format].step(chunks)
        seconds = law(point.kv_format, work, bandwidth) * draw.gauss(1, noise)
        if draw.random() < outliers:
            seconds *= 1.8
        outside = OVERHEAD.step_s + OVERHEAD.sequence_s * len(chunks)
        out.append(Reading(i, point.kv_format, work, seconds, outside, bandwidth, continues))

    for i, p in enumerate(POINTS):
        for _ in range(2):
            for at in range(0, p.context_tokens, 512):
                add(i, p, [Chunk(min(512, p.context_tokens - at), at)], False)
        for _ in range(6):
            add(i, p, [Chunk(1, p.context_tokens)] * p.batch, True)
    return out


def numbers(found):
    rates = [found.linear.flops_per_s, found.linear.stream_bytes_per_s]
    rates += [x for f in ATTENTION for x in (found.attention[f].share, found.attention[f].flops_per_s)]
    rates.append(found.attention["f16"].stream_bytes_per_s)
    o = found.overhead
    return [*rates, o.step_s, o.sequence_s, o.layer_s, o.layer_sequence_s]


def known():
    rates = [LINEAR.flops_per_s, LINEAR.stream_bytes_per_s]
    rates += [x for pipe in ATTENTION.values() for x in (pipe.share, pipe.flops_per_s)]
    rates.append(ATTENTION["f16"].stream_bytes_per_s)
    return [*rates, OVERHEAD.step_s, OVERHEAD.sequence_s, OVERHEAD.layer_s, OVERHEAD.layer_sequence_s]


def test_a_known_law_is_recovered_from_its_timings():
    assert numbers(fit(readings(), start_flops=100e9)) == pytest.approx(known(), rel=0.05)


@pytest.mark.parametrize("seed", range(4))
def test_steps_of_the_grid_are_foretold_from_noisy_timings_with_outliers(seed):
    found = fit(readings(noise=0.02, outliers=0.1, seed=seed), start_flops=100e9)
    for fmt in MEASURED:
        for context, batch in GRID:
            for chunks in ([Chunk(1, context)] * batch, [Chunk(min(512, context), max(0, context - 512))]):
                work, cache = WORK[fmt].step(chunks), None
                cache = work.kv_read_bytes + work.kv_write_bytes
                for bandwidth in (53e9, 88e9):
                    got = (
                        found.overhead.seconds(work)
                        + found.linear.seconds(work.weight_bytes, work.linear_flops, bandwidth)
                        + found.linear.seconds(work.head_bytes, work.head_flops, bandwidth)
                        + found.attention[fmt].seconds(cache, work.attention_flops, bandwidth)
                    )
                    assert got == pytest.approx(law(fmt, work, bandwidth), rel=0.05), (fmt, context, batch, bandwidth)


def test_the_spread_is_that_of_the_readings():
    exact = fit(readings(), start_flops=100e9).spread(continues=True)
    assert exact.low == pytest.approx(1, abs=0.01) and exact.high == pytest.approx(1, abs=0.01)
    loose = fit(readings(noise=0.1), start_flops=100e9)
    for continues in (True, False):
        spread = loose.spread(continues=continues)
        assert 0.75 < spread.low < 0.93 and 1.07 < spread.high < 1.25


def test_disturbed_readings_are_left_out_while_others_remain():
    clean = readings()
    spoilt = [replace(r, seconds=3 * r.seconds, others=0.4) for r in clean]
    torn = [replace(r, seconds=0.5 * r.seconds, flip=0.5) for r in clean]
    assert usable(clean + spoilt + torn) == usable(clean) == sorted(clean, key=lambda r: (r.point, r.continues))
    assert numbers(fit(clean + spoilt + torn, start_flops=100e9)) == pytest.approx(known(), rel=0.05)
    alike = [r for r in clean if (r.point, r.continues) == (0, True)]
    only = [replace(r, others=0.2 + 0.01 * i) for i, r in enumerate(alike)]
    assert usable(only) == only[:2]


def test_both_kinds_of_step_are_needed():
    with pytest.raises(StateError, match="both kinds"):
        fit([r for r in readings() if r.continues], start_flops=100e9)


def test_points_are_cut_to_what_a_model_sees():
    assert fitting(POINTS, 8192) == POINTS
    short = fitting(POINTS, 256)
    assert max(p.context_tokens for p in short) == 256 - DECODED - 3 and len(set(short)) == len(short)
    with pytest.raises(BadValue, match="context"):
        fitting(POINTS, 16)
    assert pool_tokens(POINTS, "f32") > 5000 + 6 * 700


@pytest.fixture(scope="module")
def model():
    spec, weights = parts("llama")
    return Model("tiny", spec, weights, "f32")


def test_a_rig_reports_what_each_step_computed(model):
    rig = Rig(model, "f16", 600)
    rig.add(model.prompts(2, 70, 1), 3)
    steps = list(rig.steps())
    assert [[(c.new_tokens, c.cached_tokens, c.rows) for c in s.chunks] for s in steps] == [
        [(70, 0, 1), (70, 0, 1)], [(1, 70, 1), (1, 70, 1)], [(1, 71, 1), (1, 71, 1)],
    ]  # fmt: skip
    assert [s.only_continues for s in steps] == [False, True, True]
    assert all(0 < s.forward_s < s.wall_s for s in steps)
    prompts = model.prompts(3, 40, 2)
    assert len(set(prompts)) == 3 and prompts == model.prompts(3, 40, 2) != model.prompts(3, 40, 3)


def test_a_step_that_was_not_done_has_no_time(model):
    rig = Rig(model, "f16", 200)
    rig._watcher._inner = None
    rig.add(model.prompts(1, 20, 1), 3)
    with pytest.raises(StateError, match="a timed step failed"):
        list(rig.steps())


TINY = (Point("f16", 100, 1), Point("f16", 40, 5), Point("f32", 60, 2))


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(yardsticks, "read_bandwidth", lambda: 50e9)
    monkeypatch.setattr(yardsticks, "gemm_rates", lambda: ((1, 1e10), (512, 3e11)))
    monkeypatch.setattr(yardsticks, "multiply_rate", lambda: 4e11)


def test_a_whole_measurement(model, quick):
    told = []
    run = Measurement(model, TINY, on_point=lambda *x: told.append(x))
    run.expect(9)
    with pytest.raises(StateError):
        run.machine()
    run.cold()
    run.warm()
    run.warm()
    machine = run.machine()
    assert MeasuredMachine.from_dict(json.loads(json.dumps(machine.to_dict()))) == machine
    assert [(p.kv_format, p.context_tokens, p.batch) for p in machine.points] == [
        (p.kv_format, p.context_tokens, p.batch) for p in TINY
    ]
    assert set(machine.attention) == {"f16", "f32"}
    for i, p in enumerate(machine.points):
        assert sum(p.readings) + p.left_out == sum(r.point == i for r in run.readings)
        assert min(p.readings) >= 1 and p.prefill_s > 0 and p.decode_s > 0
    decodes = [r for r in run.readings if r.continues]
    assert len(decodes) == 3 * len(TINY)
    assert all(r.work.tokens == r.work.sequences == TINY[r.point].batch for r in decodes)
    assert machine.origin.cpu == host.cpu_name() and machine.origin.threads >= 1
    assert machine.fits_here(host.cpu_name(), machine.origin.threads)
    assert [t[:2] for t in told if "fitting" not in t[2]] == [(i, 9) for i in range(9)]
    assert (machine.origin.weights, machine.origin.weight_bytes) == ("f32", model.weight_bytes)
    assert machine.widths.dense == pytest.approx(4.0, rel=0.02)
    work = ModelWork(model.spec, KVFormat.parse("f16"), machine.widths)
    assert machine.step(work.step([Chunk(1, 50)])).best > 0


def test_cold_rounds_compute_every_token_and_warm_rounds_none(model, quick):
    run = Measurement(model, TINY)
    for _ in range(2):
        start = len(run.readings)
        run.cold()
        fresh = [r for r in run.readings[start:] if not r.continues]
        for i, point in enumerate(TINY):
            computed = sum(r.work.tokens for r in fresh if r.point == i)
            assert computed >= point.tokens, "a prompt was found in the cache"
        start = len(run.readings)
        run.warm()
        assert [r.point for r in run.readings[start:]] == [0, 1, 2], "a prompt was computed again"


def test_points_that_others_spoilt_are_computed_again(model, quick):
    run = Measurement(model, TINY)
    run.cold()
    run.readings = [replace(r, others=0.5 if r.point == 1 else 0.0) for r in run.readings]
    assert run.spoilt == (1,) and run.short == (0, 1, 2)
    start = len(run.readings)
    run.cold(run.spoilt)
    assert {r.point for r in run.readings[start:]} == {1}


def test_the_best_guess_lies_between_the_memorys_speeds(quick):
    machine = machine_of(readings(), POINTS, origin_of("paper", "f32", host.Load.start()))
    assert (machine.bandwidth.low, machine.bandwidth.high) == (53e9, 88e9)
    assert machine.bandwidth.best == pytest.approx((53e9 * 88e9) ** 0.5)
    assert max(abs(p.decode_error) for p in machine.points) < 0.01


def test_a_model_too_slow_for_the_points_gets_shorter_ones(model, quick, monkeypatch):
    monkeypatch.setattr("kvist.lab.measure.PATIENCE_S", 1e-3)
    assert all(p.context_tokens < t.context_tokens for p, t in zip(Measurement(model, TINY).points, TINY, strict=True))


def test_weights_are_measured_as_they_run_by_default():
    from inspect import signature

    from kvist.runtime.build import BuildOptions

    assert signature(measure).parameters["dtype"].default == BuildOptions().dtype == "packed"


def test_wrong_calls_are_refused():
    with pytest.raises(BadValue, match="dtype"):
        measure(dtype="f8")
    with pytest.raises(BadValue, match="threads"):
        measure(threads=-1)


def test_the_yardsticks_are_plausible():
    assert 1e8 < yardsticks.read_bandwidth(0.01) < 1e13
    assert 1e8 < yardsticks.multiply_rate(0.01) < 1e15
    rates = yardsticks.gemm_rates((1, 8), copies=1)
    assert [n for n, _ in rates] == [1, 8] and all(1e7 < r < 1e15 for _, r in rates)
    assert 0 <= host.Load.start().share() <= 1
    assert host.memory_bytes() >= 0 and host.versions()["kvist"]
