"""Codes of few bits: native kernels write the reference's bytes, and read what lies there."""

import numpy as np
import pytest
import torch

from kvist.kernels import native_module

if native_module.absent_reason():
    pytest.skip(native_module.absent_reason(), allow_module_level=True)

from kvist.errors import BadValue
from kvist.kernels.attention.base import Carry, LayerView
from kvist.kernels.attention.basis import Basis
from kvist.kernels.attention.native import NativeAttention
from kvist.kernels.attention.planes import read_key_codes, read_value_codes, write_key_codes, write_value_codes
from kvist.kernels.attention.reference import ReferenceAttention
from kvist.kernels.attention.tiles import read_keys, read_values
from kvist.kernels.attention.worklist import build
from kvist.kernels.codec.lloyd import decode_rotated, encode_rotated
from kvist.kernels.codec.lloyd_max import midpoints, whole_levels
from kvist.kernels.ops.base import Near
from kvist.kernels.ops.native import NativeOps
from kvist.kernels.ops.reference import ReferenceOps
from kvist.spec.format import ELEMENTS, NEAR_TOKENS
from kvist.spec.layer import Retention

ISAS = native_module.load().available()
CODED = ("lm4", "lm3", "lm2")
DIMS = ((16, 16), (64, 64), (96, 80), (128, 48), (512, 256))


@pytest.fixture(params=ISAS)
def isa(request):
    native = native_module.load()
    before = native.isa()
    native.choose(request.param)
    yield request.param
    native.choose(before)


def view_of(kv_heads, key_dim, value_dim, slots, k, v):
    sizes = [-(-ELEMENTS[e].row_bytes(d) * slots // 64) * 64 for e, d in ((k, key_dim), (v, value_dim))]
    return LayerView(0, sizes[0], sum(sizes), kv_heads, key_dim, value_dim, slots, k, v)


def pool_for(view, blocks):
    return torch.full((blocks, view.kv_heads * view.head_bytes), 0xFF, dtype=torch.uint8)


def test_levels_and_thresholds_are_the_computed_ones():
    native = native_module.load()
    for bits in (2, 3, 4):
        assert tuple(native.levels(bits)) == whole_levels(bits)
        assert np.array_equal(np.float32(native.thresholds(bits)), np.float32(midpoints(bits)))


@pytest.mark.parametrize("element", CODED)
@pytest.mark.parametrize("dim", [16, 48, 64, 80])
def test_every_code_at_every_place_comes_back(element, dim):
    """F071: each value in each number of each slot, among others that are all ones and all zeros."""
    view, bits = view_of(2, dim, dim, 32, element, element), ELEMENTS[element].bits
    for other in (0, (1 << bits) - 1):
        pool = pool_for(view, 3)
        want = torch.full((3, 2, 32, dim), other, dtype=torch.uint8)
        block, slot = torch.arange(3).repeat_interleave(32), torch.arange(32).repeat(3)
        for code in range(1 << bits):
            want[:] = other
            want[1, 1, code::7, code % dim :: 5] = code
            rows = want.transpose(1, 2).reshape(-1, 2, dim)
            order = torch.randperm(96)
            write_key_codes(pool, view, block[order], slot[order], rows[order])
            write_value_codes(pool, view, block[order], slot[order], rows[order])
            assert torch.equal(read_key_codes(pool, view, torch.arange(3)), want)
            assert torch.equal(read_value_codes(pool, view, torch.arange(3)), want)


def written(ops, mix, dims, seed, basis, near_view=None):
    """A step of 80 rows through ``norm_rotate_write``: the pool, and rotated queries."""
    view = view_of(2, *dims, 32, *mix)
    draw = torch.Generator().manual_seed(seed)
    qkv = torch.randn(80, 6 * dims[0] + 2 * sum(dims), generator=draw)
    qkv[3] = 0
    qkv[5] *= 1e-6
    qkv[7] *= 3e5
    half = dims[0] // 2
    angle = torch.rand(200, half, generator=draw)
    pools, q = pool_for(view, 4), torch.empty(80, 6, dims[0])
    place = torch.randperm(128, generator=draw)[:80].numpy().astype(np.int32)
    block, slot = place // 32, place % 32
    block[9] = -1
    ops.norm_rotate_write(
        qkv, pools, view, q_heads=6, cos=angle.cos(), sin=angle.sin(), positions=np.arange(80, dtype=np.int32),
        block=block, slot=slot, q_norm=None, k_norm=None, eps=1e-5, q_out=q, basis=basis,
    )  # fmt: skip
    return pools, view, q, qkv


@pytest.mark.parametrize("mix", [("lm4", "lm4"), ("lm3", "lm2"), ("lm2", "lm3"), ("int8t", "lm4"), ("lm4", "f16")])
@pytest.mark.parametrize("dims", DIMS)
def test_native_writes_the_bytes_of_the_reference(isa, dims, mix):
    """Bit for bit where multiplications are not fused; a code at a threshold may differ in rare rows where they are."""
    mean = torch.randn(2, dims[0], generator=torch.Generator().manual_seed(1))
    basis = Basis(ELEMENTS[mix[0]].rotated, ELEMENTS[mix[1]].rotated, mean)
    want, view, q, _ = written(ReferenceOps(), mix, dims, 5, basis)
    got, _, p, _ = written(NativeOps(), mix, dims, 5, basis)
    assert (q - p).abs().max() <= 1e-5 * q.abs().max()
    assert (want != got).float().mean() < 2e-3
    ids = torch.arange(4)
    for read in (read_keys, read_values):
        a, b = read(want, view, ids), read(got, view, ids)
        assert torch.equal(a.isnan(), b.isnan())


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_a_row_that_cannot_be_kept_reads_as_nan_and_no_other(bits):
    """All zeros, all equal, tiny, huge, NaN, infinity."""
    rows = torch.randn(8, 64)
    rows[1], rows[2], rows[3], rows[4] = 0, 3, rows[3] * 1e-20, rows[4] * 1e30
    rows[5, 7], rows[6, 0] = torch.nan, torch.inf
    for keeps in ("distance", "norm"):
        back = decode_rotated(*encode_rotated(rows, bits, keeps), bits)
        bad = back.isnan()
        assert bad[4:7].all() and not bad[:4].any() and not bad[7].any()
        assert not back[1].any() and not back[3].any()


@pytest.mark.parametrize("mix", [("lm4", "lm4"), ("lm3", "lm2"), ("lm2", "lm3"), ("int8t", "lm4"), ("lm4", "bf16")])
@pytest.mark.parametrize("dims", [(64, 64), (96, 80), (32, 128)])
def test_attention_in_two_runs_agrees(isa, dims, mix):
    """Packed rows before each query's cell, then sinks and the cell: native and reference on the same bytes."""
    ops, draw = ReferenceOps(), torch.Generator().manual_seed(3)
    view, near = view_of(2, *dims, 32, *mix), view_of(2, *dims, 16, "f16", "f16")
    n, size = 700, max(view.kv_heads * view.head_bytes, near.kv_heads * near.head_bytes)
    pool = torch.full((80, size), 0xFF, dtype=torch.uint8)
    packed_table, near_table = np.arange(22, dtype=np.int32), np.arange(22, 22 + 44, dtype=np.int32)
    k, v = torch.randn(n, 2, dims[0], generator=draw), torch.randn(n, 2, dims[1], generator=draw)
    qkv = torch.cat([torch.zeros(n, 6 * dims[0]), k.reshape(n, -1), v.reshape(n, -1)], dim=1)
    positions = np.arange(n, dtype=np.int32)
    ops.norm_rotate_write(
        qkv, pool, view, q_heads=6, cos=None, sin=None, positions=positions,
        block=packed_table[positions // 32], slot=positions % 32, q_norm=None, k_norm=None, eps=1e-5,
        q_out=torch.empty(n, 6, dims[0]), near=Near(near, near_table[positions // 16], positions % 16),
    )  # fmt: skip
    starts, lengths = [0, 63, 130, 640], [5, 40, 1, 60]
    packed = Retention(before_cell_tokens=NEAR_TOKENS, unread_sinks=4)
    exact = Retention(chunk_tokens=NEAR_TOKENS, sinks=4)
    rows = sum(lengths)
    q = torch.randn(rows, 6, dims[0], generator=draw)
    works = [build([t] * 4, starts, lengths, r, b) for t, r, b in ((packed_table, packed, 32), (near_table, exact, 16))]
    outs = []
    for kernel in (ReferenceAttention(), NativeAttention()):
        out, state = torch.full((rows, 6, dims[1]), torch.inf), torch.empty(rows, 6, 2)
        for i, (w, work) in enumerate(zip((view, near), works, strict=True)):
            kernel(q, pool, w, work, scale=dims[0] ** -0.5, softcap=0.0, out=out, carry=Carry(state, i == 0, i == 1))
        outs.append(out)
    assert (outs[0] - outs[1]).abs().max() < 1e-3
    with pytest.raises(BadValue, match="state"):
        NativeAttention()(q, pool, view, works[0], scale=1.0, softcap=0.0, out=outs[0],
                          carry=Carry(torch.empty(3, 6, 2), True, False))  # fmt: skip
