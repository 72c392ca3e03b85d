"""A row's bits depend on the row alone: not on its neighbours, on tiles, waves or threads."""

from functools import cache

import numpy as np
import pytest
import torch
from kernel_judge import cells, new_pool, store_sequence, subset, view_of, work_list

from kvist.kernels.matrix import Matrix


def run(q, pool, view, work, softcap=0.0):
    from kvist.kernels.attention.native import NativeAttention

    out = torch.empty(q.shape[0], q.shape[1], view.value_dim)
    kernel = NativeAttention()
    kernel(torch.from_numpy(np.ascontiguousarray(q)), pool, view, work, scale=0.15, softcap=softcap, out=out)
    return out.numpy()


@cache
def batch(heads, dims, size, elements):
    """16 sequences of one row, half of them with a common prefix, and a chunk of 40 rows: 56 rows."""
    rng = np.random.default_rng(0)
    view = view_of(heads[1], *dims, size, *elements)
    lengths = [int(n) for n in rng.integers(20, 1100, 16)] + [560]
    ids = iter(rng.permutation(3000).astype(np.int32))
    common = [next(ids) for _ in range(1024 // size)]
    tables = []
    for s, n in enumerate(lengths):
        blocks = -(-n // size)
        shared = common[: n // size] if s % 2 == 0 else []
        tables.append(np.array([*shared, *(next(ids) for _ in range(blocks - len(shared)))], dtype=np.int32))
    used = max(int(t.max()) for t in [*tables, np.array(common)]) + 1
    pool = new_pool(view, used)
    for table, n in [(common, 1024), *zip(tables, lengths, strict=True)]:
        store_sequence(rng, pool, view, table, n)
    runs: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    limits = []
    for s, n in enumerate(lengths):
        count = 40 if s == 16 else 1
        rows = range(len(limits), len(limits) + count)
        limits += [(0, n - count + 1 + i, 0) for i in range(count)]
        for position, blocks, _ in cells(tables[s], n, rows, size):
            runs.setdefault((position, tuple(blocks)), []).extend(r for r in rows if limits[r][1] > position)
    work = work_list([(p, list(b), r) for (p, b), r in runs.items()], limits)
    q = rng.normal(size=(len(limits), heads[0], dims[0])).astype(np.float32)
    return view, pool, work, q


SHAPES = [
    ((9, 3), (64, 64), 32, ("f16", "f16")),
    ((4, 4), (80, 40), 16, ("f32", "bf16")),
    ((8, 1), (128, 96), 64, ("bf16", "f32")),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_alone_together_in_a_chunk(isa, shape):
    view, pool, work, q = batch(*shape)
    whole = run(q, pool, view, work)
    assert np.isfinite(whole).all()
    for keep in ([0], [7], [16], [55], list(range(16)), list(range(16, 56)), [3, 20, 33, 50], list(range(30, 37))):
        np.testing.assert_array_equal(run(q[keep], pool, view, subset(work, keep)), whole[keep])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_thread_or_two(isa, shape, threads):
    view, pool, work, q = batch(*shape)
    results = []
    for n in (1, 2, 3):
        threads(n)
        results.append(run(q, pool, view, work, softcap=8.0))
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_a_row_joined_by_rows_that_see_less(isa):
    """The neighbours' masks differ in every group: the joint path must leave the row's bits as they are."""
    rng = np.random.default_rng(1)
    view = view_of(1, 64, 64, 16, "f32", "f32")
    table = rng.permutation(70).astype(np.int32)
    pool = new_pool(view, 70)
    store_sequence(rng, pool, view, table, 1100)
    limits = [(0, 1100, 0)] + [(int(a), int(b), int(c)) for a, b, c in rng.integers(0, 1100, (19, 3))]
    limits = [(min(f, e), max(f, e), min(s, f, e)) for f, e, s in limits]
    q = rng.normal(size=(20, 3, 64)).astype(np.float32)
    work = work_list(cells(table, 1100, range(20), 16), limits)
    whole = run(q, pool, view, work)
    for row in range(20):
        np.testing.assert_array_equal(run(q[[row]], pool, view, subset(work, [row]))[0], whole[row])


def test_waves_change_nothing(isa):
    """So many results that they do not fit the buffer at once: the merge goes on from where it stopped."""
    from kvist.kernels.native_module import load

    rng = np.random.default_rng(2)
    rows, tokens, size = 64, 3000, 128
    view = view_of(2, 64, 256, size, "f16", "f16")
    table = rng.permutation(24).astype(np.int32)
    pool = new_pool(view, 24)
    store_sequence(rng, pool, view, table, tokens)
    work = work_list(cells(table, tokens, range(rows), size), [(0, tokens - 64 + r, 0) for r in range(rows)])
    q = rng.normal(size=(rows, 64, 64)).astype(np.float32)
    whole = run(q, pool, view, work)
    plan = load().Plan(
        work.item_position, work.item_block_start, work.blocks, work.item_row_start, work.item_rows, work.row_first,
        work.row_end, work.row_sinks,
    )  # fmt: skip
    out = torch.empty(rows, 64, 256)
    twin = load().View(
        view.k_offset_bytes, view.v_offset_bytes, view.head_bytes, 2, 64, 256, size, 1, 1
    )  # fmt: skip
    plan.run(twin, q.ctypes.data, pool.data_ptr(), *pool.shape, 64, 0.15, 0.0, out.data_ptr())
    assert plan.waves > 1
    np.testing.assert_array_equal(out.numpy(), whole)
    keep = [0, 17, 63]
    np.testing.assert_array_equal(run(q[keep], pool, view, subset(work, keep)), whole[keep])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width,outputs", [(576, 100), (40, 49), (1536, 24), (17, 30)])
def test_linear_rows_do_not_know_each_other(isa, width, outputs, dtype, threads):
    from kvist.kernels.ops.native import NativeOps

    torch.manual_seed(width)
    ops = NativeOps()
    x, weight = torch.randn(70, width), torch.randn(outputs, width).to(dtype)
    threads(1)
    whole = ops.linear(x, Matrix.of(weight))
    threads(2)
    assert torch.equal(ops.linear(x, Matrix.of(weight)), whole)
    for rows in (1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 23, 24, 33, 70):
        assert torch.equal(ops.linear(x[:rows], Matrix.of(weight)), whole[:rows])
        assert torch.equal(ops.linear(x[70 - rows :], Matrix.of(weight)), whole[70 - rows :])
    for part in (1, 3, 8, 11):
        assert torch.equal(ops.linear(x[:5], Matrix.of(weight[:part])), whole[:5, :part])


def test_rowwise_ops_do_not_know_each_other(isa, threads):
    from kvist.kernels.ops.native import NativeOps

    torch.manual_seed(0)
    ops = NativeOps()
    x, weight = torch.randn(200, 576), torch.randn(576)
    for n in (1, 2):
        threads(n)
        assert torch.equal(ops.rms_norm(x, weight, 1e-5)[[3]], ops.rms_norm(x[[3]], weight, 1e-5))
        assert torch.equal(ops.gated(x, "gelu_tanh")[[150]], ops.gated(x[[150]], "gelu_tanh"))
