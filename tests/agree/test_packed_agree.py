"""Packed products: every instruction set gives the same bits, the torch reference the same numbers, floats nearly."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from kvist.kernels import native_module
from kvist.kernels.ops.reference import ReferenceOps, quantised
from kvist.kernels.packing import quantise_w8, tile_w4

if native_module.absent_reason():
    pytest.skip(native_module.absent_reason(), allow_module_level=True)

from kvist.kernels.ops.native import NativeOps


@pytest.fixture
def on():
    """A function that runs a product on one instruction set."""
    native = native_module.load()
    before = native.isa()

    def run(name, x, weight, bias=None):
        native.choose(name)
        return NativeOps().linear(x, weight, bias)

    yield run
    native.choose(before)


def made(kind, outputs, inputs):
    rng = np.random.default_rng([outputs, inputs])
    if kind == "w8":
        return quantise_w8(rng.normal(0, 1, (outputs, inputs)).astype(np.float32))
    q = rng.integers(0, 16, (outputs, inputs)).astype(np.uint8)
    d = rng.uniform(0.05, 0.2, (outputs, inputs // 32)).astype(np.float16)
    return tile_w4(q, d, (-7.5 * d).astype(np.float16))


@pytest.mark.parametrize("kind", ["w4", "w8"])
@pytest.mark.parametrize("inputs", [32, 160, 1536])
@pytest.mark.parametrize("outputs", [3, 47, 130])
def test_packed_linear(on, outputs, inputs, kind):
    torch.manual_seed(outputs)
    weight, bias = made(kind, outputs, inputs), torch.randn(outputs)
    x = torch.randn(37, inputs) * torch.logspace(-3, 3, 37)[:, None]
    reference = ReferenceOps()
    want = reference.linear(x, weight, bias)
    floats = weight.dequantised()
    _, scale = quantised(x)
    size = x.abs().double() @ floats.abs().double().t() + bias.abs()
    results = {name: on(name, x, weight, bias) for name in native_module.load().available()}
    for got in results.values():
        assert ((got.double() - want).abs() <= 1e-6 * size).all()
        # half a step of each input, and float32 rounding
        steps = scale.double() @ floats.abs().double().view(outputs, -1, 16).sum(2).t() / 2
        exact = x.double() @ floats.double().t() + bias
        assert ((got - exact).abs() <= 1.0001 * steps + 1e-6 * size).all()
    fused = [got for name, got in results.items() if name != "portable"]
    assert all(torch.equal(fused[0], got) for got in fused)
    assert torch.equal(reference.linear_fast(x, weight, bias), want)
    assert all(torch.equal(reference.linear(x[r : r + 1], weight, bias), want[r : r + 1]) for r in (0, 20, 36))


@pytest.mark.parametrize("kind", ["w4", "w8"])
@pytest.mark.parametrize("inputs", [32, 96, 608])
def test_every_number_of_rows(on, inputs, kind):
    """1 to 40 rows, with rows of zeros, of the largest integers, and far apart in size, on all instruction sets."""
    native, outputs = native_module.load(), 33
    names = native.available()
    assert "portable" in names and len(names) == len(set(names)), names
    weight = made(kind, outputs, inputs)
    x = torch.randn(40, inputs, generator=torch.Generator().manual_seed(inputs)) * torch.logspace(-4, 4, 40)[:, None]
    x[3], x[4], x[5], x[6, ::2] = 0, 127.0, -127.0, 0
    size = x.abs().double() @ weight.dequantised().abs().double().t()
    want = ReferenceOps().linear(x, weight)
    whole = {name: on(name, x, weight) for name in names}
    for name, got in whole.items():
        assert ((got.double() - want).abs() <= 1e-6 * size).all(), name
        for rows in range(1, 41):
            assert torch.equal(on(name, x[:rows], weight), got[:rows]), (name, rows)
    fused = [name for name in names if name != "portable"]
    assert all(torch.equal(whole[fused[0]], whole[name]) for name in fused)


def test_the_environment_names_the_instruction_set():
    """KVIST_ISA forces each one that is there, in a program of its own, and the products are the same."""
    code = """if True:
        import torch
        from kvist.kernels import native_module
        from kvist.kernels.ops.native import NativeOps
        from kvist.kernels.packing import quantise_w8
        draw = torch.Generator().manual_seed(0)
        weight = quantise_w8(torch.randn(20, 96, generator=draw).numpy())
        x = torch.randn(3, 96, generator=draw)
        print(native_module.load().isa(), NativeOps().linear(x, weight).double().sum().item())
    """
    sums = {}
    for name in native_module.load().available():
        env = {**os.environ, "KVIST_ISA": name, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        ran, total = done.stdout.split()
        assert ran == name
        sums[name] = float(total)
    assert sums["portable"] == pytest.approx(max(sums.values()), rel=1e-4)
    assert len({total for name, total in sums.items() if name != "portable"}) <= 1


def test_the_reference_marks_rows_that_are_not_finite():
    weight, x = made("w4", 20, 64), torch.randn(3, 64)
    x[1, 7] = torch.inf
    got = ReferenceOps().linear(x, weight)
    assert got[1].isnan().all() and got[[0, 2]].isfinite().all()
    x[1, 7] = torch.nan
    assert ReferenceOps().linear(x, weight)[1].isnan().all()
