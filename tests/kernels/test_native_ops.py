"""Native dense operations against double precision."""

import numpy as np
import pytest
import torch
import torch.nn.functional as nn
from kernel_judge import addresses, block_bytes, new_pool, rounded, view_of

from kvist.errors import BadValue
from kvist.kernels.matrix import Matrix


@pytest.fixture
def ops(isa):
    from kvist.kernels.ops.native import NativeOps

    return NativeOps()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [1, 8, 12, 17, 64, 576, 1537])
@pytest.mark.parametrize("outputs", [1, 7, 24, 100])
def test_linear(ops, width, outputs, dtype):
    torch.manual_seed(width * outputs)
    weight, bias = torch.randn(outputs, width).to(dtype), torch.randn(outputs)
    for rows in (1, 2, 3, 4, 6, 16, 41):
        x = torch.randn(rows, width)
        exact = x.double() @ weight.double().t()
        room = 2e-6 * (x.double().abs() @ weight.double().abs().t() + 1)  # of the sum of magnitudes: no cancellation
        assert ((ops.linear(x, Matrix.of(weight)) - exact).abs() <= room).all()
        out = torch.full((rows, outputs), torch.nan)
        assert ops.linear(x, Matrix.of(weight), bias, out=out) is out
        assert ((out - (exact + bias.double())).abs() <= room).all()


@pytest.mark.parametrize("rows", [1, 8, 64])
@pytest.mark.parametrize("threshold", [1, 1 << 40])
def test_linear_fast_is_bounded(ops, rows, threshold, monkeypatch):
    from kvist.kernels.ops import native

    monkeypatch.setattr(native, "library_rows", lambda: threshold)
    torch.manual_seed(0)
    x, weight, bias = torch.randn(rows, 576), torch.randn(100, 576), torch.randn(100)
    for b in (None, bias):
        want = nn.linear(x.double(), weight.double(), None if b is None else b.double())
        out = torch.empty(rows, 100)
        assert ops.linear_fast(x, Matrix.of(weight), b, out=out) is out
        torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(ops.linear_fast(x, Matrix.of(weight), b).double(), want, rtol=1e-5, atol=1e-4)


def test_library_rows_is_measured_once():
    from kvist.kernels import native_module

    if native_module.absent_reason():
        pytest.skip("no native kernels")
    from kvist.kernels.ops.native import library_rows

    assert library_rows() == library_rows() >= 32


def test_linear_refuses_what_it_cannot_read(ops):
    x, weight = torch.randn(2, 8), torch.randn(3, 8)
    bad = [
        (x.double(), weight, None, None),
        (x, weight.double(), None, None),
        (x[:, ::2], weight[:, :4].contiguous(), None, None),
        (x, weight.t(), None, None),
        (x, weight, torch.randn(4), None),
        (x, weight, None, torch.empty(3, 3)),
        (x, weight, None, torch.empty(3, 2).t()),
    ]
    for a, w, b, out in bad:
        with pytest.raises(BadValue):
            ops.linear(a, Matrix.of(w), b, out=out)


@pytest.mark.parametrize("width", [1, 8, 30, 576])
@pytest.mark.parametrize("rows", [1, 3, 90])
def test_norms(ops, rows, width):
    torch.manual_seed(width)
    x, delta, weight = torch.randn(rows, width) * 3, torch.randn(rows, width), torch.randn(width)

    def want(v):
        v = v.double()
        return v / (v.pow(2).mean(1, keepdim=True) + 1e-5).sqrt() * weight.double()

    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-5).double(), want(x), rtol=1e-6, atol=1e-7)
    in_place = x.clone()
    assert ops.rms_norm(in_place, weight, 1e-5, out=in_place) is in_place
    assert torch.equal(in_place, ops.rms_norm(x, weight, 1e-5))
    total = x + delta
    added = x.clone()
    got = ops.add_rms_norm(added, delta, weight, 1e-5)
    assert torch.equal(added, total)
    assert torch.equal(got, ops.rms_norm(total, weight, 1e-5))


ACTIVATIONS = {
    "silu": nn.silu,
    "gelu_tanh": lambda x: nn.gelu(x, approximate="tanh"),
    "gelu": nn.gelu,
    "relu": nn.relu,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("width", [1, 13, 1536])
def test_gated(ops, name, width):
    torch.manual_seed(width)
    gate = torch.cat([torch.linspace(-20, 20, 40 * width).view(40, width), torch.randn(40, width) * 2])
    gate[0, 0], gate[1, 0], gate[2, 0] = -1e4, 1e4, 0.0
    up = torch.rand(80, width) + 0.5
    got = ops.gated(torch.cat([gate, up], dim=1), name).double()
    exact = ACTIVATIONS[name](gate.double()) * up.double()
    assert torch.isfinite(got).all()
    # relative to the gate where an activation's tail vanishes: its own relative error means nothing there
    room = 1e-6 * exact.abs() + 2e-7 * up * gate.abs().clamp(max=1) + 1e-30
    assert ((got - exact).abs() <= room).all(), ((got - exact).abs() / room).max()
    torch.testing.assert_close(got.float(), ACTIVATIONS[name](gate) * up, rtol=1e-6, atol=2e-6)


def test_gated_keeps_nan(ops):
    x = torch.ones(1, 32)
    x[0, 3] = torch.nan
    for name in ("silu", "gelu_tanh", "gelu"):
        out = ops.gated(x, name)
        assert out[0, 3].isnan() and out.isnan().sum() == 1
    with pytest.raises(BadValue, match="silu"):
        ops.gated(x, "swish")


def rotated(x, cos, sin):
    half = len(cos)
    a, b = x[:half], x[half : 2 * half]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[2 * half :]])


def normed(x, weight, eps):
    return x / np.sqrt((x * x).mean() + eps) * weight


def touched(view, blocks, slots, width):
    at = []
    for stream, element in (("k", view.k_element), ("v", view.v_element)):
        size = 4 if element == "f32" else 2
        for b, s in zip(blocks, slots, strict=True):
            at.append((addresses(view, b, s, stream, width).reshape(-1, 1) + np.arange(size)).reshape(-1))
    return np.concatenate(at)


def written(pool, view, block, slot, stream):
    """Values of one token's stream in the pool, as float64 [kv_heads, dim]."""
    element = view.k_element if stream == "k" else view.v_element
    at = addresses(view, block, slot, stream, pool.shape[1])
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[element]
    flat = pool.view(-1).view(dtype)
    return flat[torch.from_numpy(at // flat.element_size())].double().numpy()


@pytest.mark.parametrize("rows", [1, 5, 70])
@pytest.mark.parametrize("rotary,norms", [(64, False), (32, True), (0, True), (0, False)])
@pytest.mark.parametrize("elements", [("f16", "f16"), ("f32", "bf16"), ("bf16", "f32")], ids=str)
def test_norm_rotate_write(ops, rows, rotary, norms, elements):
    rng = np.random.default_rng(rows)
    q_heads, kv_heads, key_dim, value_dim, size = 6, 3, 64, 40, 32
    view = view_of(kv_heads, key_dim, value_dim, size, *elements)
    pool = new_pool(view, 6)
    qkv = rng.normal(size=(rows, (q_heads + kv_heads) * key_dim + kv_heads * value_dim)).astype(np.float32)
    angles = rng.uniform(0, 7, (500, rotary // 2))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    weights = [rng.normal(size=key_dim).astype(np.float32) for _ in range(2)]
    places = rng.permutation(6 * size)[:rows].astype(np.int32)
    block, slot = (places // size).astype(np.int32), (places % size).astype(np.int32)
    block[1::4] = -1
    positions = rng.integers(0, 500, rows).astype(np.int32)
    q_out = torch.full((rows, q_heads, key_dim), torch.nan)
    ops.norm_rotate_write(
        torch.from_numpy(qkv),
        pool,
        view,
        q_heads=q_heads,
        cos=torch.from_numpy(cos) if rotary else None,
        sin=torch.from_numpy(sin) if rotary else None,
        positions=positions,
        block=block,
        slot=slot,
        q_norm=torch.from_numpy(weights[0]) if norms else None,
        k_norm=torch.from_numpy(weights[1]) if norms else None,
        eps=1e-6,
        q_out=q_out,
    )
    split = np.split(qkv.astype(np.float64), [q_heads * key_dim, (q_heads + kv_heads) * key_dim], axis=1)
    q, k, v = (part.reshape(rows, heads, -1) for part, heads in zip(split, (q_heads, kv_heads, kv_heads), strict=True))

    def head(x, weight, r):
        x = normed(x, weight, 1e-6) if norms else x
        return rotated(x, cos[positions[r]], sin[positions[r]]) if rotary else x

    half_ulp = {"f32": 1e-6, "f16": 2**-11 * 1.001, "bf16": 2**-8 * 1.001}[elements[0]]
    for r in range(rows):
        want_q = np.stack([head(x, weights[0], r) for x in q[r]])
        np.testing.assert_allclose(q_out[r].numpy(), want_q, rtol=1e-5, atol=1e-6)
        if block[r] < 0:
            continue
        want_k = np.stack([head(x, weights[1], r) for x in k[r]])
        np.testing.assert_allclose(written(pool, view, block[r], slot[r], "k"), want_k, rtol=half_ulp, atol=1e-6)
        exact_v = rounded(v[r], elements[1])[1]
        np.testing.assert_array_equal(written(pool, view, block[r], slot[r], "v"), exact_v)
    kept = block >= 0
    rest = np.delete(pool.numpy().reshape(-1), touched(view, block[kept], slot[kept], block_bytes(view)))
    assert (rest == 0xFF).all(), "something else was written"


@pytest.mark.parametrize("element", ["f16", "bf16", "f32"])
def test_stores_round_to_nearest_even(ops, element):
    """Ties, subnormals, overflow, infinities and NaN, as torch rounds them; through K (lane by lane) and V alike."""
    special = [0.0, -0.0, 1.0, 65504.0, 65519.9, 65520.0, -7e4, 1e-8, 5.97e-8, 2.98e-8, 2.99e-8, 6.1e-5, 3e38, 1e-40]
    ties = [1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, np.inf, -np.inf, np.nan]
    values = torch.tensor([*special, *ties, *np.random.default_rng(0).normal(size=42)], dtype=torch.float32)
    assert len(values) == 64
    view = view_of(1, 64, 64, 16, element, element)
    pool = new_pool(view, 1)
    zero = np.zeros(1, np.int32)
    ops.norm_rotate_write(
        torch.cat([values, values, values])[None],
        pool,
        view,
        q_heads=1,
        cos=None,
        sin=None,
        positions=zero,
        block=zero,
        slot=zero + 5,
        q_norm=None,
        k_norm=None,
        eps=1e-6,
        q_out=torch.empty(1, 1, 64),
    )
    want = values.to({"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[element]).double().numpy()
    for stream in "kv":
        np.testing.assert_array_equal(written(pool, view, 0, 5, stream)[0], want)


def test_writes_outside_are_refused(ops):
    view = view_of(1, 64, 64, 16)
    pool = new_pool(view, 2)
    cos = torch.ones(10, 32)

    def write(position=0, block=0, slot=0, cos=cos):
        ops.norm_rotate_write(
            torch.zeros(1, 3 * 64),
            pool,
            view,
            q_heads=1,
            cos=cos,
            sin=cos,
            positions=np.array([position], np.int32),
            block=np.array([block], np.int32),
            slot=np.array([slot], np.int32),
            q_norm=None,
            k_norm=None,
            eps=1e-6,
            q_out=torch.empty(1, 1, 64),
        )

    write()
    for bad in (
        {"position": 10},
        {"position": -1},
        {"block": 2},
        {"slot": 16},
        {"slot": -1},
        {"cos": torch.ones(9, 33)},
    ):
        with pytest.raises((ValueError, BadValue)):
            write(**bad)
