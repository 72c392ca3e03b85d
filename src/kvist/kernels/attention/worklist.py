"""From block tables to a work list: what a step's queries read, cut on the position grid, shared runs read once.

Every sequence is cut into *parts*: cells of 512 positions, and, for groups with sinks, the blocks that hold sinks
(always apart from the rest, whatever a window has released). A part that lists the same blocks in several sequences
becomes one item with all their rows. Nothing here depends on a neighbour: parts lie on an absolute grid, a row's
limits are its own, and its items come in ascending order of position.

``cut`` holds all that does not need block ids (once per step and retention rule), ``Cuts.fill`` looks up the blocks
(once per group), ``build`` does both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvist.errors import StateError
from kvist.kernels.attention.base import WorkList
from kvist.spec.layer import Retention
from kvist.spec.layout import CELL_TOKENS


def build(
    tables: Sequence[np.ndarray],
    starts: Sequence[int] | np.ndarray,
    lengths: Sequence[int] | np.ndarray,
    retention: Retention,
    tokens_per_block: int,
) -> WorkList:
    """The work list of one group. Sequence s has query rows at positions ``[starts[s], starts[s] + lengths[s])``.

    ``tables[s]`` int32 [blocks] are the sequence's block ids of this group, null (-1) where a window let go. Rows are
    numbered sequence by sequence. Raises ``StateError`` when a row needs a block that its table lacks.
    """
    return cut(starts, lengths, retention, tokens_per_block).fill(tables)


@dataclass(frozen=True, slots=True)
class Cuts:
    """Parts of every sequence, in order of (sequence, position). ``first``/``end`` are block indices in its table.

    Part p is read by rows ``[row_from[p], row_from[p] + rows[p])``. ``needed_blocks[s]`` is the least table length.
    ``parts[s]`` parts are those of sequence s; None unless each has one row and its parts have no gaps.
    """

    tokens_per_block: int
    sequence: np.ndarray
    first: np.ndarray
    end: np.ndarray
    row_from: np.ndarray
    rows: np.ndarray
    row_first: np.ndarray
    row_end: np.ndarray
    row_sinks: np.ndarray
    needed_blocks: np.ndarray
    parts: np.ndarray | None = None

    def fill(self, tables: Sequence[np.ndarray]) -> WorkList:
        """Look up the blocks of every part and join parts with equal blocks."""
        blocks, block_start = self._blocks(tables)
        joined = _join(blocks, block_start, self.first) if len(tables) > 1 else None
        if joined is None and self.parts is not None:
            return self._each_its_own(self.parts, blocks, block_start)
        row_from, rows, first = self.row_from, self.rows, self.first
        items = np.arange(len(rows)) if joined is None else joined[0]
        entry_rows = _expand(row_from, rows)
        row_items, row_item_start = _by_row(entry_rows, items.repeat(rows), len(self.row_end))
        if joined is not None:
            item_of, kept = joined
            order = item_of.argsort(kind="stable")
            entry_rows = _expand(row_from[order], rows[order])
            rows = np.bincount(item_of, weights=rows).astype(np.int64)
            runs = block_start[1:] - block_start[:-1]
            blocks = blocks[kept.repeat(runs)]
            block_start, first = _starts(runs[kept]), first[kept]
        return WorkList(
            item_position=_int32(first * self.tokens_per_block),
            item_block_start=_int32(block_start),
            blocks=_int32(blocks),
            item_row_start=_int32(_starts(rows)),
            item_rows=_int32(entry_rows),
            row_first=self.row_first,
            row_end=self.row_end,
            row_sinks=self.row_sinks,
            row_item_start=row_item_start,
            row_items=_int32(row_items),
        )

    def _each_its_own(self, parts: np.ndarray, blocks: np.ndarray, block_start: np.ndarray) -> WorkList:
        """One row a sequence, and nothing shared: items are parts, in the order of the rows."""
        count = np.arange(len(self.first) + 1, dtype=np.int32)
        return WorkList(
            item_position=_int32(self.first * self.tokens_per_block),
            item_block_start=_int32(block_start),
            blocks=_int32(blocks),
            item_row_start=count,
            item_rows=_int32(self.row_from),
            row_first=self.row_first,
            row_end=self.row_end,
            row_sinks=self.row_sinks,
            row_item_start=_int32(_starts(parts)),
            row_items=count[:-1],
        )

    def _blocks(self, tables: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        have = np.array([len(t) for t in tables])
        short = have < self.needed_blocks
        if short.any():
            s = int(short.argmax())
            raise StateError(f"sequence {s} of the step has {have[s]} blocks, its rows need {self.needed_blocks[s]}")
        runs = self.end - self.first
        if self.parts is not None:
            last = self.parts.cumsum() - 1
            bounds = zip(tables, self.first[last + 1 - self.parts].tolist(), self.end[last].tolist(), strict=True)
            pieces = [table[low:high] for table, low, high in bounds]
            blocks = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        else:
            flat = tables[0] if len(tables) == 1 else np.concatenate(tables)
            base = have.cumsum() - have
            blocks = flat[_expand(base[self.sequence] + self.first, runs)]
        if len(blocks) and blocks.min() < 0:
            raise StateError("a query row needs a block that its window has already let go")
        return blocks, _starts(runs)


def cut(
    starts: Sequence[int] | np.ndarray,
    lengths: Sequence[int] | np.ndarray,
    retention: Retention,
    tokens_per_block: int,
) -> Cuts:
    """Cut the rows of a step on the grid. See ``build``."""
    start, n = np.asarray(starts, dtype=np.int64), np.asarray(lengths, dtype=np.int64)
    if not len(n) or n.min() < 1:
        raise StateError("a work list needs at least one sequence, and every sequence at least one row")
    if not retention.sinks and retention.before_cell_tokens is None and n.max() == 1:
        return _cut_single(start, retention, tokens_per_block)
    return _cut_any(start, n, retention, tokens_per_block)


def _cut_any(start: np.ndarray, n: np.ndarray, retention: Retention, tokens_per_block: int) -> Cuts:
    end = start + n
    grid = _Grid(-(-retention.sinks // tokens_per_block) * tokens_per_block)
    needed = _first_needed(retention, start)
    last_end = read_end(retention, end - 1)
    part_end_of = np.where(last_end > 0, grid.part_of(last_end - 1) + 1, 0)
    sink_parts = np.minimum(grid.sink_parts, part_end_of)
    other_from = np.maximum(grid.part_of(needed), grid.sink_parts)
    parts = sink_parts + np.maximum(part_end_of - other_from, 0)

    sequence = np.arange(len(n)).repeat(parts)
    nth = _expand(np.zeros_like(parts), parts)
    is_sink = nth < sink_parts[sequence]
    part = np.where(is_sink, nth, nth - (sink_parts - other_from)[sequence])
    part_start, part_end = grid.bounds(part)
    from_position = np.where(is_sink, part_start, np.maximum(part_start, needed[sequence]))
    seq_start = start[sequence]
    low = np.maximum(_first_reader(retention, part_start) - seq_start, 0)
    high = np.minimum(np.where(is_sink, n[sequence], _last_reader(retention, part_end) - seq_start), n[sequence])

    row_base = n.cumsum() - n
    position = _expand(start, n)
    needed_by_row = _first_needed(retention, position)
    needed_blocks = -(-end // tokens_per_block)
    return Cuts(
        tokens_per_block=tokens_per_block,
        sequence=sequence,
        first=from_position // tokens_per_block,
        end=np.minimum(part_end // tokens_per_block, (-(-last_end // tokens_per_block))[sequence]),
        row_from=row_base[sequence] + low,
        rows=high - low,
        row_first=_int32(np.maximum(needed_by_row, retention.unread_sinks)),
        row_end=_int32(read_end(retention, position)),
        row_sinks=_int32(np.minimum(needed_by_row, retention.sinks)),
        needed_blocks=needed_blocks,
    )


def _cut_single(start: np.ndarray, retention: Retention, tokens_per_block: int) -> Cuts:
    """``cut`` for one row a sequence and no sinks, in fewer steps: what a step that only continues asks for."""
    needed, end = _first_needed(retention, start), start + 1
    from_part = needed // CELL_TOKENS
    parts = start // CELL_TOKENS + 1 - from_part
    sequence = np.arange(len(start)).repeat(parts)
    part_start = _expand(from_part, parts) * CELL_TOKENS
    needed_blocks = -(-end // tokens_per_block)
    row_first = _int32(needed)
    return Cuts(
        tokens_per_block=tokens_per_block,
        sequence=sequence,
        first=np.maximum(part_start, needed[sequence]) // tokens_per_block,
        end=np.minimum((part_start + CELL_TOKENS) // tokens_per_block, needed_blocks[sequence]),
        row_from=sequence,
        rows=np.ones_like(sequence),
        row_first=row_first,
        row_end=_int32(end),
        row_sinks=np.zeros_like(row_first),
        needed_blocks=needed_blocks,
        parts=parts,
    )


class _Grid:
    """Numbers the parts of the position line: sink blocks ``[0, cut)`` first, in cells, then the rest in cells."""

    def __init__(self, cut_position: int) -> None:
        self.cut = cut_position
        self.sink_parts = -(-cut_position // CELL_TOKENS)
        self._shift = self.sink_parts - cut_position // CELL_TOKENS

    def part_of(self, position: np.ndarray) -> np.ndarray:
        cell: np.ndarray = position // CELL_TOKENS
        if self._shift:
            cell += self._shift * (position >= self.cut)
        return cell

    def bounds(self, part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Half-open position ranges of parts."""
        if not self.cut:
            return part * CELL_TOKENS, (part + 1) * CELL_TOKENS
        cell = np.where(part < self.sink_parts, part, part - self._shift) * CELL_TOKENS
        low = np.where(part < self.sink_parts, cell, np.maximum(cell, self.cut))
        high = np.where(part < self.sink_parts, np.minimum(cell + CELL_TOKENS, self.cut), cell + CELL_TOKENS)
        return low, high


def _first_needed(retention: Retention, position: np.ndarray) -> np.ndarray:
    """``Retention.first_needed`` for many positions."""
    first = np.zeros_like(position)
    if retention.window_tokens is not None:
        np.maximum(position - (retention.window_tokens - 1), 0, out=first)
    elif retention.chunk_tokens is not None:
        np.subtract(position, position % retention.chunk_tokens, out=first)
    return first


def read_end(retention: Retention, position: np.ndarray) -> np.ndarray:
    """``Retention.read_end`` for many positions."""
    cell = retention.before_cell_tokens
    return position + 1 if cell is None else position - position % cell


def _first_reader(retention: Retention, part_start: np.ndarray) -> np.ndarray:
    """The first position whose query reads something from ``part_start`` on."""
    cell = retention.before_cell_tokens
    return part_start if cell is None else part_start - part_start % cell + cell


def _last_reader(retention: Retention, part_end: np.ndarray) -> np.ndarray:
    """One past the last position whose query reads something before ``part_end`` (apart from sinks)."""
    if retention.window_tokens is not None:
        return part_end + (retention.window_tokens - 1)
    if retention.chunk_tokens is not None:
        return -(-part_end // retention.chunk_tokens) * retention.chunk_tokens
    return np.full_like(part_end, np.iinfo(np.int64).max // 2)


def _join(blocks: np.ndarray, block_start: np.ndarray, first: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Item number of every part (parts with the same blocks get the same) and which parts stand for an item.

    None when no block occurs twice.
    """
    heads = np.sort(blocks[block_start[:-1]])
    if (heads[1:] != heads[:-1]).all():
        return None
    raw, size = blocks.tobytes(), blocks.itemsize
    cuts = (block_start * size).tolist()
    seen: dict[tuple[int, bytes], int] = {}
    item_of = np.array(
        [seen.setdefault((p, raw[a:b]), len(seen)) for p, a, b in zip(first.tolist(), cuts, cuts[1:], strict=False)]
    )
    kept = np.zeros(len(item_of), dtype=bool)
    kept[np.unique(item_of, return_index=True)[1]] = True
    return item_of, kept


def _by_row(entry_rows: np.ndarray, entry_items: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Items of each row, in the order of the entries (ascending position): values and int32 CSR starts."""
    narrow = entry_rows.astype(np.uint16) if rows <= 1 << 16 else entry_rows
    order = narrow.argsort(kind="stable")
    return entry_items[order], _int32(_starts(np.bincount(entry_rows, minlength=rows)))


def _expand(first: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """``[first[0], first[0] + 1, ... counts[0] of them, first[1], ...]``."""
    out: np.ndarray = (first - (counts.cumsum() - counts)).repeat(counts)
    out += np.arange(len(out))
    return out


def _starts(counts: np.ndarray) -> np.ndarray:
    """CSR starts: one more entry than ``counts``."""
    out = np.zeros(len(counts) + 1, dtype=np.int64)
    counts.cumsum(out=out[1:])
    return out


def _int32(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.int32)
