"""Native attention against plain loops in double precision. Every pool is NaN wherever nothing was written."""

import numpy as np
import pytest
import torch
from kernel_judge import (
    addresses,
    block_bytes,
    cells,
    new_pool,
    plain_attention,
    store_sequence,
    view_of,
    work_list,
)

from kvist.errors import BadValue

HEADS = [(4, 4), (4, 2), (4, 1), (6, 3), (9, 3)]
DIMS = [(64, 64), (8, 24), (64, 96), (80, 64), (96, 128), (128, 80), (256, 64), (20, 12)]
ELEMENTS = [("f16", "f16"), ("f32", "f32"), ("bf16", "f16"), ("f32", "f16"), ("f16", "f32"), ("bf16", "bf16")]
BLOCKS = [16, 32, 64, 128]


def attend(q, pool, view, work, *, scale, softcap=0.0):
    from kvist.kernels.attention.native import NativeAttention

    out = torch.full((q.shape[0], q.shape[1], view.value_dim), torch.nan)
    NativeAttention()(torch.from_numpy(q), pool, view, work, scale=scale, softcap=softcap, out=out)
    return out.numpy()


def queries(rng, rows, heads, dim):
    return rng.normal(size=(rows, heads, dim)).astype(np.float32)


def table_of(rng, tokens, tokens_per_block):
    """Shuffled block ids, with two blocks to spare."""
    n = -(-tokens // tokens_per_block)
    return rng.permutation(n + 2)[:n].astype(np.int32)


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=6e-6)


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("dims", DIMS, ids=str)
def test_grid(isa, heads, dims):
    """Heads by dims; element types, block sizes and lengths alternate so that each meets each over the grid."""
    nth = HEADS.index(heads) * len(DIMS) + DIMS.index(dims)
    k_element, v_element = ELEMENTS[nth % len(ELEMENTS)]
    tokens_per_block = BLOCKS[nth % len(BLOCKS)]
    tokens, rows = (530, 513, 512, 300, 1040)[nth % 5], (3, 1, 17, 2)[(nth // 3) % 4]
    rng = np.random.default_rng(nth)
    view = view_of(heads[1], *dims, tokens_per_block, k_element, v_element)
    table = table_of(rng, tokens, tokens_per_block)
    pool = new_pool(view, len(table) + 2)
    sequence = store_sequence(rng, pool, view, table, tokens)
    q = queries(rng, rows, heads[0], dims[0])
    ends = [tokens - rows + 1 + r for r in range(rows)]
    work = work_list(cells(table, tokens, range(rows), tokens_per_block), [(0, e, 0) for e in ends])
    got = attend(q, pool, view, work, scale=dims[0] ** -0.5)
    close(got, plain_attention(q, sequence, [range(e) for e in ends], scale=dims[0] ** -0.5))


def test_query_heads_share_kv_heads_by_neighbourhood(isa):
    """F074: query head h reads KV head h // (q_heads / kv_heads). A tiled mapping (h % kv_heads) must not pass."""
    for q_heads, kv_heads in HEADS:
        rng = np.random.default_rng(q_heads)
        view = view_of(kv_heads, 64, 32, 32)
        table = table_of(rng, 70, 32)
        pool = new_pool(view, len(table) + 2)
        sequence = store_sequence(rng, pool, view, table, 70)
        q = queries(rng, 1, q_heads, 64)
        got = attend(q, pool, view, work_list(cells(table, 70, [0], 32), [(0, 70, 0)]), scale=0.2)
        close(got, plain_attention(q, sequence, [range(70)], scale=0.2))
        wrong = plain_attention(q, sequence, [range(70)], scale=0.2, tiled_heads=True)
        if 1 < kv_heads < q_heads:
            assert np.abs(got - wrong).max() > 0.05


@pytest.mark.parametrize("softcap", [0.0, 5.0, 50.0])
@pytest.mark.parametrize("window,sinks", [(100, 0), (100, 4), (16, 20), (700, 1), (1, 0)])
def test_windows_sinks_softcap(isa, window, sinks, softcap):
    """Blocks behind the window are gone (-1) or poisoned; large scores make a missing mask obvious."""
    rng = np.random.default_rng(window + sinks)
    tokens, size, rows = 1100, 32, 5
    view = view_of(3, 64, 64, size)
    table = table_of(rng, tokens, size)
    pool = new_pool(view, len(table) + 2)
    ends = [tokens - rows + 1 + r for r in range(rows)]
    firsts = [max(0, e - window) for e in ends]
    sequence = store_sequence(rng, pool, view, table, tokens, spread=3.0)
    sink_blocks = -(-sinks // size)
    seen = [sorted({*range(min(sinks, f)), *range(f, e)}) for f, e in zip(firsts, ends, strict=True)]
    runs = [(0, table[:sink_blocks].tolist(), list(range(rows)))] if sinks else []
    start = max(firsts[0] // size, sink_blocks)
    gone = table.copy()
    gone[start // 2 : start] = -1  # some blocks of the first cell are released, others merely out of sight
    runs += cells(gone, tokens, range(rows), size, start=start * size)
    limits = [(f, e, min(sinks, f)) for f, e in zip(firsts, ends, strict=True)]
    q = queries(rng, rows, 9, 64)
    got = attend(q, pool, view, work_list(runs, limits), scale=0.125, softcap=softcap)
    close(got, plain_attention(q, sequence, seen, scale=0.125, softcap=softcap))


def test_released_blocks_inside_an_item_are_skipped(isa):
    """An item may span released blocks as long as none of its rows looks at them."""
    rng = np.random.default_rng(1)
    view = view_of(2, 64, 64, 16)
    table = table_of(rng, 300, 16)
    pool = new_pool(view, len(table) + 2)
    sequence = store_sequence(rng, pool, view, table, 300)
    holes = table.copy()
    holes[2:9] = -1
    q = queries(rng, 2, 4, 64)
    limits = [(150, 299, 5), (151, 300, 20)]
    got = attend(q, pool, view, work_list(cells(holes, 300, range(2), 16), limits), scale=0.1)
    want = [[*range(5), *range(150, 299)], [*range(20), *range(151, 300)]]
    close(got, plain_attention(q, sequence, want, scale=0.1))


@pytest.mark.parametrize("rows", [1, 2, 5, 15, 16, 17, 33, 70])
@pytest.mark.parametrize("start", [0, 1, 500, 511])
def test_chunks_cross_cells(isa, rows, start):
    """A prefill chunk: every row has its own end, tiles of rows are ragged, cells are crossed inside the chunk."""
    rng = np.random.default_rng(rows * 1000 + start)
    tokens = start + rows
    view = view_of(1, 64, 64, 16, "f32", "f16")
    table = table_of(rng, tokens, 16)
    pool = new_pool(view, len(table) + 2)
    sequence = store_sequence(rng, pool, view, table, tokens)
    q = queries(rng, rows, 3, 64)
    runs = cells(table, tokens, range(rows), 16)
    runs = [(p, b, [r for r in rs if start + r + 1 > p]) for p, b, rs in runs]
    got = attend(q, pool, view, work_list(runs, [(0, start + r + 1, 0) for r in range(rows)]), scale=0.125)
    close(got, plain_attention(q, sequence, [range(start + r + 1) for r in range(rows)], scale=0.125))


def test_shared_runs_and_private_tails(isa):
    """Three sequences share 600 tokens; rows of all of them read the shared items, tails are apart."""
    rng = np.random.default_rng(2)
    size, shared, lengths = 16, 608, (700, 609, 1030)
    view = view_of(3, 64, 32, size)
    ids = iter(rng.permutation(200).astype(np.int32))
    prefix = [next(ids) for _ in range(shared // size)]
    pool = new_pool(view, 200)
    store_sequence(rng, pool, view, prefix, shared)
    rows, runs, wants, q = [], {}, [], queries(rng, 6, 9, 64)
    for s, n in enumerate(lengths):
        table = np.array([*prefix, *(next(ids) for _ in range(-(-n // size) - len(prefix)))], dtype=np.int32)
        shared_rng = np.random.default_rng(2)
        shared_rng.permutation(200)
        sequence = store_sequence(shared_rng, pool, view, prefix, shared)  # the same numbers again
        tail = store_sequence(rng, pool, view, table, n, from_token=shared)
        k = np.concatenate([sequence.k, tail.k[shared:]])
        v = np.concatenate([sequence.v, tail.v[shared:]])
        mine = [2 * s, 2 * s + 1]
        for position, blocks, _ in cells(table, n, mine, size):
            runs.setdefault((position, tuple(blocks)), []).extend(mine)
        for i, row in enumerate(mine):
            end = n - 1 + i
            rows.append((0, end, 0))
            whole = type(sequence)(k, v, table)
            wants.append(plain_attention(q[row : row + 1], whole, [range(end)], scale=0.3)[0])
    work = work_list([(p, list(b), r) for (p, b), r in runs.items()], rows)
    assert max(np.diff(work.item_row_start)) == 6
    close(attend(q, pool, view, work, scale=0.3), np.stack(wants))


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("stream", ["k", "v"])
def test_a_poisoned_slot_harms_only_rows_that_see_it(isa, stream, poison):
    rng = np.random.default_rng(3)
    view = view_of(2, 64, 64, 16, "f32", "f32")
    table = np.arange(3, dtype=np.int32)
    pool = new_pool(view, 3)
    sequence = store_sequence(rng, pool, view, table, 40)
    at = addresses(view, 1, 9, stream, block_bytes(view)).reshape(-1) // 4  # position 25
    pool.view(torch.float32).view(-1)[torch.from_numpy(at)] = float(poison)
    limits = [(0, 25, 0), (0, 40, 0), (26, 40, 0), (26, 40, 25), (0, 26, 0)]
    seen = [[*range(s), *range(f, e)] for f, e, s in limits]
    q = queries(rng, 5, 4, 64)
    got = attend(q, pool, view, work_list(cells(table, 40, range(5), 16), limits), scale=0.125)
    safe = [0, 2, 3]
    close(got[safe], plain_attention(q[safe], sequence, [seen[r] for r in safe], scale=0.125))
    assert not np.isfinite(got[[1, 4]]).all(axis=(1, 2)).any()


def test_a_row_that_sees_nothing_gives_zeros(isa):
    rng = np.random.default_rng(4)
    view = view_of(2, 64, 64, 16)
    pool = new_pool(view, 3)
    table = np.arange(3, dtype=np.int32)
    sequence = store_sequence(rng, pool, view, table, 20)
    q = queries(rng, 3, 4, 64)
    work = work_list([(0, [0, 1], [0, 1])], [(5, 5, 0), (0, 20, 0), (0, 0, 0)])  # row 2 is in no item
    got = attend(q, pool, view, work, scale=0.125)
    assert not got[[0, 2]].any()
    close(got[[1]], plain_attention(q[[1]], sequence, [range(20)], scale=0.125))


def test_no_rows_and_no_items(isa):
    view = view_of(2, 64, 64, 16)
    got = attend(np.zeros((0, 4, 64), np.float32), new_pool(view, 1), view, work_list([], []), scale=1.0)
    assert got.shape == (0, 4, 64)


def test_scores_far_apart(isa):
    """Scores of +-2000: the softmax must neither overflow nor lose the winner."""
    rng = np.random.default_rng(5)
    view = view_of(1, 64, 64, 16, "f32", "f32")
    table = table_of(rng, 600, 16)
    pool = new_pool(view, len(table) + 2)
    sequence = store_sequence(rng, pool, view, table, 600, spread=30.0)
    q = queries(rng, 2, 3, 64) * 3
    got = attend(q, pool, view, work_list(cells(table, 600, range(2), 16), [(0, 600, 0)] * 2), scale=1.0)
    np.testing.assert_allclose(got, plain_attention(q, sequence, [range(600)] * 2, scale=1.0), rtol=1e-3, atol=1e-3)


def refused(call, *words):
    with pytest.raises((BadValue, ValueError)) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_contradictions_are_refused(isa):
    view = view_of(2, 64, 64, 16)
    pool = new_pool(view, 2)
    q = np.zeros((1, 4, 64), np.float32)

    def run(runs, limits, q=q, view=view):
        return lambda: attend(q, pool, view, work_list(runs, limits), scale=1.0)

    refused(run([(0, [2], [0])], [(0, 4, 0)]), "block 2", "pool of 2")
    refused(run([(0, [0, -1], [0])], [(0, 20, 0)]), "released")
    refused(run([(8, [0], [0])], [(0, 12, 0)]), "multiple of 16")
    refused(run([(0, [0] * 33, [0])], [(0, 4, 0)]), "longer than a cell")
    refused(run([(0, [0], [0])], [(0, 4, 0)], q=np.zeros((1, 3, 64), np.float32)), "heads a multiple of 2")
    refused(run([(0, [0], [0])], [(0, 4, 0)], q=q.astype(np.float64)), "float32")
    refused(run([(0, [0], [0])], [(0, 4, 0)], q=np.zeros((1, 4, 32), np.float32)), "64")


def test_supports_says_what_is_refused(isa):
    from dataclasses import replace

    from kvist.kernels.attention.native import NativeAttention

    view = view_of(2, 64, 64, 16)
    kernel = NativeAttention()
    assert kernel.supports(view)
    for no in (replace(view, v_offset_bytes=-1), replace(view, key_dim=576), replace(view, k_element="int8")):
        assert not kernel.supports(no)
        pool = new_pool(view, 1)
        q = np.zeros((1, 4, no.key_dim), np.float32)
        refused(lambda: attend(q, pool, no, work_list([(0, [0], [0])], [(0, 4, 0)]), scale=1.0), "head dims up to")  # noqa: B023
