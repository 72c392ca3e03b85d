"""Codecs that leave a mean of keys out, and what real keys are like: a few channels with a large mean."""

import math

import pytest
import torch
from codec_bench import assert_same_bits, frequencies, normal_rows, through, where_for

from kvist.errors import BadValue
from kvist.kernels.codec import registry
from kvist.kernels.codec.base import Where
from kvist.kernels.codec.lloyd import Lloyd
from kvist.kernels.codec.position import turned

CENTRED = ["sm4", "sm3", "sm2", "ms4", "ms3"]


def outlying_means(heads=2, dim=64):
    """Six channels far out, others near: most of the energy is mean."""
    mean = torch.randn(heads, dim, generator=torch.Generator().manual_seed(3)) * 0.5
    mean[:, [3, 11, 12, 40, 41, 60]] = torch.tensor([9.0, -14.0, 6.0, -8.0, 11.0, 20.0])
    return mean


def mse(name, x, where):
    return float((through(registry.load(name), x, where) - x).square().mean())


@pytest.mark.parametrize("name", CENTRED)
def test_rows_that_are_the_mean_come_back_to_the_bit(name):
    codec = registry.load(name)
    where = where_for(codec, start=777, spread=4.0)
    rows = where.mean[:, None].expand(2, 40, 64)
    if name.startswith("ms"):
        rows = turned(where.mean[:, None], 777, 40, where.inverse_frequencies, interleaved=False)
    assert_same_bits(through(codec, rows.contiguous(), where), rows.contiguous())


@pytest.mark.parametrize("start", [0, 777, 131072])
@pytest.mark.parametrize("name", CENTRED)
def test_the_rest_is_written_as_lm_writes_it(name, start):
    """Code for code what ``lm`` makes of the difference; and the error is that of the difference."""
    codec, plain = registry.load(name), Lloyd(int(name[-1]))
    where = where_for(codec, start=start, spread=4.0)
    mean = where.mean[:, None]
    if name.startswith("ms"):
        mean = turned(mean, start, 96, where.inverse_frequencies, interleaved=False)
    x = normal_rows() + mean
    assert_same_bits(codec.encode(x, where).codes, plain.encode(x - mean, where).codes)
    assert_same_bits(codec.encode(x, where).scales[0], plain.encode(x - mean, where).scales[0])
    assert_same_bits(through(codec, x, where), through(plain, x - mean, where) + mean)


@pytest.mark.parametrize("start", [0, 500, 8000])
def test_a_query_finds_the_turned_mean_by_cosines_and_sines(start):
    """q . decoded = q . lm + sum over pairs of A cos(n w) + B sin(n w), which needs no key."""
    codec, plain = registry.load("ms4"), Lloyd(4)
    where = where_for(codec, start=start, spread=4.0)
    x = normal_rows() + turned(where.mean[:, None], start, 96, frequencies(), interleaved=False)
    encoded = codec.encode(x, where)
    q = normal_rows(2, 1, seed=9)[:, 0].double()
    direct = torch.einsum("hd,htd->ht", q, codec.decode(encoded, where).double())
    without = torch.einsum("hd,htd->ht", q, plain.decode(encoded, where).double())
    q1, q2 = q.chunk(2, dim=-1)
    m1, m2 = where.mean.double().chunk(2, dim=-1)
    a, b = q1 * m1 + q2 * m2, q2 * m1 - q1 * m2
    angles = torch.arange(start, start + 96).double()[:, None] * frequencies().double()
    added = torch.einsum("hi,ti->ht", a, angles.cos()) + torch.einsum("hi,ti->ht", b, angles.sin())
    assert torch.allclose(direct, without + added, atol=2e-5)
    assert added.abs().max() > 1


@pytest.mark.parametrize("bits", [4, 3, 2])
def test_the_shifted_mean_cancels_in_the_softmax(bits):
    codec, plain = registry.load(f"sm{bits}"), Lloyd(bits)
    where = where_for(codec, spread=4.0)
    encoded = codec.encode(normal_rows() + where.mean[:, None], where)
    q = normal_rows(2, 1, seed=9)[:, 0] / 8
    whole, rest = (
        torch.einsum("hd,htd->ht", q.double(), k.double()).softmax(-1)
        for k in (codec.decode(encoded, where), plain.decode(encoded, where))
    )
    assert torch.allclose(whole, rest, atol=1e-6)


def test_turning_pairs_neighbours_where_told():
    codec = registry.load("ms4")
    mean = outlying_means()
    for interleaved in (False, True):
        where = Where("k", 300, mean, frequencies(), interleaved)
        x = normal_rows() + turned(mean[:, None], 300, 96, frequencies(), interleaved=interleaved)
        wrong = Where("k", 300, mean, frequencies(), not interleaved)
        assert float((through(codec, x, where) - x).square().mean()) < 0.01
        assert float((through(codec, x, wrong) - x).square().mean()) > 0.05


def test_means_and_outliers_order_the_codecs():
    """Keys around a mean that stays put: steps for each channel, then a mean left out, then neither."""
    mean = outlying_means()
    spread = 10.0 ** (torch.randn(64, generator=torch.Generator().manual_seed(4)) * 0.35)
    x = normal_rows(2, 512) * spread + mean[:, None]
    where = Where("k", mean=mean)
    kivi4, sm4, lm4, q4_0h, q4_0 = (mse(name, x, where) for name in ("kivi4", "sm4", "lm4", "q4_0h", "q4_0"))
    assert kivi4 < sm4 < lm4 / 3 and q4_0h < q4_0
    assert mse("sm3", x, where) < lm4
    assert mse("lm4", x, where) < mse("lm3", x, where) < mse("lm2", x, where)
    assert mse("sm4", x, where) < mse("sm3", x, where) < mse("sm2", x, where)
    assert mse("int8t", x, where) < kivi4 < mse("kivi2", x, where)


def test_a_mean_that_turns_is_found_by_ms_only():
    """Keys whose mean is one before rotation by position: after it, over many positions, little of it is left."""
    mean = outlying_means()
    x = normal_rows(2, 4096) + turned(mean[:, None], 0, 4096, frequencies(), interleaved=False)
    after = x.mean(dim=1)
    ms4 = mse("ms4", x, Where("k", mean=mean, inverse_frequencies=frequencies()))
    sm4 = mse("sm4", x, Where("k", mean=after))
    assert ms4 < sm4 / 1.5 and sm4 < mse("lm4", x, Where("k"))


@pytest.mark.parametrize("name", CENTRED)
def test_a_missing_or_strange_mean_is_refused(name):
    codec, x = registry.load(name), normal_rows()
    good = outlying_means()
    for mean in (None, good[0], good[:1], good[:, :32], good.double()):
        with pytest.raises(BadValue, match=rf"mean=.*for {name}, float32 \[2, 64\]"):
            codec.encode(x, Where("k", mean=mean, inverse_frequencies=frequencies()))
    bad = good.clone()
    bad[1, 5] = math.nan
    with pytest.raises(BadValue, match="mean=nan"):
        codec.encode(x, Where("k", mean=bad, inverse_frequencies=frequencies()))
    encoded = codec.encode(x, Where("k", mean=good, inverse_frequencies=frequencies()))
    with pytest.raises(BadValue, match="mean=None"):
        codec.decode(encoded, Where("k", inverse_frequencies=frequencies()))


def test_latent_rows_do_not_turn_at_their_head():
    """512 numbers and 64 rotated ones behind them: ``ms`` would turn the first, ``sm`` turns nothing."""
    assert "only the last 64 numbers" in registry.load("ms4").refuses(576) and not registry.load("sm4").refuses(576)


@pytest.mark.parametrize("wrong", [None, frequencies(128)])
def test_ms_needs_the_rotation(wrong):
    with pytest.raises(BadValue, match="inverse_frequencies=.*at most 32"):
        registry.load("ms4").encode(normal_rows(), Where("k", mean=outlying_means(), inverse_frequencies=wrong))


def test_without_rotation_ms_is_sm():
    """A layer without positions has no frequencies."""
    mean, x = outlying_means(), normal_rows() + outlying_means()[:, None]
    none = Where("k", 99, mean, torch.empty(0))
    assert_same_bits(through(registry.load("ms4"), x, none), through(registry.load("sm4"), x, Where("k", 99, mean)))
