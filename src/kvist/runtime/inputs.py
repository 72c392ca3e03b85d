"""From a plan's chunks to the arrays of one forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from kvist.ids import GroupId
from kvist.model.batch import Batch, SequenceRows, build_batch
from kvist.runtime.tables import Tables
from kvist.spec.layout import CacheLayout
from kvist.step import Chunk


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
