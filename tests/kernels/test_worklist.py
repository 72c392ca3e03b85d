"""Work lists against a plain loop over (row, position), and the promises made to kernels."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvist.errors import StateError
from kvist.kernels.attention.worklist import _cut_any, _cut_single, build
from kvist.spec.layer import Retention
from kvist.spec.layout import CELL_TOKENS


def visible(retention, position):
    """Positions a query may read, by the words of the retention rule."""
    if retention.window_tokens is not None:
        near = set(range(max(0, position - retention.window_tokens + 1), position + 1))
    elif retention.chunk_tokens is not None:
        near = set(range(position // retention.chunk_tokens * retention.chunk_tokens, position + 1))
    else:
        near = set(range(position + 1))
    return near | set(range(min(retention.sinks, position + 1)))


def limits(work, row):
    return set(range(work.row_sinks[row])) | set(range(work.row_first[row], work.row_end[row]))


def items_of(work, row):
    return work.row_items[work.row_item_start[row] : work.row_item_start[row + 1]].tolist()


def run_of(work, item):
    return work.blocks[work.item_block_start[item] : work.item_block_start[item + 1]].tolist()


def rows_of(work, item):
    return work.item_rows[work.item_row_start[item] : work.item_row_start[item + 1]].tolist()


def check(work, tables, starts, lengths, retention, block_tokens):
    """Every promise of the contract, by brute force."""
    for array in (getattr(work, name) for name in type(work).__dataclass_fields__):
        assert array.dtype == np.int32 and array.flags.c_contiguous
    where = [(s, starts[s] + i) for s in range(len(tables)) for i in range(lengths[s])]
    assert work.rows == len(where)
    assert -1 not in work.blocks
    for item, start in enumerate(work.item_position.tolist()):
        end = start + len(run_of(work, item)) * block_tokens
        assert start % block_tokens == 0 and end > start
        assert start // CELL_TOKENS == (end - 1) // CELL_TOKENS, "a run stays in its cell"
        assert rows_of(work, item) == sorted(set(rows_of(work, item))) != []
    for row, (s, position) in enumerate(where):
        assert limits(work, row) == visible(retention, position)
        assert work.row_sinks[row] <= work.row_first[row], "limits are disjoint"
        items = items_of(work, row)
        covered = []
        for item in items:
            assert row in rows_of(work, item)
            blocks = run_of(work, item)
            first = work.item_position[item] // block_tokens
            assert blocks == tables[s][first : first + len(blocks)].tolist()
            span = range(work.item_position[item], work.item_position[item] + len(blocks) * block_tokens)
            assert limits(work, row) & set(span), "a row joins only items it may see"
            covered += span
        assert covered == sorted(set(covered)), "ascending, nothing twice"
        assert limits(work, row) <= set(covered)
    assert sum(len(rows_of(work, i)) for i in range(len(work.item_position))) == len(work.row_items)


RETENTIONS = [
    Retention(),
    Retention(window_tokens=1),
    Retention(window_tokens=24),
    Retention(window_tokens=600),
    Retention(window_tokens=24, sinks=4),
    Retention(window_tokens=700, sinks=17),
    Retention(window_tokens=40, sinks=512),
    Retention(window_tokens=40, sinks=530),
    Retention(chunk_tokens=24),
    Retention(chunk_tokens=512),
    Retention(chunk_tokens=800),
]


def null_behind_window(table, retention, start, block_tokens):
    """What a scheduler may have released when ``start`` tokens are committed."""
    table = table.copy()
    sink_blocks = -(-retention.sinks // block_tokens)
    table[sink_blocks : max(sink_blocks, retention.first_needed(start) // block_tokens)] = -1
    return table


@pytest.mark.parametrize("retention", RETENTIONS, ids=str)
@pytest.mark.parametrize("block_tokens", [16, 64, 512])
def test_against_a_plain_loop(retention, block_tokens):
    rng = np.random.default_rng(3)
    starts, lengths = [0, 511, 1030, 700], [3, 2, 40, 1]
    tables = []
    for s, n in zip(starts, lengths, strict=True):
        n_blocks = -(-(s + n) // block_tokens) + int(rng.integers(0, 3))
        table = (rng.permutation(5000)[:n_blocks] + 5000 * len(tables)).astype(np.int32)
        tables.append(null_behind_window(table, retention, s, block_tokens))
    work = build(tables, starts, lengths, retention, block_tokens)
    check(work, tables, starts, lengths, retention, block_tokens)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_steps_with_shared_prefixes(data):
    retention = data.draw(st.sampled_from(RETENTIONS))
    block_tokens = data.draw(st.sampled_from([16, 32, 128]))
    n = data.draw(st.integers(1, 5))
    trunk = np.arange(100, dtype=np.int32)
    tables, starts, lengths = [], [], []
    for i in range(n):
        start, length = data.draw(st.integers(0, 1200)), data.draw(st.integers(1, 30))
        n_blocks = -(-(start + length) // block_tokens)
        shared = data.draw(st.integers(0, n_blocks))
        own = np.arange(1000 * (i + 1), 1000 * (i + 1) + n_blocks - shared, dtype=np.int32)
        tables.append(null_behind_window(np.concatenate([trunk[:shared], own]), retention, start, block_tokens))
        starts.append(start)
        lengths.append(length)
    work = build(tables, starts, lengths, retention, block_tokens)
    check(work, tables, starts, lengths, retention, block_tokens)


def test_a_shared_cell_is_one_item_and_read_once():
    trunk = np.arange(70, dtype=np.int32)
    tables = [np.concatenate([trunk[:64], [1000 + i]]).astype(np.int32) for i in range(4)]
    work = build(tables, [1024] * 4, [1, 2, 1, 1], Retention(), 16)
    assert [rows_of(work, i) for i in items_of(work, 0)] == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [0]]
    assert len(work.blocks) == 64 + 4, "the trunk is listed once"


def test_a_cell_that_differs_in_one_block_is_not_shared():
    a, b = np.arange(32, dtype=np.int32), np.arange(32, dtype=np.int32)
    b[31] = 99
    assert len(build([a, b], [511, 511], [1, 1], Retention(), 16).item_position) == 2
    assert len(build([a, a.copy()], [511, 511], [1, 1], Retention(), 16).item_position) == 1


def test_the_same_blocks_elsewhere_are_not_the_same_run():
    table = np.arange(64, dtype=np.int32)
    moved = np.concatenate([np.arange(100, 132), np.arange(32)]).astype(np.int32)
    work = build([table, moved], [1023, 1023], [1, 1], Retention(), 16)
    assert sorted(work.item_position.tolist()) == [0, 0, 512, 512]


@pytest.mark.parametrize("retention", RETENTIONS, ids=str)
def test_a_rows_cuts_do_not_depend_on_neighbours_or_on_what_was_released(retention):
    """Item positions and limits of the last row: alone after release, in a chunk, and beside others."""
    table = np.arange(90, dtype=np.int32)
    position = 1300
    alone = build([null_behind_window(table, retention, position, 16)], [position], [1], retention, 16)
    chunk = build([table], [1000], [301], retention, 16)
    beside = build([table + 500, table], [3, 1290], [40, 11], retention, 16)

    def seen_by_item(work, row):
        out = []
        for item in items_of(work, row):
            start = int(work.item_position[item])
            span = set(range(start, start + 16 * len(run_of(work, item)))) & limits(work, row)
            out.append((start // CELL_TOKENS, min(span), max(span), len(span)))
        return out

    assert seen_by_item(alone, 0) == seen_by_item(chunk, 300) == seen_by_item(beside, 50)


def test_what_a_table_lacks_is_refused():
    with pytest.raises(StateError, match="has 2 blocks, its rows need 3"):
        build([np.arange(2, dtype=np.int32)], [32], [1], Retention(), 16)
    with pytest.raises(StateError, match="already let go"):
        build([np.array([-1, 1, 2], dtype=np.int32)], [40], [1], Retention(window_tokens=30), 16)
    with pytest.raises(StateError, match="at least one row"):
        build([np.arange(2, dtype=np.int32)], [3], [0], Retention(), 16)


@pytest.mark.parametrize(
    "name,sequences,start,length,limit_us", [("decode", 16, 2047, 1, 150), ("prefill", 1, 7500, 512, 300)]
)
def test_building_is_quick(name, sequences, start, length, limit_us):
    """Measured 68 us and 105 us; the bound leaves room for a busy machine (best of many)."""
    rng = np.random.default_rng(0)
    tables = [rng.permutation(1000)[:260].astype(np.int32) + 1000 * i for i in range(sequences)]
    best = float("inf")
    for _ in range(100):
        begin = time.perf_counter()
        build(tables, [start] * sequences, [length] * sequences, Retention(), 32)
        best = min(best, time.perf_counter() - begin)
    assert best * 1e6 < 2 * limit_us


@pytest.mark.parametrize("retention", [Retention(), Retention(window_tokens=700), Retention(chunk_tokens=1024)])
@pytest.mark.parametrize("shared", [False, True])
def test_one_row_a_sequence_is_cut_as_any_rows_are(retention: Retention, shared: bool) -> None:
    """The short way for steps that only continue gives the list of the long way, entry by entry."""
    rng = np.random.default_rng(7)
    for n, block_tokens in ((1, 16), (2, 32), (5, 64), (40, 16)):
        starts = rng.integers(0, 3000, n)
        tables = [np.arange(-(-3001 // block_tokens), dtype=np.int32) + 1000 * s for s in range(n)]
        if shared:
            for table in tables:
                table[: 1024 // block_tokens] = tables[0][: 1024 // block_tokens]
        short = _cut_single(starts, retention, block_tokens).fill(tables)
        long = _cut_any(starts, np.ones_like(starts), retention, block_tokens).fill(tables)
        for name in type(short).__dataclass_fields__:
            ours, theirs = getattr(short, name), getattr(long, name)
            assert ours.dtype == theirs.dtype and ours.tolist() == theirs.tolist(), name
        check(short, tables, starts.tolist(), [1] * n, retention, block_tokens)
