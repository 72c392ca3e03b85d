"""Promises that every codec on the shelf makes."""

from dataclasses import replace

import pytest
import torch
from codec_bench import (
    DIM,
    EVERY,
    HEADS,
    TOKENS,
    assert_same_bits,
    assert_same_encoding,
    normal_rows,
    through,
    where_for,
)

from kvist.kernels.codec import registry
from kvist.kernels.codec.base import Encoded
from kvist.kernels.codec.bits import pack, unpack

KEPT = {"f32", "bf16"}
"""Hold rows of any size."""

WORST = {
    "f32": 0, "f16": 1e-7, "bf16": 4e-6, "int8t": 1e-4, "q8_0": 1e-4, "fp8_e4m3": 1e-3, "kivi4": 0.007,
    "q4_0h": 0.009, "q4_0": 0.009, "int4t_h": 0.01, "lm4": 0.01, "lm3": 0.036, "lm2": 0.13, "sm4": 0.01, "sm3": 0.036,
    "sm2": 0.13, "ms4": 0.01, "ms3": 0.036, "kivi2": 0.17,
}  # fmt: skip
"""Mean squared error on rows of 64 numbers from N(0, 1)."""


@pytest.fixture(params=EVERY, ids="-".join)
def codec(request):
    name, side = request.param
    return registry.load(name, side)


def test_reads_back_what_was_written(codec):
    where = where_for(codec, start=64)
    x = normal_rows()
    got = through(codec, x, where)
    assert got.dtype == torch.float32 and got.shape == x.shape
    assert float((got - x).square().mean()) <= WORST[codec.name]
    assert codec.name in KEPT or float((got - x).abs().max()) > 0


def test_input_is_left_alone(codec):
    x = normal_rows()
    before = x.clone()
    through(codec, x, where_for(codec))
    assert_same_bits(x, before)


UNROTATED = {"f32", "f16", "bf16", "kivi4", "kivi2", "fp8_e4m3"}


@pytest.mark.parametrize("dim", [16, 40, 64, 80, 96, 100, 128, 288, 576])
def test_says_what_it_writes(codec, dim):
    """Codes below ``2 ** bits``, and as many bits as it says, by the bytes of codes and scales; or why not."""
    refused = {
        "int8t": dim % 2,
        "q8_0": dim % 32,
        "q4_0": dim % 32,
        "q4_0h": dim % 32,
        "ms4": dim in (40, 100, 288, 576),
        "ms3": dim in (40, 100, 288, 576),
    }.get(codec.name, codec.name not in UNROTATED and dim in (40, 100))
    assert bool(codec.refuses(dim)) == bool(refused), codec.refuses(dim)
    if refused:
        return
    x, where = normal_rows(dim=dim), where_for(codec, dim=dim)
    encoded = codec.encode(x, where)
    assert float((codec.decode(encoded, where) - x).square().mean()) < 2.4 * max(WORST[codec.name], 1e-9)
    scale_bits = sum(s.numel() * 16 for s in encoded.scales)
    assert all(s.dtype == torch.float16 for s in encoded.scales)
    if encoded.codes.dtype == torch.uint8:
        assert int(encoded.codes.max()) < 1 << codec.bits
        packed = pack(encoded.codes, codec.bits)
        assert torch.equal(unpack(packed, codec.bits, dim), encoded.codes)
        code_bits = packed.numel() * 8
    else:
        code_bits = encoded.codes.numel() * encoded.codes.element_size() * 8
    assert encoded.codes.shape == x.shape
    assert (code_bits + scale_bits) / (HEADS * TOKENS) == codec.row_bits(dim)


def test_every_code_is_used(codec):
    """A narrower code in a wider coat would pass every bound on the error from above."""
    encoded = codec.encode(normal_rows(tokens=512), where_for(codec))
    if codec.bits <= 4:
        assert encoded.codes.unique().tolist() == list(range(1 << codec.bits))


@pytest.mark.parametrize("cut", [(32,), (32, 64), (0, 64, 96), (1, 2, 33, 34, 95)])
@pytest.mark.parametrize("start", [0, 32, 8192])
def test_any_chunking_gives_the_same_bits(codec, cut, start):
    x, where = normal_rows(), where_for(codec, start=start)
    whole = codec.encode(x, where)
    edges = [0, *(at // codec.unit_tokens * codec.unit_tokens for at in cut), TOKENS]
    chunks = [(x[:, a:b], replace(where, start=start + a)) for a, b in zip(edges, edges[1:], strict=False)]
    parts = [codec.encode(*chunk) for chunk in chunks]
    joined = Encoded(
        torch.cat([p.codes for p in parts], dim=1),
        tuple(torch.cat(scales, dim=1) for scales in zip(*(p.scales for p in parts), strict=True)),
    )
    assert_same_encoding(joined, whole)
    decoded = [codec.decode(part, at) for part, (_, at) in zip(parts, chunks, strict=True)]
    assert_same_bits(torch.cat(decoded, dim=1), codec.decode(whole, where))


@pytest.mark.parametrize("dim", [32, 64, 96, 128])
def test_a_unit_alone_gives_the_bits_it_has_in_a_batch(codec, dim):
    """One head and the fewest rows, and memory laid out the other way round."""
    x, where = normal_rows(3, dim=dim), where_for(codec, heads=3, dim=dim)
    whole, n = codec.encode(x, where), codec.unit_tokens
    turned = x.transpose(0, 1).contiguous().transpose(0, 1).mT.contiguous().mT
    assert_same_encoding(codec.encode(turned, where), whole)
    for head, at in [(0, 0), (1, 32), (2, 96 - n)]:
        mean = None if where.mean is None else where.mean[head : head + 1]
        here = replace(where, start=at, mean=mean)
        alone = codec.encode(x[head : head + 1, at : at + n], here)
        assert_same_bits(alone.codes, whole.codes[head : head + 1, at : at + n])
        for one, all_of_them in zip(alone.scales, whole.scales, strict=True):
            assert_same_bits(one, all_of_them[head : head + 1, at // n : at // n + 1])


def test_no_rows(codec):
    x = torch.empty(HEADS, 0, DIM)
    assert through(codec, x, where_for(codec)).shape == x.shape


def test_rows_of_zeros_are_zeros(codec):
    x = normal_rows()
    x[0, :32] = x[1, 40:72] = 0
    where = where_for(codec, spread=0.0)
    got = through(codec, x, where)
    assert not got[0, :32].any() and got.isfinite().all()
    assert codec.unit_tokens > 1 or not got[1, 40:72].any()


@pytest.mark.parametrize("size", [1e-6, 1e-7, 2e-8, 1e-12, 1e-30, 1e-42])
def test_tiny_rows_lose_no_more_than_the_least_scale(codec, size):
    """Below float16's numbers a scale is one of few, or zero: rows are rough or vanish, and nothing else happens."""
    x = normal_rows() * size
    got = through(codec, x, where_for(codec, spread=0.0))
    assert got.isfinite().all()
    least = 2.0**-10 if codec.name == "fp8_e4m3" else 8 * 2.0**-24
    assert float((got - x).abs().max()) <= max(least, float(x.abs().max()))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 31, 63])
def test_a_row_with_no_number_is_nan_and_no_other(codec, bad, place):
    where = where_for(codec)
    x = normal_rows()
    clean = through(codec, x, where)
    x[1, 37, place] = bad
    encoded = codec.encode(x, where)
    got = codec.decode(encoded, where)
    first = 37 // codec.unit_tokens * codec.unit_tokens
    lost = torch.zeros(HEADS, TOKENS, dtype=torch.bool)
    lost[1, first : first + codec.unit_tokens] = True
    assert got[lost].isnan().all()
    assert all(s[1, 37 // codec.unit_tokens].isnan().all() for s in encoded.scales[:1]), "by its scale, not by chance"
    assert_same_bits(got[~lost], clean[~lost])
    assert_same_encoding(codec.encode(x.clone(), where), encoded)


@pytest.mark.parametrize("size", [1e9, 1e30, 3e38])
def test_rows_too_large_for_their_scale_are_nan_and_no_other(codec, size):
    where = where_for(codec)
    x = normal_rows()
    clean = through(codec, x, where)
    x[0, 70] = torch.linspace(-1, 1, DIM) * size
    encoded = codec.encode(x, where)
    got = codec.decode(encoded, where)
    first = 70 // codec.unit_tokens * codec.unit_tokens
    lost = torch.zeros(HEADS, TOKENS, dtype=torch.bool)
    lost[0, first : first + codec.unit_tokens] = True
    assert_same_bits(got[~lost], clean[~lost])
    if codec.name in KEPT:
        assert torch.allclose(got[0, 70], x[0, 70], rtol=2**-8)
    elif codec.name == "fp8_e4m3":
        assert torch.equal(got[0, 70], 448 * x[0, 70].sign()), "it saturates"
    else:
        assert got[lost].isnan().all()
        assert all(s[0, 70 // codec.unit_tokens].isnan().all() for s in encoded.scales[:1])


def test_positions_matter_to_who_says_so(codec):
    x, where = normal_rows(), where_for(codec)
    here, later = (codec.encode(x, replace(where, start=start)) for start in (0, 32))
    assert torch.equal(here.codes, later.codes) == (codec.needs != "pre_rope_mean")


def test_what_stays_exact_beside_it(codec):
    """Only formats without a loss that counts are read by the row's own query."""
    assert codec.always_packed == (codec.name in {"f32", "f16", "bf16", "int8t", "q8_0"})
    assert codec.unit_tokens == (32 if codec.name in {"kivi4", "kivi2"} and "k" in codec.sides else 1)
