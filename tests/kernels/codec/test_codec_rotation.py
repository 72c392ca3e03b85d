"""The Hadamard rotation, and vectors turned to positions."""

import math

import pytest
import torch
from codec_bench import EVERY, assert_same_bits, frequencies, normal_rows

from kvist.kernels.codec import registry
from kvist.kernels.codec.hadamard import hadamard, refusal, tiling
from kvist.kernels.codec.position import turned
from kvist.kernels.codec.rows import folded_sum, half_down, half_up

TILES = {
    16: (16, 1), 32: (32, 1), 64: (64, 1), 80: (16, 5), 96: (32, 3), 112: (16, 7), 128: (128, 1), 192: (64, 3),
    256: (256, 1), 288: (256, 1), 320: (64, 5), 576: (512, 1),
}  # fmt: skip


def matrix(size):
    """Sylvester's, entry by entry: -1 to the number of ones that row and column have in common."""
    return torch.tensor([[(-1.0) ** (i & j).bit_count() for j in range(size)] for i in range(size)]).double()


@pytest.mark.parametrize("dim", TILES)
def test_it_is_the_matrix_of_its_rule(dim):
    size, count = tiling(dim)
    assert (size, count) == TILES[dim]
    x = normal_rows(1, 7, dim)[0]
    expected = x.double().clone()
    for i in range(count):
        part = slice(i * size, (i + 1) * size)
        expected[:, part] = x[:, part].double() @ matrix(size) / math.sqrt(size)
    assert torch.allclose(hadamard(x).double(), expected, atol=2e-6)
    assert_same_bits(hadamard(x)[:, size * count :], x[:, size * count :])


@pytest.mark.parametrize("dim", TILES)
def test_it_is_orthogonal_and_its_own_inverse(dim):
    x, y = normal_rows(2, 20, dim)
    assert torch.allclose(hadamard(hadamard(x)), x, atol=4e-6)
    assert torch.allclose((hadamard(x) * hadamard(y)).sum(-1), (x * y).sum(-1), atol=2e-5 * dim**0.5)


def test_an_outlier_is_shared_by_all():
    x = torch.zeros(64)
    x[17] = 8.0
    assert hadamard(x).abs().tolist() == [1.0] * 64


@pytest.mark.parametrize("dim", [1, 8, 40, 72, 100, 65])
def test_rows_that_would_hardly_be_rotated_are_refused(dim):
    assert f"blocks of {dim & -dim}" in refusal(dim)
    rotating = {"q4_0h", "int4t_h", "lm4", "lm3", "lm2", "sm4", "sm3", "sm2", "ms4", "ms3"}
    for name, side in EVERY:
        codec = registry.load(name, side)
        if name in rotating:
            assert codec.refuses(dim), name
        elif name not in {"q8_0", "q4_0", "int8t"}:
            assert not codec.refuses(dim), name


def test_no_codec_takes_rows_without_numbers():
    assert all(registry.load(name, side).refuses(0) for name, side in EVERY)


def test_sums_have_one_order():
    """Halves onto each other: in float32, any other order of these would give another number."""
    assert folded_sum(torch.tensor([[1e8, 1.0, -1e8, 1.0], [1.0, 1e8, 1.0, -1e8]])).tolist() == [2.0, 2.0]
    assert folded_sum(torch.tensor([1.0, 1e8, 1.0, 1.0, -1e8])).item() == 0.0, "(1 - 1e8) + 1 + (1e8 + 1)"
    for n in (1, 2, 3, 7, 80, 96, 576):
        x = normal_rows(1, 3, n)
        assert torch.allclose(folded_sum(x).double(), x.double().sum(-1), atol=1e-4)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary", [64, 48, 0])
def test_turned_is_rotary_positions(rotary, interleaved):
    """Against complex numbers, one pair at a time; dims beyond the rotation stay."""
    x, omega = normal_rows(2, 1), frequencies(rotary) if rotary else torch.empty(0)
    got = turned(x, 1000, 3, omega, interleaved=interleaved)
    assert got.shape == (2, 3, 64) and torch.equal(got[..., rotary:], x[..., rotary:].expand(2, 3, -1))
    for token in range(3):
        for i, w in enumerate(omega.tolist()):
            a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + rotary // 2)
            for head in range(2):
                angle = (1000 + token) * w
                z = complex(x[head, 0, a], x[head, 0, b]) * complex(math.cos(angle), math.sin(angle))
                assert abs(complex(got[head, token, a], got[head, token, b]) - z) < 1e-6


@pytest.mark.parametrize("interleaved", [False, True])
def test_turned_back_is_where_it_was(interleaved):
    x = normal_rows().double()
    there = turned(x, 123456, 96, frequencies(), interleaved=interleaved)
    assert torch.allclose(turned(there, 123456, 96, frequencies(), interleaved=interleaved, back=True), x, atol=1e-12)


def test_float16_rounded_to_a_known_side():
    """Every float16, the numbers just beside it, and what lies beyond the largest."""
    every = torch.arange(0x7C00, dtype=torch.int16).view(torch.float16)
    exact = every.float()
    assert torch.equal(half_up(exact), every) and torch.equal(half_down(exact), every)
    above = torch.nextafter(exact[:-1], torch.tensor(1e9))
    assert torch.equal(half_up(above), every[1:]) and torch.equal(half_down(above), every[:-1])
    assert torch.equal(half_down(-above), -every[1:]) and torch.equal(half_down(-exact), -every)
    assert half_up(torch.tensor([65505.0, 1e30])).tolist() == [math.inf] * 2
    assert half_down(torch.tensor([-65505.0, -1e30])).tolist() == [-math.inf] * 2
    assert half_down(torch.tensor([65505.0, 1e30])).tolist() == [65504.0] * 2
