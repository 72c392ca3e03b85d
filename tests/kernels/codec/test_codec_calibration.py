"""From rows to means, to a file, and back; and every way in which that can be refused."""

import json
import math
import os

import pytest
import torch
from codec_bench import assert_same_bits, frequencies, normal_rows
from safetensors.torch import load as read_tensors
from safetensors.torch import save as to_bytes

from kvist.errors import BadValue, CorruptFile, StateError, UsageError
from kvist.kernels.codec import registry
from kvist.kernels.codec.base import Where
from kvist.kernels.codec.calibrate import Calibrator
from kvist.kernels.codec.calibration import Calibration, LayerStatistics
from kvist.kernels.codec.calibration_file import load, save
from kvist.kernels.codec.position import turned

MODEL = bytes(range(32))
SHAPES = {0: (2, 64), 3: (1, 32)}


def rows_of(layer, tokens=60, start=0):
    """K around a mean that turns with the position, V wider than K."""
    heads, dim = SHAPES[layer]
    mean = torch.linspace(-3, 5, heads * dim).reshape(heads, dim)
    k = turned(mean[:, None], start, tokens, frequencies(dim), interleaved=False)
    return k + 0.1 * normal_rows(heads, tokens, dim, seed=start), 4 * normal_rows(heads, tokens, 48, seed=start + 1)


def calibrated(chunks=((0, 60),), layers=(0, 3)):
    to = Calibrator(MODEL, SHAPES)
    for start, tokens in chunks:
        for layer in layers:
            k, v = rows_of(layer, 60)
            part = slice(start, start + tokens)
            to.add(layer, k[:, part], v[:, part], start=start, inverse_frequencies=frequencies(SHAPES[layer][1]))
    return to.finish()


def with_layer(index, **changes):
    """A calibration's layers with one changed."""
    layers = dict(calibrated().layers)
    one = {name: getattr(layers[index], name) for name in ("mean", "pre_rope_mean", "k_scale", "v_scale")}
    layers[index] = LayerStatistics(**{**one, **changes})
    return layers


def test_means_and_scales_are_those_of_the_rows():
    got = calibrated()
    assert got.tokens == 60 and list(got.layers) == [0, 3]
    for layer in SHAPES:
        k, v = rows_of(layer)
        found = got.layers[layer]
        assert torch.allclose(found.mean, k.mean(dim=1), atol=1e-6)
        back = turned(k, 0, 60, frequencies(SHAPES[layer][1]), interleaved=False, back=True)
        assert torch.allclose(found.pre_rope_mean, back.mean(dim=1), atol=1e-5)
        wanted = torch.linspace(-3, 5, found.mean.numel()).reshape(found.mean.shape)
        assert (found.pre_rope_mean - wanted).abs().max() < 0.1 < (found.mean - wanted).abs().max()
        assert found.k_scale == pytest.approx(float(k.abs().max()) / 448)
        assert found.v_scale == pytest.approx(float(v.abs().max()) / 448)


def test_chunks_add_up():
    """Whatever the chunks: double precision leaves nothing of the order in a float32 mean."""
    whole, parts = calibrated(), calibrated(((0, 1), (1, 30), (31, 0), (31, 29)))
    for layer in SHAPES:
        for name in ("mean", "pre_rope_mean"):
            assert torch.allclose(getattr(whole.layers[layer], name), getattr(parts.layers[layer], name), atol=1e-7)
    assert parts.tokens == 60


def test_many_equal_rows_keep_their_mean():
    """Float32 sums would drift: 0.1 ten thousand times over a start of a million."""
    to = Calibrator(MODEL, {0: (1, 16)})
    to.add(0, torch.full((1, 1, 16), 1e6), None, start=0, inverse_frequencies=torch.empty(0))
    for _ in range(50):
        to.add(0, torch.full((1, 200, 16), 0.1), None, start=1, inverse_frequencies=torch.empty(0))
    assert to.finish().layers[0].mean[0, 0].item() == pytest.approx((1e6 + 1000) / 10001, rel=1e-7)


def test_large_rows_that_cancel_leave_the_small_ones():
    """Within one chunk too."""
    to = Calibrator(MODEL, {0: (1, 16)})
    rows = torch.tensor([1e8, 1.0, -1e8]).repeat(100)[None, :, None].expand(1, 300, 16)
    to.add(0, rows, None, start=0, inverse_frequencies=torch.empty(0))
    found = to.finish().layers[0]
    assert found.mean[0, 3].item() == found.pre_rope_mean[0, 3].item() == pytest.approx(1 / 3, rel=1e-6)


def test_a_fitting_calibration_feeds_the_codecs():
    found = calibrated().layers[0]
    assert found.mean_for(registry.load("sm4").needs) is found.mean
    assert found.mean_for(registry.load("ms4").needs) is found.pre_rope_mean
    assert found.mean_for(registry.load("lm4").needs) is None
    k, v = rows_of(0)
    for side, rows in (("k", k), ("v", v)):
        codec = registry.load("fp8_e4m3", side, scale=found.scale_of(side))
        assert int((codec.encode(rows, Where(side)).codes & 0x7F).max()) == 0x7E, (
            "the largest number gets the largest code"
        )


def test_layers_without_values_and_layers_of_zeros_have_a_scale_of_one():
    to = Calibrator(MODEL, {0: (1, 16)})
    to.add(0, torch.zeros(1, 4, 16), None, start=0, inverse_frequencies=torch.empty(0))
    assert (to.finish().layers[0].k_scale, to.finish().layers[0].v_scale) == (1.0, 1.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rows_that_are_no_numbers_are_refused_and_leave_no_trace(bad):
    to = Calibrator(MODEL, {3: SHAPES[3]})
    k, v = rows_of(3)
    to.add(3, k, v, start=0, inverse_frequencies=frequencies(32))
    before = to.finish().digest
    for which in (k, v):
        broken = which.clone()
        broken[0, 7, 3] = bad
        args = (broken, v) if which is k else (k, broken)
        with pytest.raises(BadValue, match=f"layer 3 {'k' if which is k else 'v'}={bad}"):
            to.add(3, *args, start=0, inverse_frequencies=frequencies(32))
    assert to.finish().digest == before


def test_wrong_layers_shapes_and_counts_are_refused():
    to = Calibrator(MODEL, SHAPES)
    k, v = rows_of(0)
    with pytest.raises(BadValue, match="layer=1 .*one of 0, 3"):
        to.add(1, k, v, start=0, inverse_frequencies=frequencies())
    for rows in (k[:1], k[..., :32], k[0]):
        with pytest.raises(BadValue, match=r"layer 0 k=.*\[2, tokens, 64\]"):
            to.add(0, rows, v, start=0, inverse_frequencies=frequencies())
    with pytest.raises(StateError, match="layer 0 has seen 0 tokens"):
        to.finish()
    to.add(0, k, v, start=0, inverse_frequencies=frequencies())
    with pytest.raises(StateError, match="layer 3 has seen 0 tokens, others 60"):
        to.finish()


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 1e-40])
@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
def test_f072_scales_that_are_none_are_refused_with_layer_and_value(name, value, tmp_path):
    with pytest.raises(BadValue, match=f"layer 3 {name}={value}"):
        Calibration(MODEL, 60, with_layer(3, **{name: value}))
    with pytest.raises(CorruptFile, match=f"layer 3 {name}="):
        load(forged(tmp_path, {f"3.{name}": torch.tensor([value])}), model=MODEL, shapes=SHAPES)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["mean", "pre_rope_mean"])
def test_f072_means_that_are_no_numbers_are_refused_with_layer_and_value(name, value, tmp_path):
    bad = getattr(calibrated().layers[0], name).clone()
    bad[1, 9] = value
    with pytest.raises(BadValue, match=f"layer 0 {name}={value}"):
        Calibration(MODEL, 60, with_layer(0, **{name: bad}))
    with pytest.raises(CorruptFile, match=f"layer 0 {name}={value}"):
        load(forged(tmp_path, {f"0.{name}": bad}), model=MODEL, shapes=SHAPES)


def test_other_shapes_types_and_counts_are_refused():
    for mean in (torch.zeros(64), torch.zeros(2, 64).double(), torch.zeros(2, 32)):
        with pytest.raises(BadValue, match="layer 0 pre_rope_mean=.*float32"):
            Calibration(MODEL, 60, with_layer(0, pre_rope_mean=mean))
    with pytest.raises(BadValue, match="tokens=0"):
        Calibration(MODEL, 0, calibrated().layers)


def test_the_digest_is_of_everything():
    one = calibrated()
    digests = [one.digest]
    digests.append(Calibration(bytes(32), 60, one.layers).digest)
    digests.append(Calibration(MODEL, 61, one.layers).digest)
    digests.append(Calibration(MODEL, 60, {0: one.layers[0], 4: one.layers[3]}).digest)
    digests.append(Calibration(MODEL, 60, {0: one.layers[0]}).digest)
    digests.append(Calibration(MODEL, 60, with_layer(0, k_scale=0.5)).digest)
    digests.append(Calibration(MODEL, 60, with_layer(0, mean=one.layers[0].pre_rope_mean)).digest)
    changed = one.layers[3].mean.clone()
    changed[0, 31] = torch.nextafter(changed[0, 31], torch.tensor(9.0))
    digests.append(Calibration(MODEL, 60, with_layer(3, mean=changed)).digest)
    for shape in ((4, 32), (1, 128)):
        means = {name: getattr(one.layers[0], name).reshape(shape) for name in ("mean", "pre_rope_mean")}
        digests.append(Calibration(MODEL, 60, with_layer(0, **means)).digest)
    assert len(set(digests)) == len(digests) and {len(d) for d in digests} == {16}
    assert calibrated().digest == one.digest
    assert Calibration(MODEL, 60, {3: one.layers[3], 0: one.layers[0]}).digest == one.digest, "order says nothing"


def test_a_file_gives_back_what_was_saved(tmp_path):
    one = calibrated()
    save(one, tmp_path / "c.safetensors")
    got = load(tmp_path / "c.safetensors", model=MODEL, shapes=SHAPES)
    assert got.digest == one.digest and (got.model, got.tokens) == (MODEL, 60)
    for layer in SHAPES:
        for name in ("mean", "pre_rope_mean"):
            assert_same_bits(getattr(got.layers[layer], name), getattr(one.layers[layer], name))
        assert (got.layers[layer].k_scale, got.layers[layer].v_scale) == (
            one.layers[layer].k_scale,
            one.layers[layer].v_scale,
        )
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]


def forged(folder, changes, **metadata):
    """A file that someone else wrote well, with other contents."""
    one = calibrated()
    told = {"format": "kvist.calibration.1", "model": MODEL.hex(), "tokens": "60", "digest": one.digest.hex()}
    tensors = {k: v for k, v in (one.tensors() | changes).items() if v is not None}
    (folder / "forged").write_bytes(to_bytes(tensors, told | metadata))
    return folder / "forged"


@pytest.mark.parametrize(
    "changes,metadata,message",
    [
        ({"3.mean": None}, {}, "layer 3 mean=None.*of 2 layers"),
        ({"0.v_scale": None}, {}, "layer 0 v_scale=None"),
        ({"5.mean": torch.zeros(1, 1)}, {}, "'5.mean'.*layers 0, 3"),
        ({"3.mean": torch.zeros(1, 64)}, {}, r"layer 3 mean=.*\[1, 64\].*\[1, 32\]"),
        ({"3.mean": torch.zeros(1, 32).half()}, {}, "layer 3 mean=.*float16"),
        ({"3.k_scale": torch.ones(2)}, {}, r"layer 3 k_scale=.*\[2\]"),
        ({"3.mean": torch.zeros(1, 32)}, {}, "damaged"),
        ({}, {"model": "ab" * 32}, "model abababab.*not 00010203"),
        ({}, {"format": "kvist.calibration.9"}, "format 'kvist.calibration.9'"),
        ({}, {"tokens": "-4"}, "tokens='-4'"),
        ({}, {"tokens": "61"}, "damaged"),
        ({}, {"digest": "00" * 16}, "damaged"),
    ],
)
def test_files_that_do_not_fit_are_refused(changes, metadata, message, tmp_path):
    with pytest.raises(CorruptFile, match=message):
        load(forged(tmp_path, changes, **metadata), model=MODEL, shapes=SHAPES)


def test_the_forger_can_write_a_good_file(tmp_path):
    assert load(forged(tmp_path, {}), model=MODEL, shapes=SHAPES).digest == calibrated().digest


def test_a_file_without_metadata_or_of_another_kind_is_refused(tmp_path):
    for data in (b"", b"PK\x03\x04", b"\x80\x04]", to_bytes(calibrated().tensors()), json.dumps({"a": 1}).encode()):
        (tmp_path / "x").write_bytes(data)
        with pytest.raises(CorruptFile, match="no calibration"):
            load(tmp_path / "x", model=MODEL, shapes=SHAPES)
    with pytest.raises(CorruptFile, match="cannot be read"):
        load(tmp_path / "absent", model=MODEL, shapes=SHAPES)


def test_one_changed_bit_or_a_missing_end_is_noticed(tmp_path):
    path = tmp_path / "c"
    save(calibrated(), path)
    good = path.read_bytes()
    for at in range(0, len(good), 19):
        broken = bytearray(good)
        broken[at] ^= 1 << at % 8
        path.write_bytes(broken)
        with pytest.raises(CorruptFile):
            load(path, model=MODEL, shapes=SHAPES)
    for kept in range(0, len(good), 101):
        path.write_bytes(good[:kept])
        with pytest.raises(CorruptFile):
            load(path, model=MODEL, shapes=SHAPES)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_save_that_fails_leaves_the_old_file(step, tmp_path, monkeypatch):
    path = tmp_path / "c"
    save(calibrated(), path)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(UsageError, match="cannot be written: No space left"):
        save(Calibration(MODEL, 61, calibrated().layers), path)
    monkeypatch.undo()
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["c"]


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(UsageError, match="cannot be written"):
        save(calibrated(), tmp_path / "absent" / "c")
    assert read_tensors(to_bytes(calibrated().tensors())).keys() == calibrated().tensors().keys()
