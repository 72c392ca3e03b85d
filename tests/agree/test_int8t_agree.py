"""int8t: native kernels and the torch reference on the same bytes; and what a packed cache promises."""

import numpy as np
import pytest
import torch

from kvist.kernels import native_module
from kvist.kernels.attention.base import LayerView
from kvist.kernels.attention.reference import ReferenceAttention
from kvist.kernels.attention.tiles import pack_rows, read_keys, read_values, write_keys, write_values
from kvist.kernels.attention.worklist import build
from kvist.kernels.ops.reference import ReferenceOps
from kvist.spec.format import ELEMENTS
from kvist.spec.layer import Retention

if native_module.absent_reason():
    pytest.skip(native_module.absent_reason(), allow_module_level=True)

from kvist.kernels.attention.native import NativeAttention
from kvist.kernels.ops.native import NativeOps

ISAS = native_module.load().available()
MIXES = [("int8t", "int8t"), ("int8t", "f16"), ("f32", "int8t"), ("int8t", "bf16")]
DIMS = [(32, 32), (64, 64), (72, 40), (128, 128), (256, 96), (34, 38), (512, 512)]
RETENTIONS = [Retention(), Retention(window_tokens=100), Retention(window_tokens=40, sinks=20)]
BOUND = 4e-4
"""Of values around 1: queries and weights are 16-bit integers in the native form, floats in the reference."""


@pytest.fixture(params=ISAS)
def isa(request):
    native = native_module.load()
    before = native.isa()
    native.choose(request.param)
    yield request.param
    native.choose(before)


def view_of(kv_heads, key_dim, value_dim, size, k="int8t", v="int8t"):
    k_bytes, v_bytes = ELEMENTS[k].row_bytes(key_dim) * size, ELEMENTS[v].row_bytes(value_dim) * size
    k_bytes, v_bytes = -(-k_bytes // 64) * 64, -(-v_bytes // 64) * 64
    return LayerView(0, k_bytes, k_bytes + v_bytes, kv_heads, key_dim, value_dim, size, k, v)


def poisoned(view, blocks):
    return torch.full((blocks, view.kv_heads * view.head_bytes), 0xFF, dtype=torch.uint8)


def store(pool, view, table, tokens, seed, *, k=None, v=None):
    """Random K and V of ``tokens`` tokens, written through ``table``; every other slot stays poison."""
    rng = torch.Generator().manual_seed(seed)
    k = torch.randn(tokens, view.kv_heads, view.key_dim, generator=rng) if k is None else k
    v = torch.randn(tokens, view.kv_heads, view.value_dim, generator=rng) if v is None else v
    token = torch.arange(tokens)
    block = torch.from_numpy(table.astype(np.int64))[token // view.tokens_per_block]
    write_keys(pool, view, block, token % view.tokens_per_block, k)
    write_values(pool, view, block, token % view.tokens_per_block, v)
    return k, v


def attend(kernel, q, pool, view, work, softcap=0.0):
    out = torch.full((len(q), q.shape[1], view.value_dim), torch.inf)
    kernel(q, pool, view, work, scale=view.key_dim**-0.5, softcap=softcap, out=out)
    return out


@pytest.mark.parametrize("mix", MIXES, ids="/".join)
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_attention(isa, dims, mix):
    """Heads, rows, block sizes and retention alternate over the grid; tails of blocks are poison."""
    nth = DIMS.index(dims) * len(MIXES) + MIXES.index(mix)
    kv_heads, per_kv = (3, 1, 2)[nth % 3], (3, 1, 8, 4, 5)[nth % 5]
    size, retention = (16, 32, 64, 128)[nth % 4], RETENTIONS[nth % 3]
    rng = np.random.default_rng(nth)
    view = view_of(kv_heads, *dims, size, *mix)
    starts, lengths = [0, 511, 37, 640, 900], [(7, 40, 20)[nth % 3], 30, 1, 1, 9]
    tokens = [s + n for s, n in zip(starts, lengths, strict=True)]
    needed = [-(-n // size) for n in tokens]
    tables = np.split(rng.permutation(sum(needed)).astype(np.int32), np.cumsum(needed)[:-1])
    tables[4][: 512 // size] = tables[3][: 512 // size]
    pool = poisoned(view, sum(needed))
    for i, table in enumerate(tables):
        store(pool, view, table, tokens[i], nth * 10 + min(i, 3))
    work = build(tables, starts, lengths, retention, size)
    q = torch.randn(work.rows, kv_heads * per_kv, dims[0], generator=torch.Generator().manual_seed(nth))
    for softcap in (0.0, 10.0):
        got, want = (attend(k(), q, pool, view, work, softcap) for k in (NativeAttention, ReferenceAttention))
        torch.testing.assert_close(got, want, rtol=0, atol=BOUND)


@pytest.mark.parametrize("rows", [1, 2, 7, 16, 17, 33, 40])
def test_a_chunk_of_rows_is_its_rows_one_by_one(isa, rows):
    """Many rows unpack a cell once for all of them, one row reads it as it goes: the same bits."""
    view, size = view_of(2, 64, 64, 32), 32
    table = np.random.default_rng(rows).permutation(19).astype(np.int32)
    pool = poisoned(view, 19)
    store(pool, view, table, 560, rows)
    q = torch.randn(rows, 6, 64, generator=torch.Generator().manual_seed(rows))
    whole = attend(NativeAttention(), q, pool, view, build([table], [560 - rows], [rows], Retention(), size))
    for r in {0, rows // 2, rows - 1}:
        alone = build([table], [560 - rows + r], [1], Retention(), size)
        assert torch.equal(attend(NativeAttention(), q[[r]], pool, view, alone)[0], whole[r])


def test_integer_parts_are_the_same_on_every_instruction_set():
    """One visible token: its weight is 1, so nothing but integer sums and single roundings is left."""
    native, results = native_module.load(), []
    before = native.isa()
    for isa in ISAS:
        native.choose(isa)
        view = view_of(3, 72, 40, 16)
        pool = poisoned(view, 1)
        store(pool, view, np.zeros(1, np.int32), 1, 5)
        q = torch.randn(1, 9, 72, generator=torch.Generator().manual_seed(6))
        work = build([np.zeros(1, np.int32)], [0], [1], Retention(), 16)
        results.append(attend(NativeAttention(), q, pool, view, work))
    native.choose(before)
    for other in results[1:]:
        assert torch.equal(other, results[0])


@pytest.mark.parametrize("mix", MIXES, ids="/".join)
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_written_bytes(isa, dims, mix):
    """Bad rows included: zeros, NaN, infinities, numbers too large and too small for a scale, and ties."""
    size, rows, kv_heads = 16, 40, 2
    view = view_of(kv_heads, *dims, size, *mix)
    qkv = torch.randn(rows, 2 * kv_heads * dims[0] + kv_heads * dims[1], generator=torch.Generator().manual_seed(1))
    qkv[3] = 0
    qkv[4, ::7], qkv[5, ::5], qkv[6, ::9] = torch.nan, torch.inf, -torch.inf
    qkv[7], qkv[8], qkv[9] = qkv[7] * 1e9, qkv[8] * 1e-9, qkv[9] * 1e-40
    qkv[10] = torch.round(qkv[10] * 30) + 0.5
    qkv[10, ::8] = 127.0
    places = np.random.default_rng(0).permutation(64)[:rows].astype(np.int32)
    block = places // size
    block[::11] = -1
    pools = []
    for ops in (NativeOps(), ReferenceOps()):
        pool = poisoned(view, 4)
        ops.norm_rotate_write(
            qkv, pool, view, q_heads=kv_heads, cos=None, sin=None, positions=np.zeros(rows, np.int32), block=block,
            slot=places % size, q_norm=None, k_norm=None, eps=1e-6, q_out=torch.empty(rows, kv_heads, dims[0]),
        )  # fmt: skip
        pools.append(pool)
    ids = torch.arange(4)
    if mix == ("int8t", "int8t"):
        scales = pools[1].ne(pools[0]).sum()
        assert scales <= 4 * kv_heads * rows  # the payload of NaN scales alone may differ
    for read in (read_keys, read_values):
        got, want = (read(p, view, ids) for p in pools)
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_a_row_comes_back_within_half_a_step():
    x = torch.randn(200, 64, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 4, 200)[:, None]
    data, scale = pack_rows(x)
    assert data.abs().max() <= 127
    error = (data.float() * scale.float()[:, None] - x).abs()
    assert (error <= scale.float()[:, None] * 0.5001).all()
    least = x.abs().amax(1) / 127
    assert (scale.float() >= least).all()
    ordinary = least > 2**-14
    assert (scale.float() <= least * (1 + 2**-10))[ordinary].all()


@pytest.mark.parametrize("side", ["k", "v"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 1e30])
def test_what_no_scale_holds_reads_as_nan_where_it_is_seen(isa, side, bad):
    view = view_of(1, 64, 64, 16)
    table = np.arange(3, dtype=np.int32)
    numbers = {"k": torch.randn(40, 1, 64), "v": torch.randn(40, 1, 64)}
    numbers[side][20, 0, 5] = bad
    pool = poisoned(view, 3)
    store(pool, view, table, 40, 0, **numbers)
    q = torch.randn(40, 3, 64)
    work = build([table], [0], [40], Retention(), 16)
    for kernel in (NativeAttention(), ReferenceAttention()):
        out = attend(kernel, q, pool, view, work)
        assert torch.isfinite(out[:20]).all()
        assert torch.isnan(out[20:]).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_bad_queries_spoil_their_own_head_only(isa, bad):
    view = view_of(1, 64, 64, 16)
    pool = poisoned(view, 1)
    store(pool, view, np.zeros(1, np.int32), 10, 0)
    q = torch.randn(2, 3, 64)
    q[0, 1, 7] = bad
    out = attend(NativeAttention(), q, pool, view, build([np.zeros(1, np.int32)], [8], [2], Retention(), 16))
    assert torch.isnan(out[0, 1]).all()
    assert torch.isfinite(out[0, [0, 2]]).all() and torch.isfinite(out[1]).all()


@pytest.mark.parametrize("sink", [0.0, 1e-3, 1.0, 300.0])
@pytest.mark.parametrize("away", [4.0, 8.0, 10.0])
def test_small_weights_beside_a_sink(isa, sink, away):
    """One slot takes nearly all of the weight. Where its V is small the many others make the result, to a part in a
    hundred; where it is not, each of theirs is off by half of 1/32767 of its weight at most.
    """
    view = view_of(1, 64, 64, 32)
    table = np.arange(16, dtype=np.int32)
    k = torch.zeros(512, 1, 64)
    k[0, 0, 0] = away * 8  # scores are scaled by 1/8
    v = torch.rand(512, 1, 64, generator=torch.Generator().manual_seed(3)) + 0.5
    v[0] = sink
    pool = poisoned(view, 16)
    store(pool, view, table, 512, 0, k=k, v=v)
    q = torch.zeros(1, 3, 64)
    q[:, :, 0] = 1.0
    work = build([table], [511], [1], Retention(), 32)
    got, want = (attend(kernel(), q, pool, view, work) for kernel in (NativeAttention, ReferenceAttention))
    if sink <= 1e-3:
        torch.testing.assert_close(got, want, rtol=1e-2, atol=0)
    torch.testing.assert_close(got, want, rtol=0, atol=511 / 2 / 32767 * max(1.5, sink))


@pytest.mark.parametrize("heads", [3, 64])
@pytest.mark.parametrize("retention", RETENTIONS, ids=str)
def test_a_rows_bits_do_not_depend_on_its_neighbours(isa, retention, heads):
    """V of very unequal size, windows and sinks: rows of a chunk see different slots, and each counts on its own."""
    view, size = view_of(1, 64, 64, 32), 32
    table = np.random.default_rng(0).permutation(19).astype(np.int32)
    pool = poisoned(view, 19)
    v = torch.randn(560, 1, 64, generator=torch.Generator().manual_seed(1))
    v *= 10.0 ** torch.randint(-3, 4, (560, 1, 1), generator=torch.Generator().manual_seed(2))
    store(pool, view, table, 560, 1, v=v)
    q = torch.randn(20, heads, 64, generator=torch.Generator().manual_seed(3))
    whole = attend(NativeAttention(), q, pool, view, build([table], [540], [20], retention, size))
    for r in (0, 9, 19):
        alone = build([table], [540 + r], [1], retention, size)
        assert torch.equal(attend(NativeAttention(), q[[r]], pool, view, alone)[0], whole[r])


@pytest.mark.parametrize("mix", [("f32", "f32"), *MIXES], ids="/".join)
@pytest.mark.parametrize("scale", [-0.3, 0.0, 2.0])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
def test_any_scale(isa, mix, scale, softcap):
    view = view_of(1, 64, 64, 16, *mix)
    table = np.arange(3, dtype=np.int32)
    pool = poisoned(view, 3)
    store(pool, view, table, 40, 4)
    q = torch.randn(9, 3, 64, generator=torch.Generator().manual_seed(5))
    work = build([table], [31], [9], Retention(), 16)
    got, want = (torch.empty(9, 3, 64), torch.empty(9, 3, 64))
    NativeAttention()(q, pool, view, work, scale=scale, softcap=softcap, out=got)
    ReferenceAttention()(q, pool, view, work, scale=scale, softcap=softcap, out=want)
    torch.testing.assert_close(got, want, rtol=0, atol=2 * BOUND * max(1.0, abs(scale) * 8))


def test_rows_of_zeros(isa):
    view = view_of(2, 64, 64, 16)
    pool = poisoned(view, 1)
    zeros = torch.zeros(9, 2, 64)
    store(pool, view, np.zeros(1, np.int32), 9, 0, k=zeros, v=zeros)
    for q in (torch.randn(1, 6, 64), torch.zeros(1, 6, 64)):
        out = attend(NativeAttention(), q, pool, view, build([np.zeros(1, np.int32)], [8], [1], Retention(), 16))
        assert torch.equal(out, torch.zeros(1, 6, 64))
