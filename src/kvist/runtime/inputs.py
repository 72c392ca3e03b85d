"""From a plan's chunks to the arrays of one forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from kvist.ids import GroupId
from kvist.kernels.attention.worklist import Cuts, cut
from kvist.model.batch import Batch, GroupRows, SequenceRows, build_batch
from kvist.runtime.tables import Tables
from kvist.spec.layer import Retention
from kvist.spec.layout import CacheLayout
from kvist.step import Chunk

_FIRST = np.zeros(1, dtype=np.int32)
_NONE = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Inputs:
    """``batch`` for the decoder; ``logit_base[i]`` is the first row of the logits that belongs to chunk i.

    Within a chunk, logits follow ``rows[i]``: offsets into its tokens, ascending.
    """

    batch: Batch
    logit_base: tuple[int, ...]
    rows: tuple[np.ndarray, ...]

    def logit_row(self, chunk: int, offset: int) -> int:
        """Row of the logits that answers for token ``offset`` of a chunk."""
        rows = self.rows[chunk]
        if len(rows) == 1 and rows[0] == offset:
            return self.logit_base[chunk]
        at = int(np.searchsorted(rows, offset))
        assert at < len(rows) and rows[at] == offset, "a sample refers to a row whose logits were not asked for"
        return self.logit_base[chunk] + at


def wanted_rows(chunk: Chunk) -> np.ndarray:
    """Offsets whose logits are needed: all of them for prompt log-probabilities, else what the plan says."""
    if chunk.prompt_logprobs is not None:
        return np.arange(len(chunk.tokens), dtype=np.int32)
    wanted = chunk.logit_rows
    return np.array(wanted if len(wanted) < 2 else sorted(wanted), dtype=np.int32)


def build_inputs(layout: CacheLayout, chunks: tuple[Chunk, ...], tables: Tables) -> Inputs:
    """The batch of a plan's chunks, in the plan's order."""
    if all(len(c.tokens) == 1 and c.prompt_logprobs is None for c in chunks):
        return _single_rows(layout, chunks, tables)
    return _any_rows(layout, chunks, tables)


def _single_rows(layout: CacheLayout, chunks: tuple[Chunk, ...], tables: Tables) -> Inputs:
    """``_any_rows`` for one token a chunk, in fewer steps: most steps merely continue."""
    starts = np.array([c.start for c in chunks])
    ones = np.ones_like(starts)
    cuts: dict[tuple[Retention, int], Cuts] = {}
    groups = []
    for group in layout.groups:
        rule = (group.retention, group.tokens_per_block)
        if rule not in cuts:
            cuts[rule] = cut(starts, ones, *rule)
        mine = [tables.row(c.seq, group.id) for c in chunks]
        work = cuts[rule].fill(mine)
        at = (starts // group.tokens_per_block).tolist()
        block = np.array([table[i] for table, i in zip(mine, at, strict=True)], dtype=np.int32)
        groups.append(GroupRows(work, block, (starts % group.tokens_per_block).astype(np.int32)))
    wanted = [bool(c.logit_rows) for c in chunks]
    batch = Batch(
        tokens=np.array([c.tokens[0] for c in chunks], dtype=np.int32),
        positions=starts.astype(np.int32),
        groups=tuple(groups),
        logit_rows=np.flatnonzero(wanted).astype(np.int32),
    )
    return Inputs(batch, tuple(accumulate(wanted[:-1], initial=0)), tuple(_FIRST if w else _NONE for w in wanted))


def _any_rows(layout: CacheLayout, chunks: tuple[Chunk, ...], tables: Tables) -> Inputs:
    groups = range(len(layout.groups))
    rows = tuple(wanted_rows(c) for c in chunks)
    sequences = [
        SequenceRows(
            tokens=np.array(c.tokens, dtype=np.int32),
            start=c.start,
            tables=tuple(tables.row(c.seq, GroupId(g)) for g in groups),
            logit_rows=wanted,
        )
        for c, wanted in zip(chunks, rows, strict=True)
    ]
    base = tuple(accumulate((len(r) for r in rows[:-1]), initial=0))
    return Inputs(build_batch(layout, sequences), base, rows)
