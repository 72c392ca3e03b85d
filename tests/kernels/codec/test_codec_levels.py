"""Lloyd-Max levels against what was published, and every codec's error against theory."""

import math

import pytest
import torch
from codec_bench import EVERY

from kvist.kernels.codec import distortion, registry
from kvist.kernels.codec.lloyd import Lloyd
from kvist.kernels.codec.lloyd_max import distortion as lloyd_max
from kvist.kernels.codec.lloyd_max import levels, midpoints

PUBLISHED = {1: 0.3634, 2: 0.1175, 3: 0.03455, 4: 0.009501}
"""Max 1960, table I."""


@pytest.mark.parametrize("bits", PUBLISHED)
def test_levels_have_the_published_distortion(bits):
    assert float(f"{lloyd_max(bits):.4g}") == PUBLISHED[bits]
    assert len(levels(bits)) == 2**bits


def test_one_and_two_bits_are_known_in_closed_form_and_by_table():
    assert levels(1) == pytest.approx((-math.sqrt(2 / math.pi), math.sqrt(2 / math.pi)), abs=1e-12)
    assert levels(2) == pytest.approx((-1.510, -0.4528, 0.4528, 1.510), abs=5e-4)
    assert levels(3)[4:] == pytest.approx((0.2451, 0.7560, 1.344, 2.152), abs=5e-4)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_levels_are_the_means_of_their_cells(bits):
    """By numerical integration, which shares nothing with the closed form."""
    x = torch.linspace(-9, 9, 400_001, dtype=torch.float64)
    weight = torch.exp(-x * x / 2)
    cell = torch.bucketize(x, torch.tensor(midpoints(bits), dtype=torch.float64))
    for i, level in enumerate(levels(bits)):
        inside = cell == i
        assert float((x * weight)[inside].sum() / weight[inside].sum()) == pytest.approx(level, abs=2e-4)
    error = (x - torch.tensor(levels(bits), dtype=torch.float64)[cell]).square()
    assert float((error * weight).sum() / weight.sum()) == pytest.approx(lloyd_max(bits), rel=1e-4)


def test_more_bits_approach_panter_and_dite():
    ratios = [lloyd_max(bits) / distortion.shannon(bits) for bits in range(1, 6)]
    assert ratios == sorted(ratios) and 2.5 < ratios[-1] < distortion.PANTER_DITE
    assert distortion.PANTER_DITE == pytest.approx(2.7207, abs=1e-4)
    assert (distortion.shannon(0), distortion.shannon(2)) == (1.0, 1 / 16)


@pytest.mark.parametrize("name", ["lm4", "lm3", "lm2", "sm4", "sm3", "sm2", "ms4", "ms3"])
def test_long_normal_rows_have_the_error_of_the_levels(name):
    """Within 2 % of the closed form where the scale costs nothing and knows nothing."""
    got = distortion.measure(registry.load(name), 4096, 64, seed=1)
    assert got.mse == pytest.approx(lloyd_max(int(name[-1])), rel=0.02)
    assert got.bits == pytest.approx(int(name[-1]), abs=0.01)
    assert got.over_lloyd_max == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_the_scale_of_least_squares_errs_less_than_the_one_that_keeps_the_length(bits):
    """At every length; by the factor 2 (1 - root(1 - D)) / D in the limit."""
    for dim, tokens in ((64, 2000), (4096, 64)):
        least, even = (
            distortion.measure(Lloyd(bits, keeps), dim, tokens, seed=1).mse for keeps in ("distance", "norm")
        )
        assert least < even
    d = lloyd_max(bits)
    assert even / least == pytest.approx(2 * (1 - math.sqrt(1 - d)) / d, rel=1e-3)


REFERENCE = {
    "int8t": 3.5e-5, "q8_0": 2.9e-5, "fp8_e4m3": 7.0e-4, "q4_0": 7.4e-3, "q4_0h": 7.4e-3, "int4t_h": 8.0e-3,
    "kivi4": 6.1e-3, "kivi2": 0.154, "lm4": 0.0089, "lm3": 0.0326, "lm2": 0.113,
}  # fmt: skip
"""Mean squared error on rows of 64 from N(0, 1)."""


@pytest.mark.parametrize("name,side", [x for x in EVERY if x[0] in REFERENCE], ids="-".join)
def test_error_on_normal_rows_of_64(name, side):
    got = distortion.measure(registry.load(name, side), 64, 4096, seed=2)
    assert got.mse == pytest.approx(REFERENCE[name], rel=0.03)
    assert got.over_shannon == pytest.approx(got.mse * 4**got.bits)
    assert got.wasted_bits == pytest.approx(math.log(got.mse * 4**got.bits, 4))
    assert got.over_shannon > 1, "nothing beats the limit"


def test_the_same_seed_measures_the_same():
    codec = registry.load("lm3")
    one, other, third = (distortion.measure(codec, 64, 64, seed) for seed in (1, 1, 2))
    assert one == other != third
    assert distortion.measure(registry.load("f32"), 64, 64, 1).wasted_bits == -math.inf
