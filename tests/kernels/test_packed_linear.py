"""Products with packed weights on every instruction set, against whole numbers and double precision."""

import numpy as np
import pytest
import torch

from kvist.errors import BadValue
from kvist.kernels.matrix import Matrix
from kvist.kernels.packing import quantise_w8, tile_w4, tile_w8

ROWS = [*range(1, 41), 300]


@pytest.fixture
def ops(isa):
    from kvist.kernels.ops.native import NativeOps

    return NativeOps()


def packed(kind, outputs, inputs, seed=0):
    """Every integer that the kind has, scales of both signs, and what it unpacks to in double precision."""
    rng = np.random.default_rng([seed, outputs, inputs])
    groups = inputs // 32
    d = rng.normal(0, 1, (outputs, groups)).astype(np.float16)
    if kind == "w8":
        q = rng.integers(-128, 128, (outputs, inputs)).astype(np.int8)
        return tile_w8(q, d), q.astype(float).reshape(outputs, groups, 32), d.astype(float), np.zeros((outputs, groups))
    q = rng.integers(0, 16, (outputs, inputs)).astype(np.uint8)
    m = rng.normal(0, 4, (outputs, groups)).astype(np.float16)
    return tile_w4(q, d, m), q.astype(float).reshape(outputs, groups, 32), d.astype(float), m.astype(float)


def plain(x, q, d, m):
    """The product as the contract says it, in double precision, and the sum of its terms' magnitudes."""
    q, d, m = q.reshape(len(q), -1, 16), d.repeat(2, axis=1), m.repeat(2, axis=1)  # a scale of x for every 16 inputs
    grouped = x.numpy().reshape(len(x), -1, 16)
    scale = (np.abs(grouped).max(2) / np.float32(127)).astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(scale > 0, np.float32(1) / scale, np.float32(0)).astype(np.float32)
    xq = np.rint(grouped * inverse[..., None]).astype(float)
    assert np.abs(xq).max() <= 127
    sums = np.einsum("rgk,ogk->rog", xq, q) * d * scale.astype(float)[:, None]
    minima = m * (scale * xq.sum(2))[:, None]
    return (sums + minima).sum(2), (np.abs(sums) + np.abs(minima)).sum(2)


@pytest.mark.parametrize("kind", ["w4", "w8"])
@pytest.mark.parametrize("inputs", [32, 64, 96, 576, 1536])
@pytest.mark.parametrize("outputs", [1, 15, 16, 17, 100, 200])
def test_product(ops, outputs, inputs, kind):
    weight, *parts = packed(kind, outputs, inputs)
    torch.manual_seed(inputs)
    x, bias = torch.randn(300, inputs), torch.randn(outputs)
    x[3], x[5, :32] = 0, 0
    exact, magnitude = plain(x, *parts)
    room = 1e-6 * magnitude + 1e-30
    whole = ops.linear(x, weight)
    assert (np.abs(whole.numpy() - exact) <= room).all()
    for rows in ROWS:
        assert torch.equal(ops.linear(x[:rows], weight), whole[:rows]), "a row must not depend on the others"
    out = torch.full((41, outputs), torch.nan)
    assert ops.linear(x[2:43], weight, bias, out=out) is out
    assert torch.equal(out, whole[2:43] + bias)
    assert torch.equal(ops.linear_fast(x, weight), whole)


@pytest.mark.parametrize("kind", ["w4", "w8"])
def test_extreme_integers_do_not_saturate(ops, kind):
    """The largest sums there are: all inputs at +-127 beside the largest and smallest weights."""
    d = np.ones((16, 2), np.float16)
    for sign in (1, -1):
        x = torch.full((9, 64), 127.0 * sign)
        if kind == "w8":
            for q in (-128, 127):
                weight = tile_w8(np.full((16, 64), q, np.int8), d)
                assert (ops.linear(x, weight) == 64 * 127 * sign * q).all()
        else:
            weight = tile_w4(np.full((16, 64), 15, np.uint8), d, np.zeros((16, 2), np.float16))
            assert (ops.linear(x, weight) == 64 * 127 * sign * 15).all()


@pytest.mark.parametrize("kind", ["w4", "w8"])
def test_threads_change_nothing(ops, kind, threads):
    weight, *_ = packed(kind, 3072, 576)
    x = torch.randn(70, 576)
    threads(1)
    alone = [ops.linear(x[:rows], weight) for rows in (1, 3, 70)]
    threads(3)
    assert all(torch.equal(a, ops.linear(x[: len(a)], weight)) for a in alone)


@pytest.mark.parametrize("kind", ["w4", "w8"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_is_nan_alone(ops, kind, bad):
    weight, *_ = packed(kind, 40, 96)
    x = torch.randn(20, 96)
    clean = ops.linear(x, weight)
    x[7, 50] = bad
    got = ops.linear(x, weight)
    assert got[7].isnan().all()
    others = torch.arange(20) != 7
    assert torch.equal(got[others], clean[others])


@pytest.mark.parametrize("kind", ["w4", "w8"])
def test_tiny_and_huge_inputs(ops, kind):
    """Inputs near the ends of float32: no division by zero, no infinity that the exact product has not."""
    weight, *parts = packed(kind, 20, 64)
    for size in (1e-35, 1e-30, 1e30):
        x = torch.randn(3, 64) * size
        exact, magnitude = plain(x, *parts)
        assert (np.abs(ops.linear(x, weight).numpy() - exact) <= 1e-6 * magnitude + 1e-40).all()
    for size in (0.0, 1e-45, 1e-38):
        assert (ops.linear(torch.full((3, 64), size), weight) == 0).all()


def test_rounding_is_to_even(ops):
    """Inputs half-way between two whole numbers."""
    x = torch.zeros(1, 32)
    x[0, :6] = torch.tensor([127, 0.5, 1.5, 2.5, -0.5, -1.5])
    weight = tile_w8(np.eye(32, dtype=np.int8), np.ones((32, 1), np.float16))
    assert ops.linear(x, weight)[0, :6].tolist() == [127, 0, 2, 2, 0, -2]


def test_no_rows(ops):
    weight, *_ = packed("w4", 20, 64)
    assert ops.linear(torch.empty(0, 64), weight).shape == (0, 20)


@pytest.mark.parametrize("kind", ["w4", "w8"])
def test_refusals(ops, kind):
    weight, *_ = packed(kind, 20, 64)
    x, data = torch.randn(2, 64), weight.data
    skewed = torch.empty(data.numel() + 64, dtype=torch.uint8)[32:-32]
    bad = [
        (x.double(), weight, None),
        (torch.randn(2, 96), weight, None),
        (torch.randn(2, 128)[:, ::2], weight, None),
        (x, weight, torch.empty(2, 32)),
        (x, weight, torch.empty(2, 20, dtype=torch.float16)),
        (x, Matrix(kind, 20, 64, data[:-64]), None),
        (x, Matrix(kind, 33, 64, data), None),
        (x, Matrix("w4" if kind == "w8" else "w8", 20, 64, data), None),
        (x, Matrix("w3", 20, 64, data), None),
        (x, Matrix(kind, 20, 64, data.view(torch.int8)), None),
        (x, Matrix(kind, 20, 64, skewed), None),
        (torch.randn(2, 48), Matrix(kind, 20, 48, data), None),
    ]
    for a, w, out in bad:
        with pytest.raises(BadValue):
            ops.linear(a, w, out=out)
    with pytest.raises(BadValue):
        ops.linear(x, weight, torch.randn(21))


def test_quantised_floats_come_close(ops):
    """What a user sees: 8-bit weights made from floats answer within a percent of the floats."""
    torch.manual_seed(0)
    w, x = torch.randn(100, 576), torch.randn(8, 576)
    got, exact = ops.linear(x, quantise_w8(w.numpy())), x @ w.t()
    assert (got - exact).norm() <= 0.01 * exact.norm()
