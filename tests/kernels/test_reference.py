"""The reference kernels against plain loops, and the promises every kernel makes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from kernel_judge import block_bytes, new_pool, plain_attention, store_sequence, view_of

from kvist.errors import BadValue
from kvist.kernels.attention import registry as attention_registry
from kvist.kernels.attention.base import key_tiles, value_tiles
from kvist.kernels.attention.reference import ReferenceAttention
from kvist.kernels.attention.worklist import build
from kvist.kernels.matrix import Matrix
from kvist.kernels.ops import registry as ops_registry
from kvist.kernels.ops.reference import ReferenceOps
from kvist.spec.layer import Retention

FULL = Retention()


def attend(q, pool, view, work, *, scale=0.3, softcap=0.0):
    out = torch.full((q.shape[0], q.shape[1], view.value_dim), torch.nan)
    ReferenceAttention()(torch.from_numpy(q), pool, view, work, scale=scale, softcap=softcap, out=out)
    return out.numpy()


def visible(retention, position):
    first = retention.first_needed(position)
    return [*range(min(retention.sinks, first)), *range(first, position + 1)]


def bench(view, tokens, seed=0):
    rng = np.random.default_rng(seed)
    blocks = -(-tokens // view.tokens_per_block)
    pool = new_pool(view, blocks + 3)
    table = rng.permutation(blocks + 3)[:blocks].astype(np.int32)
    return rng, pool, store_sequence(rng, pool, view, table, tokens, spread=2.0)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1), (6, 3), (9, 3)])
def test_f074_kv_heads_are_repeated_not_tiled(heads):
    q_heads, kv_heads = heads
    view = view_of(kv_heads, 10, 6, 32, "f32", "f32")
    rng, pool, sequence = bench(view, 90)
    q = rng.normal(0, 1, (4, q_heads, 10)).astype(np.float32)
    out = attend(q, pool, view, build([sequence.table], [86], [4], FULL, 32))
    positions = [range(86 + r + 1) for r in range(4)]
    assert np.abs(out - plain_attention(q, sequence, positions, scale=0.3)).max() < 1e-5
    if kv_heads not in (1, q_heads):
        tiled = plain_attention(q, sequence, positions, scale=0.3, tiled_heads=True)
        assert np.abs(out - tiled).max() > 0.1, "a tiled version must not pass"


@pytest.mark.parametrize("elements", [("f32", "f32"), ("f16", "bf16"), ("bf16", "f16")])
@pytest.mark.parametrize("retention", [FULL, Retention(window_tokens=20), Retention(window_tokens=530, sinks=3)])
@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_formats_windows_and_softcap_over_several_cells(elements, retention, softcap):
    view = view_of(2, 8, 5, 16, *elements)
    rng, pool, sequence = bench(view, 1100)
    starts, n = 1090, 3
    q = rng.normal(0, 1, (n, 4, 8)).astype(np.float32)
    work = build([sequence.table], [starts], [n], retention, 16)
    out = attend(q, pool, view, work, softcap=softcap)
    positions = [visible(retention, starts + r) for r in range(n)]
    expected = plain_attention(q, sequence, positions, scale=0.3, softcap=softcap)
    assert np.abs(out - expected).max() < 2e-6


def test_slots_outside_the_limits_may_hold_nan():
    """The pool is NaN wherever nothing was written; the last block is half full, the window ends inside a block."""
    view = view_of(2, 8, 8, 32, "f32", "f32")
    rng, pool, sequence = bench(view, 41)
    key_tiles(pool, view)[int(sequence.table[0]), :, 0, :, :5] = torch.nan
    value_tiles(pool, view)[int(sequence.table[0]), :, :5] = torch.nan
    q = rng.normal(0, 1, (1, 4, 8)).astype(np.float32)
    windowed = attend(q, pool, view, build([sequence.table], [40], [1], Retention(window_tokens=36), 32))
    assert np.isfinite(windowed).all()
    assert np.isnan(attend(q, pool, view, build([sequence.table], [40], [1], FULL, 32))).any(), "the poison acts"


def test_a_row_that_sees_nothing_gives_zeros():
    view = view_of(1, 8, 8, 16, "f32", "f32")
    rng, pool, sequence = bench(view, 16)
    work = build([sequence.table], [0], [2], FULL, 16)
    blind = replace(work, row_end=np.array([0, 2], dtype=np.int32))
    out = attend(rng.normal(0, 1, (2, 2, 8)).astype(np.float32), pool, view, blind)
    assert (out[0] == 0).all() and (out[1] != 0).all()


def test_latent_tiles_serve_as_keys_and_values():
    stored = view_of(1, 12, 8, 16, "f32", "f32")
    rng, pool, sequence = bench(stored, 40)
    value_tiles(pool, stored).fill_(torch.nan)
    view = replace(stored, v_offset_bytes=-1)
    sequence = replace(sequence, v=sequence.k[..., :8])
    q = rng.normal(0, 1, (2, 5, 12)).astype(np.float32)
    out = attend(q, pool, view, build([sequence.table], [38], [2], FULL, 16))
    expected = plain_attention(q, sequence, [range(39), range(40)], scale=0.3)
    assert np.abs(out - expected).max() < 1e-6


def test_a_row_does_not_depend_on_its_neighbours_bit_by_bit():
    view = view_of(3, 12, 12, 16, "f16", "f16")
    rng, pool, sequence = bench(view, 1100)
    q = rng.normal(0, 1, (20, 6, 12)).astype(np.float32)
    chunk = attend(q, pool, view, build([sequence.table], [1080], [20], FULL, 16))
    for row in (0, 7, 19):
        alone = attend(q[row : row + 1].copy(), pool, view, build([sequence.table], [1080 + row], [1], FULL, 16))
        assert (alone[0] == chunk[row]).all()
    both = build([sequence.table, sequence.table], [1080, 1099], [3, 1], FULL, 16)
    mixed = attend(np.ascontiguousarray(q[[0, 1, 2, 19]]), pool, view, both)
    assert (mixed == chunk[[0, 1, 2, 19]]).all()


def test_linear_is_invariant_and_right():
    torch.manual_seed(0)
    ops = ReferenceOps()
    for inner in (33, 576, 1536):
        x, weight, bias = torch.randn(37, inner), torch.randn(50, inner), torch.randn(50)
        matrix = Matrix.of(weight)
        whole = ops.linear(x, matrix, bias)
        exact = x.double() @ weight.double().T + bias
        assert (whole - exact).abs().max() < 1e-4 and (ops.linear_fast(x, matrix, bias) - exact).abs().max() < 1e-4
        for row in range(37):
            assert (ops.linear(x[row : row + 1].clone(), matrix, bias)[0] == whole[row]).all()
        low = ops.linear(x, Matrix.of(weight.bfloat16()), bias, out=torch.full((37, 50), torch.nan))
        assert (low - (x.double() @ weight.bfloat16().double().T + bias)).abs().max() < 1e-4


def test_norms_and_gates():
    torch.manual_seed(0)
    ops = ReferenceOps()
    x, delta, weight = torch.randn(4, 24), torch.randn(4, 24), torch.randn(24)
    expected = torch.nn.functional.rms_norm(x + delta, (24,), weight, 1e-5)
    out = torch.empty(4, 24)
    summed = x.clone()
    assert ops.add_rms_norm(summed, delta, weight, 1e-5, out=out) is out
    assert torch.allclose(out, expected, atol=1e-6) and torch.equal(summed, x + delta)
    both = torch.randn(4, 20)
    for name, function in {
        "silu": torch.nn.functional.silu,
        "gelu": torch.nn.functional.gelu,
        "gelu_tanh": lambda t: torch.nn.functional.gelu(t, approximate="tanh"),
        "relu": torch.relu,
    }.items():
        assert torch.allclose(ops.gated(both, name), function(both[:, :10]) * both[:, 10:])
    with pytest.raises(BadValue, match="tanh"):
        ops.gated(both, "tanh")


@pytest.mark.parametrize("rotary_dim", [0, 4, 8])
def test_write_norms_rotates_and_places(rotary_dim):
    torch.manual_seed(0)
    view = view_of(2, 8, 6, 32, "f32", "f16")
    pool = new_pool(view, 4)
    rows, q_heads = 3, 4
    qkv = torch.randn(rows, q_heads * 8 + 2 * 8 + 2 * 6)
    q_norm, k_norm = torch.rand(8) + 0.5, torch.rand(8) + 0.5
    angle = torch.outer(torch.arange(50.0), torch.rand(rotary_dim // 2)) if rotary_dim else None
    positions, block, slot = np.int32([40, 41, 3]), np.int32([2, -1, 0]), np.int32([8, 9, 31])
    q_out = torch.empty(rows, q_heads, 8)
    ReferenceOps().norm_rotate_write(
        qkv, pool, view, q_heads=q_heads,
        cos=None if angle is None else angle.cos(), sin=None if angle is None else angle.sin(),
        positions=positions, block=block, slot=slot, q_norm=q_norm, k_norm=k_norm, eps=1e-6, q_out=q_out,
    )  # fmt: skip

    def plain(x, norm, position):
        x = (x.double() / (x.double().pow(2).mean() + 1e-6).sqrt() * norm).tolist()
        for i in range(rotary_dim // 2):
            a, b, t = x[i], x[i + rotary_dim // 2], float(angle[position, i])
            x[i], x[i + rotary_dim // 2] = a * np.cos(t) - b * np.sin(t), b * np.cos(t) + a * np.sin(t)
        return torch.tensor(x, dtype=torch.float64)

    for r in range(rows):
        for h in range(q_heads):
            expected = plain(qkv[r, 8 * h : 8 * h + 8], q_norm, positions[r])
            assert torch.allclose(q_out[r, h].double(), expected, atol=1e-5)
        for h in range(2):
            k, v = qkv[r, 32 + 8 * h : 40 + 8 * h], qkv[r, 48 + 6 * h : 54 + 6 * h]
            if block[r] >= 0:
                written = key_tiles(pool, view)[block[r], h, slot[r] // 16, :, slot[r] % 16]
                assert torch.allclose(written.double(), plain(k, k_norm, positions[r]), atol=1e-5)
                assert torch.equal(value_tiles(pool, view)[block[r], h, slot[r]], v.half())
    used = 2 * (8 * 4 + 6 * 2) * 2
    assert int((pool != 0xFF).sum()) <= used and int((pool != 0xFF).sum()) > used * 0.9, "nothing else is touched"
    assert pool.shape[1] == block_bytes(view)


def test_registries():
    assert attention_registry.names() == ops_registry.names() == ("native", "reference")
    assert "reference" in attention_registry.available() and "reference" in ops_registry.available()
    latent = replace(view_of(1, 12, 1, 16), v_offset_bytes=-1, value_dim=8)
    assert attention_registry.best_available(latent).supports(latent)
    assert ops_registry.best_available().name == ops_registry.available()[0]
    for registry in (attention_registry, ops_registry):
        with pytest.raises(BadValue, match="one of native, reference"):
            registry.load("magic")
