"""Each codec against its formula, written out for one row at a time, and against ggml's own for ggml's."""

import math
import struct

import numpy as np
import pytest
import torch
from codec_bench import assert_same_bits, assert_same_encoding, normal_rows, through, where_for

from kvist.errors import BadValue
from kvist.kernels.attention.tiles import pack_rows
from kvist.kernels.codec import registry
from kvist.kernels.codec.base import Encoded, Where
from kvist.kernels.codec.hadamard import hadamard
from kvist.kernels.codec.lloyd_max import levels

K = Where("k")


def wide_rows(dim=64):
    """Numbers of every size that a cache holds, both signs, ties, and a row of zeros."""
    x = normal_rows(2, 64, dim) * 10.0 ** torch.linspace(-6, 4, 64)[:, None]
    x[0, 0] = 0
    x[0, 1] = torch.arange(dim) % 17 - 8.0
    x[0, 2] = (torch.arange(dim) % 2 - 0.5) * 6.0  # all of one magnitude
    x[0, 3] = (torch.arange(dim) % 255 - 127.0) / 2
    return x


def half(x):
    """The nearest float16, as a float."""
    return struct.unpack("<e", struct.pack("<e", x))[0]


def half_above(x):
    """The least float16 that is not below ``x``, found by trying."""
    near = np.float16(x)
    return float(near if float(near) >= x else np.nextafter(near, np.float16(np.inf)))


def half_below(x):
    return -half_above(-x)


@pytest.mark.parametrize("name,bits", [("f32", 24), ("f16", 11), ("bf16", 8)])
def test_casts(name, bits):
    """The value itself with so many significant bits, in ``codes``."""
    codec = registry.load(name)
    x = wide_rows()
    encoded = codec.encode(x, K)
    assert encoded.scales == ()
    assert_same_bits(encoded.codes, x.to({"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[name]))
    error = (codec.decode(encoded, K) - x).abs()
    assert bool((error <= (x.abs() * 2.0**-bits).clamp(min=2.0**-25)).all())


def test_int8t_is_what_the_blocks_hold():
    codec = registry.load("int8t")
    x = wide_rows()
    encoded = codec.encode(x, K)
    data, scale = pack_rows(x)
    assert_same_bits(encoded.codes.view(torch.int8), data)
    assert_same_bits(encoded.scales[0], scale)
    assert_same_bits(codec.decode(encoded, K), data.float() * scale.float()[..., None])
    row = x[1, 5].tolist()
    step = half_above(max(map(abs, row)) / 127)
    assert through(codec, x, K)[1, 5].tolist() == pytest.approx([round(v / step) * step for v in row], rel=1e-6)


@pytest.mark.parametrize("dim", [32, 64, 96, 576])
@pytest.mark.parametrize("name", ["q8_0", "q4_0"])
def test_ggml_formats_give_ggmls_numbers(name, dim):
    quants = pytest.importorskip("gguf.quants")
    from gguf import GGMLQuantizationType

    kind = GGMLQuantizationType[name.upper()]
    x = wide_rows(dim)
    expected = quants.dequantize(quants.quantize(x.numpy(), kind), kind)
    assert torch.equal(through(registry.load(name), x, K), torch.from_numpy(expected))


@pytest.mark.parametrize("name,zero", [("q8_0", 0), ("q4_0", 8)])
def test_ggml_blocks_without_a_scale_have_the_codes_of_zeros(name, zero):
    """Where ggml leaves it to the processor what becomes of a NaN or an infinity among integers."""
    x = normal_rows(1, 5, 32)
    x[0] *= torch.tensor([1e-12, 1e-42, 1e30, 1.0, 1.0])[:, None]
    x[0, 3, 7], x[0, 4, 9] = math.nan, math.inf
    assert registry.load(name).encode(x, K).codes.unique().tolist() == [zero]


def test_q4_0_by_hand():
    row = [0.1, -0.8, 0.35, 0.8] + [0.0] * 28
    scale = half(-0.8 / -8)
    codes = [9, 0, 12, 15] + [8] * 28  # 0.1 / 0.1 + 8.5 = 9.5; -8 + 8.5; 3.5 + 8.5; min(15, 16.5)
    encoded = registry.load("q4_0").encode(torch.tensor([[row]]), K)
    assert encoded.codes.flatten().tolist() == codes and encoded.scales[0].item() == scale
    got = registry.load("q4_0").decode(encoded, K).flatten().tolist()
    assert got == pytest.approx([(code - 8) * scale for code in codes], rel=1e-6)


def test_q4_0h_is_q4_0_of_the_rotated_row():
    x = wide_rows()
    plain, rotated = registry.load("q4_0"), registry.load("q4_0h")
    assert_same_bits(rotated.encode(x, K).codes, plain.encode(hadamard(x), K).codes)
    assert_same_bits(through(rotated, x, K), hadamard(through(plain, hadamard(x), K)))


def steps_by_hand(row, bits):
    """Values that a group of numbers reads back as: from its least number up, in equal steps."""
    zero = half_below(min(row))
    step = half_above(float(np.float32(np.float32(max(row)) - np.float32(zero)) / np.float32(2**bits - 1)))
    return [zero if step == 0 else zero + step * round((v - zero) / step) for v in row], step


def test_int4t_h():
    x = wide_rows()
    got = through(registry.load("int4t_h"), x, K)
    for token in (0, 2, 9, 30, 63):
        row, step = steps_by_hand(hadamard(x[0, token]).tolist(), 4)
        expected = hadamard(torch.tensor(row))
        assert (got[0, token] - expected).abs().max() <= 1e-5 * expected.abs().max(), token
        error = hadamard(got[0, token]) - hadamard(x[0, token])
        assert error.abs().max() <= step * 0.5001, "half a step, at the ends too"


@pytest.mark.parametrize("bits", [4, 2])
def test_kivi_keys_by_channel(bits):
    x = normal_rows(2, 64) * 10.0 ** torch.linspace(-3, 3, 64) + torch.linspace(-90, 90, 64)
    got = through(registry.load(f"kivi{bits}"), x, Where("k", start=96))
    for unit in (0, 1):
        rows = slice(32 * unit, 32 * unit + 32)
        for channel in (0, 1, 30, 63):
            expected, step = steps_by_hand(x[1, rows, channel].tolist(), bits)
            assert got[1, rows, channel].tolist() == pytest.approx(expected, rel=1e-5, abs=1e-4 * step)
            assert (got[1, rows, channel] - x[1, rows, channel]).abs().max() <= step * 0.5001


@pytest.mark.parametrize("dim", [64, 80, 20])
@pytest.mark.parametrize("bits", [4, 2])
def test_kivi_values_by_token(bits, dim):
    """Groups of 32 from the left, the last as short as it must be."""
    x = normal_rows(1, 5, dim) + 3
    codec = registry.load(f"kivi{bits}", "v")
    encoded = codec.encode(x, Where("v", start=7))
    assert encoded.scales[0].shape == (1, 5, math.ceil(dim / 32)) and codec.row_bits(
        dim
    ) == bits * dim + 32 * math.ceil(dim / 32)
    got = codec.decode(encoded, Where("v", start=7))
    for token in range(5):
        row = x[0, token].tolist()
        expected = [v for at in range(0, dim, 32) for v in steps_by_hand(row[at : at + 32], bits)[0]]
        assert got[0, token].tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("start,tokens", [(1, 32), (16, 32), (0, 31), (32, 33)])
def test_kivi_keys_come_in_whole_units(start, tokens):
    with pytest.raises(BadValue, match=rf"\[{start}, {start + tokens}\).*whole units of 32"):
        registry.load("kivi4").encode(normal_rows(1, tokens), Where("k", start))


@pytest.mark.parametrize("bits", [4, 3, 2])
def test_lm_by_hand(bits):
    """Nearest level for the row in units of its deviation, as a whole number; then the factor of least squares."""
    x = wide_rows()
    codec = registry.load(f"lm{bits}")
    got = through(codec, x, K)
    for token in (1, 2, 20, 50, 63):
        row = hadamard(x[0, token]).double().tolist()
        deviation = math.sqrt(sum(v * v for v in row) / 64)
        best = [min(levels(bits), key=lambda level: abs(level - v / deviation)) for v in row]
        near = [round(127 * level / levels(bits)[-1]) for level in best]
        scale = half(sum(a * b for a, b in zip(row, near, strict=True)) / sum(b * b for b in near))
        expected = hadamard(torch.tensor([scale * level for level in near]))
        assert (got[0, token] - expected).abs().max() <= 1e-5 * expected.abs().max(), token


@pytest.mark.parametrize("bits", [4, 3, 2])
def test_lm_scale_is_the_best_for_its_codes(bits):
    """No other factor on the same codes is nearer to the row; and the one that keeps the length does that."""
    from kvist.kernels.codec.lloyd import Lloyd

    x = normal_rows(1, 200)
    best, even = Lloyd(bits), Lloyd(bits, keeps="norm")
    encoded = best.encode(x, K)
    error = (best.decode(encoded, K) - x).square().sum(-1)
    for factor in (0.98, 1.02):
        moved = best.decode(Encoded(encoded.codes, (encoded.scales[0] * factor,)), K)
        assert bool(((moved - x).square().sum(-1) > error).all())
    length = through(even, x, K).square().sum(-1).sqrt() / x.square().sum(-1).sqrt()
    assert bool(((length - 1).abs() < 1e-3).all())
    assert float((through(even, x, K) - x).square().mean()) > float(error.mean()) / 64


@pytest.mark.parametrize("bits", [4, 3, 2])
def test_lm_keeps_the_distance_of_keys_and_the_length_of_values(bits):
    """A mean of many decoded values is not shorter than that of the values: the error averages out, a factor stays."""
    from kvist.kernels.codec.lloyd import Lloyd

    x = normal_rows(1, 50)
    for side, keeps in (("k", "distance"), ("v", "norm")):
        assert_same_encoding(Lloyd(bits).encode(x, Where(side)), Lloyd(bits, keeps).encode(x, Where(side)))
    rows = normal_rows(1, 3000) * 0.7 + 0.7 * normal_rows(1, 1, seed=8)
    mean = rows.mean(dim=1)
    short, kept = ((through(Lloyd(bits, keeps), rows, K).mean(dim=1) - mean).norm() for keeps in ("distance", "norm"))
    assert kept < 0.8 * short


def test_fp8_by_hand():
    """Three bits of mantissa from 2**-6 on, steps of 2**-9 below, saturating at 448; the scale reaches both ways."""
    row = [0.0, 1.0, 1.06, 1.07, -1.19, 448.0, 449.0, 1e6, -1e30, 2.0**-9, 2.0**-10 * 0.99, 2.0**-6 * 1.125]
    want = [0.0, 1.0, 1.0, 1.125, -1.25, 448.0, 448.0, 448.0, -448.0, 2.0**-9, 0.0, 2.0**-6 * 1.125]
    x = torch.tensor([[row]])
    assert through(registry.load("fp8_e4m3"), x, K).flatten().tolist() == want
    for scale in (0.25, 2.0**-20, 1024.0):
        codec = registry.load("fp8_e4m3", scale=scale)
        held = torch.tensor([[[v * scale for v in row]]])
        assert through(codec, held, K).flatten().tolist() == [v * scale for v in want]


@pytest.mark.parametrize("scale", [0.04, 3.7e-5, 912.0])
@pytest.mark.parametrize("side", ["k", "v"])
def test_f066_a_supplied_scale_reaches_what_is_written_and_what_is_read(side, scale):
    codec = registry.load("fp8_e4m3", side, scale=scale)
    x = normal_rows() * 60 * scale
    x = torch.where(x.abs() < scale * 2.0**-6, scale, x)  # e4m3's normal numbers only
    encoded = codec.encode(x, Where(side))
    assert bool(((codec.decode(encoded, Where(side)) - x).abs() <= x.abs() * 0.0625).all())
    assert_same_bits(encoded.codes, registry.load("fp8_e4m3").encode(x / scale, Where(side)).codes)
    assert len(encoded.codes.unique()) > 100, "the range is used"


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 1e-40, 1e39])
def test_f072_scales_that_are_none_are_refused(scale):
    with pytest.raises(BadValue, match="scale=.*finite"):
        registry.load("fp8_e4m3", scale=scale)


def test_large_rows_at_the_edge_of_their_scale():
    """The largest that a float16 scale holds, and the first that it does not."""
    x = torch.ones(1, 2, 64)
    for name, edge in (("int8t", 127 * 65504.0), ("q8_0", 127 * 65504.0), ("q4_0", 8 * 65504.0)):
        x[0, 0], x[0, 1] = edge, edge * 1.001
        got = through(registry.load(name), x, where_for(registry.load(name), heads=1))
        assert torch.allclose(got[0, 0], x[0, 0], rtol=0.15), name
        assert got[0, 1].isnan().all() or name != "int8t", name
