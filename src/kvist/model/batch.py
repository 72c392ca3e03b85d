"""What one forward pass computes: rows of any number of sequences, side by side.

Built by the runtime from block tables; the decoder reads it and nothing else about sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvist.errors import StateError
from kvist.kernels.attention.base import WorkList
from kvist.kernels.attention.worklist import Cuts, cut, read_end
from kvist.spec.layer import Retention
from kvist.spec.layout import CacheLayout, Group


@dataclass(frozen=True, slots=True)
class GroupRows:
    """One layer group's part: what rows read, and where their K and V go (``block`` -1: nowhere), int32 [rows]."""

    work: WorkList
    block: np.ndarray
    slot: np.ndarray


@dataclass(frozen=True, slots=True)
class Batch:
    """``tokens`` and ``positions`` int32 [rows], ``groups`` by group id, ``logit_rows`` int32: rows to answer for."""

    tokens: np.ndarray
    positions: np.ndarray
    groups: tuple[GroupRows, ...]
    logit_rows: np.ndarray

    @property
    def rows(self) -> int:
        """Rows of the pass."""
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """One sequence's part of a pass: ``tokens`` at positions ``start, start + 1, ...``.

    ``tables`` int32 [blocks] per group, long enough for the last position. ``logit_rows`` are offsets into
    ``tokens``. Rows before position ``write_from`` are computed but not written (their blocks are sealed already).
    """

    tokens: np.ndarray
    start: int
    tables: tuple[np.ndarray, ...]
    logit_rows: np.ndarray
    write_from: int = 0


def build_batch(layout: CacheLayout, sequences: Sequence[SequenceRows]) -> Batch:
    """Rows in the order given, sequence by sequence. Raises ``StateError`` for tables that are too short."""
    starts = np.array([s.start for s in sequences])
    lengths = np.array([len(s.tokens) for s in sequences])
    bases = np.cumsum(lengths) - lengths
    positions = np.repeat(starts - bases, lengths) + np.arange(int(lengths.sum()))
    writes = positions >= np.repeat([s.write_from for s in sequences], lengths)
    cuts: dict[tuple[Retention, int], Cuts] = {}
    groups = []
    for group in layout.groups:
        rule = (group.retention, group.tokens_per_block)
        if rule not in cuts:
            cuts[rule] = cut(starts, lengths, *rule)
        tables = [s.tables[group.id] for s in sequences]
        groups.append(_group_rows(group, cuts[rule], tables, positions, lengths, writes))
    asked = [np.asarray(s.logit_rows, dtype=np.int32) + base for s, base in zip(sequences, bases, strict=True)]
    return Batch(
        tokens=np.concatenate([s.tokens for s in sequences]).astype(np.int32, copy=False),
        positions=positions.astype(np.int32),
        groups=tuple(groups),
        logit_rows=np.concatenate(asked).astype(np.int32),
    )


def _group_rows(
    group: Group,
    cuts: Cuts,
    tables: list[np.ndarray],
    positions: np.ndarray,
    lengths: np.ndarray,
    writes: np.ndarray,
) -> GroupRows:
    work = cuts.fill(tables)
    sizes = np.array([len(t) for t in tables])
    first = np.repeat(np.cumsum(sizes) - sizes, lengths)
    flat = tables[0] if len(tables) == 1 else np.concatenate(tables)
    block = flat[first + positions // group.tokens_per_block]
    return GroupRows(
        work=work,
        block=np.where(writes, block, -1).astype(np.int32),
        slot=(positions % group.tokens_per_block).astype(np.int32),
    )


def check_batch(batch: Batch, groups: Sequence[Group], vocab: int) -> None:
    """Lengths and positions agree everywhere, tokens exist. Raises ``StateError``: a wrong batch never runs."""
    if len(batch.groups) != len(groups):
        raise StateError(f"the batch has {len(batch.groups)} groups, the layout {len(groups)}")
    if len(batch.positions) != batch.rows:
        raise StateError(f"{batch.rows} tokens with {len(batch.positions)} positions")
    for i, (group, kept) in enumerate(zip(batch.groups, groups, strict=True)):
        if not len(group.block) == len(group.slot) == group.work.rows == batch.rows:
            raise StateError(f"group {i}: {group.work.rows} rows of work for {batch.rows} tokens")
        if (group.work.row_end != read_end(kept.retention, batch.positions)).any():
            raise StateError(f"group {i}: a row's causal limit is not what its position says")
    if batch.rows and not (batch.tokens.min() >= 0 and batch.tokens.max() < vocab):
        raise StateError(f"token ids go from {batch.tokens.min()} to {batch.tokens.max()}, the vocabulary has {vocab}")
