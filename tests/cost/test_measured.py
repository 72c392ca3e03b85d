"""A measured machine: what it says of a step, what it refuses, and its record on disk."""

import json
from dataclasses import replace

import pytest

from kvist.cost.interval import Interval
from kvist.cost.measured import (
    MeasuredMachine,
    MeasuredPoint,
    Origin,
    Overhead,
    Pipe,
    Spread,
    read,
    store_path,
    write,
)
from kvist.cost.roofline import Traffic
from kvist.cost.work import Chunk, ModelWork, Widths
from kvist.errors import UsageError
from kvist.planner.predict import predict
from kvist.spec.ffn import Ffn
from kvist.spec.format import KVFormat
from kvist.spec.layer import Full, LayerSpec
from kvist.spec.model import ModelSpec

SPEC = ModelSpec(
    architecture="paper",
    hidden=512,
    layers=tuple(LayerSpec(i, Full(), 8, 2, 64, 64, ffn=Ffn(1536)) for i in range(4)),
    vocab=32000,
    context_tokens=8192,
)
ORIGIN = Origin("Paper CPU 9", 8, 4, 64 << 30, "avx2", "2026-01-01T00:00:00+00:00", "paper", "f32", {"kvist": "1"})
MACHINE = MeasuredMachine(
    origin=ORIGIN,
    bandwidth=Interval(40e9, 50e9, 80e9, "measured"),
    multiply_flops_per_s=400e9,
    gemm=((1, 20e9), (512, 300e9)),
    linear=Pipe(1.0, 300e9, 70e9),
    attention={"f16": Pipe(0.7, 250e9), "f32": Pipe(0.6, 300e9)},
    overhead=Overhead(1e-4, 2e-5, 3e-5, 1e-6),
    prefill_spread=Spread(0.9, 1.1),
    decode_spread=Spread(0.8, 1.3),
    points=(MeasuredPoint(500, 2, "f16", 0.3, 0.01, 0.02, -0.01, (4, 5), 1),),
)
WORK = ModelWork(SPEC, KVFormat.parse("f16"), Widths(4, 4, 4, 4))


def decode(context=2000, batch=1):
    return WORK.step([Chunk(1, context)] * batch)


def test_a_step_is_the_sum_of_its_parts_by_the_stated_law():
    work = decode(batch=3)
    parts = MACHINE.parts(work)
    cache = work.kv_read_bytes + work.kv_write_bytes
    memory, cores = cache / (0.7 * 50e9), work.attention_flops / 250e9
    assert parts.attention_s == pytest.approx((memory**4 + cores**4) ** 0.25)
    memory, cores = work.weight_bytes / 50e9, work.weight_bytes / 70e9 + work.linear_flops / 300e9
    assert parts.linear_s == pytest.approx((memory**4 + cores**4) ** 0.25)
    memory, cores = work.head_bytes / 50e9, work.head_bytes / 70e9 + work.head_flops / 300e9
    assert parts.head_s == pytest.approx((memory**4 + cores**4) ** 0.25)
    assert parts.overhead_s == pytest.approx(1e-4 + 3 * 2e-5 + 4 * (3e-5 + 3 * 1e-6))
    assert (parts.linear_bound, parts.attention_bound) == ("bandwidth", "bandwidth")
    assert MACHINE.step(work).best == parts.total_s


def test_many_rows_are_bound_by_arithmetic():
    parts = MACHINE.parts(WORK.step([Chunk(512, 4000)]))
    assert (parts.linear_bound, parts.attention_bound) == ("compute", "compute")


def test_intervals_are_measured_and_hold_the_spread_and_the_memorys_speeds():
    for chunks, spread in (([Chunk(1, 2000)], MACHINE.decode_spread), ([Chunk(300, 100)], MACHINE.prefill_spread)):
        work = WORK.step(chunks)
        seconds = MACHINE.step(work)
        assert seconds.tag == "measured"
        assert seconds.low == pytest.approx(MACHINE.at(80e9).parts(work).total_s * spread.low)
        assert seconds.high == pytest.approx(MACHINE.at(40e9).parts(work).total_s * spread.high)
        assert seconds.low < seconds.best < seconds.high


def test_formats_that_were_not_measured_take_the_nearest_and_say_so():
    assert MACHINE.using(KVFormat.parse("f32")).kv_format == "f32"
    assert not MACHINE.using(KVFormat.parse("f32")).caveats
    for name, near in (("bf16", "f16"), ("q8_0", "f16"), ("f32/f16", "f16"), ("f32", "f32")):
        assert MACHINE.using(KVFormat.planned(name)).kv_format == near
    guessed = MACHINE.using(KVFormat.planned("q8_0"))
    assert "q8_0" in guessed.caveats[0] and "f16" in guessed.caveats[0]
    known, wide = MACHINE.step(decode()), guessed.step(decode())
    assert wide.best == known.best and wide.low < known.low and wide.high > known.high
    with pytest.raises(UsageError, match="no KV format"):
        replace(MACHINE, attention={}).using(KVFormat.parse("f16"))


def test_one_machine_does_not_speak_for_several():
    with pytest.raises(UsageError, match="one device"):
        MACHINE.step(decode(), Traffic(1e6, 8, 1e9))


def test_where_it_fits():
    assert MACHINE.fits_here("Paper CPU 9", 4)
    assert not MACHINE.fits_here("Paper CPU 9", 8) and not MACHINE.fits_here("Other", 4)
    busy = replace(MACHINE, origin=replace(ORIGIN, others=0.3))
    assert "30%" in busy.caveats[0] and not MACHINE.caveats


def test_weights_are_those_of_the_run_and_others_are_spoken_of():
    assert MACHINE.widths == Widths(4, 4, 4, 4) and not MACHINE.other_weights(4.0)
    packed = replace(MACHINE, origin=replace(ORIGIN, weights="packed", weight_bytes=0.72))
    assert MeasuredMachine.from_dict(json.loads(json.dumps(packed.to_dict()))) == packed
    assert packed.widths == Widths(0.72, 0.72, 0.72, 4)
    assert not packed.other_weights(0.625) and not packed.other_weights(0.72)
    for other in (0.5, 1.06, 2.0):
        (said,) = packed.other_weights(other)
        assert "packed weights of 0.72 bytes" in said and f"{other:.3g}" in said


def test_it_stands_as_a_device():
    device = MACHINE.device()
    assert (device.kind, device.memory_bytes, device.bandwidth_bytes_per_s) == ("cpu", 64 << 30, 50e9)
    assert device.flops_for("bf16") == 400e9 and "4 threads" in device.sources[0]


def test_the_record_comes_back_as_it_went(tmp_path):
    plain = json.loads(json.dumps(MACHINE.to_dict(), allow_nan=False))
    assert MeasuredMachine.from_dict(plain) == MACHINE
    used = MACHINE.using(KVFormat.planned("q8_0"))
    assert "notes" not in used.to_dict() and "kv_format" not in used.to_dict()
    path = store_path(tmp_path / "deep" / "home")
    assert path == tmp_path / "deep" / "home" / "machine.json"
    write(MACHINE, path)
    write(MACHINE, path)
    assert read(path) == MACHINE
    assert [p.name for p in path.parent.iterdir()] == ["machine.json"]
    assert store_path().parts[-4:] == (".local", "share", "kvist", "machine.json")
    assert store_path("").parts[-1] == "machine.json" and store_path("") == store_path()


def broken(**changes):
    plain = json.loads(json.dumps(MACHINE.to_dict()))
    for place, value in changes.items():
        *way, last = place.split("__")
        inner = plain
        for name in way:
            inner = inner[name]
        if value is KeyError:
            del inner[last]
        else:
            inner[last] = value
    return plain


@pytest.mark.parametrize(
    "plain,part",
    [
        (broken(version=2), "version 2"),
        (broken(version=KeyError), "version None"),
        ([], "version 'list'"),
        (broken(linear=KeyError), "lacks linear"),
        (broken(linear__share=KeyError), "linear lacks share"),
        (broken(linear__share="fast"), "linear.share is 'fast'"),
        (broken(linear__share=float("nan")), "linear.share is nan"),
        (broken(linear__share=True), "linear.share is True"),
        (broken(linear__speed=1.0), "unknown fields: speed"),
        (broken(linear__flops_per_s=0.0), "cannot be"),
        (broken(overhead__layer_s=-1.0), "cannot be"),
        (broken(attention={}), "cannot be"),
        (broken(attention={"int3": {"share": 1.0, "flops_per_s": 1.0}}), "int3"),
        (broken(attention=[1]), "attention is [1]"),
        (broken(bandwidth__low=9e99), "contradicts itself"),
        (broken(bandwidth__tag="sworn"), "bandwidth.tag is 'sworn'"),
        (broken(gemm=[[1]]), "gemm[0] is [1]"),
        (broken(origin__weights="int8"), "cannot be"),
        (broken(origin__weights="int8", origin__weight_bytes=-1.0), "cannot be"),
        (broken(origin__weights="int3", origin__weight_bytes=0.5), "cannot be"),
        (broken(origin__cores=1.5), "origin.cores is 1.5"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_record_that_does_not_fit_is_refused_by_name(plain, part):
    with pytest.raises(UsageError) as caught:
        MeasuredMachine.from_dict(plain)
    assert part in str(caught.value)


def test_reading_says_what_is_wrong_with_the_file(tmp_path):
    with pytest.raises(UsageError, match="no measurement is stored"):
        read(tmp_path / "none.json")
    for text, part in (("{", "cannot be read"), ('{"version": 7}', "version 7"), ("\x00", "cannot be read")):
        (tmp_path / "m.json").write_text(text)
        with pytest.raises(UsageError, match=part) as caught:
            read(tmp_path / "m.json")
        assert "m.json" in str(caught.value)


def test_predictions_are_the_schedulers_arithmetic_on_this_machine():
    fmt = KVFormat.parse("f16")
    seconds = lambda *chunks: MACHINE.parts(WORK.step(list(chunks))).total_s  # noqa: E731
    one = predict(MACHINE, SPEC, fmt, 700, 1)
    assert one.ttft_s == pytest.approx(seconds(Chunk(512, 0, 0)) + seconds(Chunk(188, 512)))
    assert one.tpot_s == pytest.approx(seconds(Chunk(1, 700)))
    two = predict(MACHINE, SPEC, fmt, 300, 2, budget_tokens=512)
    first = seconds(Chunk(300), Chunk(212, 0, 0))
    last = first + seconds(Chunk(1, 300), Chunk(88, 212))
    assert two.ttft_s == pytest.approx((first + last) / 2)
    assert two.tpot_s == pytest.approx(seconds(Chunk(1, 300), Chunk(1, 300)))
    slow, fast = (predict(MACHINE.at(b), SPEC, fmt, 2000, 4) for b in (20e9, 90e9))
    assert slow.tpot_s > fast.tpot_s and slow.ttft_s > fast.ttft_s


def test_other_formats_are_predicted_with_their_own_rates():
    narrow, wide = (predict(MACHINE, SPEC, KVFormat.parse(f), 6000, 8).tpot_s for f in ("f16", "f32"))
    assert wide > 1.5 * narrow
