"""The fast path says what the slow one says: native kernels and the torch reference on the same bytes."""

import numpy as np
import pytest
import torch

from kvist.kernels import native_module
from kvist.kernels.attention.base import LayerView, key_tiles, value_tiles
from kvist.kernels.attention.reference import ReferenceAttention
from kvist.kernels.attention.worklist import build
from kvist.kernels.matrix import Matrix
from kvist.kernels.ops.reference import ReferenceOps
from kvist.spec.layer import Retention

if native_module.absent_reason():
    pytest.skip(native_module.absent_reason(), allow_module_level=True)

from kvist.kernels.attention.native import NativeAttention
from kvist.kernels.ops.native import NativeOps


@pytest.fixture(params=native_module.load().available())
def isa(request):
    native = native_module.load()
    before = native.isa()
    native.choose(request.param)
    yield request.param
    native.choose(before)


def view_of(kv_heads, key_dim, value_dim, size, k="f32", v="f32"):
    bytes_of = {"f32": 4, "f16": 2, "bf16": 2}
    k_bytes, v_bytes = key_dim * size * bytes_of[k], value_dim * size * bytes_of[v]
    return LayerView(0, k_bytes, k_bytes + v_bytes, kv_heads, key_dim, value_dim, size, k, v)


def filled(view, blocks, seed):
    """A pool of random numbers in every slot of every block."""
    torch.manual_seed(seed)
    pool = torch.zeros(blocks, view.kv_heads * view.head_bytes, dtype=torch.uint8)
    for tiles in (key_tiles(pool, view), value_tiles(pool, view)):
        tiles.copy_(torch.randn(tiles.shape))
    return pool


RETENTIONS = [
    Retention(),
    Retention(window_tokens=100),
    Retention(window_tokens=40, sinks=20),
    Retention(chunk_tokens=96),
]
ELEMENTS = [("f32", "f32"), ("f16", "f16"), ("bf16", "f32")]


@pytest.mark.parametrize("elements", ELEMENTS, ids=str)
@pytest.mark.parametrize("retention", RETENTIONS, ids=str)
@pytest.mark.parametrize("heads,dims", [((4, 4), (64, 64)), ((6, 2), (72, 40)), ((8, 1), (32, 96))])
def test_attention(isa, heads, dims, retention, elements):
    rng = np.random.default_rng(0)
    size = 32
    view = view_of(heads[1], *dims, size, *elements)
    starts, lengths = [0, 511, 37, 700, 900, 640], [30, 40, 1, 1, 1, 9]
    needed = [-(-(s + n) // size) for s, n in zip(starts, lengths, strict=True)]
    ids = rng.permutation(sum(needed)).astype(np.int32)
    tables = [t.copy() for t in np.split(ids, np.cumsum(needed)[:-1])]
    tables[4][:20] = tables[3][:20]  # two sequences share their first 640 tokens
    pool = filled(view, len(ids), seed=1)
    work = build(tables, starts, lengths, retention, size)
    q = torch.randn(work.rows, heads[0], dims[0])
    got, want = (torch.full((work.rows, heads[0], dims[1]), torch.nan) for _ in range(2))
    for softcap in (0.0, 10.0):
        options = {"scale": dims[0] ** -0.5, "softcap": softcap}
        NativeAttention()(q, pool, view, work, **options, out=got)
        ReferenceAttention()(q, pool, view, work, **options, out=want)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 5, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_linear(isa, rows, dtype):
    torch.manual_seed(rows)
    x, weight, bias = torch.randn(rows, 96), torch.randn(50, 96).to(dtype), torch.randn(50)
    for b in (None, bias):
        for name in ("linear", "linear_fast"):
            got, want = (getattr(ops(), name)(x, Matrix.of(weight), b) for ops in (NativeOps, ReferenceOps))
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 33])
def test_norms_and_gates(isa, rows):
    torch.manual_seed(rows)
    x, delta, weight = torch.randn(rows, 200), torch.randn(rows, 200), torch.randn(200)
    native, reference = NativeOps(), ReferenceOps()
    close = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(native.rms_norm(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6), **close)
    a, b = x.clone(), x.clone()
    got, want = native.add_rms_norm(a, delta, weight, 1e-6), reference.add_rms_norm(b, delta, weight, 1e-6)
    torch.testing.assert_close(got, want, **close)
    assert torch.equal(a, b)
    for activation in ("silu", "gelu_tanh", "gelu", "relu"):
        torch.testing.assert_close(native.gated(x, activation), reference.gated(x, activation), rtol=1e-6, atol=2e-6)


@pytest.mark.parametrize("elements", ELEMENTS, ids=str)
@pytest.mark.parametrize("rotary,norms", [(64, True), (32, False), (0, True)])
def test_norm_rotate_write(isa, rotary, norms, elements):
    rng = np.random.default_rng(rotary)
    torch.manual_seed(0)
    view = view_of(2, 64, 24, 16, *elements)
    rows, q_heads = 20, 6
    qkv = torch.randn(rows, (q_heads + 2) * 64 + 2 * 24)
    places = rng.permutation(64)[:rows].astype(np.int32)
    block = places // 16
    block[::5] = -1
    positions = rng.permutation(100)[:rows].astype(np.int32)
    angles = torch.rand(100, max(rotary // 2, 1)) * 6
    results = []
    for ops in (NativeOps(), ReferenceOps()):
        pool = torch.zeros(4, 2 * view.head_bytes, dtype=torch.uint8)
        q_out = torch.empty(rows, q_heads, 64)
        ops.norm_rotate_write(
            qkv,
            pool,
            view,
            q_heads=q_heads,
            cos=angles.cos() if rotary else None,
            sin=angles.sin() if rotary else None,
            positions=positions,
            block=block,
            slot=places % 16,
            q_norm=torch.linspace(0.5, 2, 64) if norms else None,
            k_norm=torch.linspace(2, 0.5, 64) if norms else None,
            eps=1e-6,
            q_out=q_out,
        )
        results.append((q_out, key_tiles(pool, view).float(), value_tiles(pool, view).float()))
    (q, k, v), (want_q, want_k, want_v) = results
    torch.testing.assert_close(q, want_q, rtol=1e-5, atol=1e-5)
    step = {"f32": 1e-5, "f16": 2**-10, "bf16": 2**-7}[elements[0]]  # one step of the element type
    torch.testing.assert_close(k, want_k, rtol=step, atol=1e-5)
    assert torch.equal(v, want_v)
