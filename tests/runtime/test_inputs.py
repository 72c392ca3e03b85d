"""A step that only continues has the arrays that the general way gives."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from kvist.errors import StateError
from kvist.ids import BlockId, GroupId, SeqId
from kvist.runtime.inputs import Inputs, _any_rows, _single_rows, build_inputs
from kvist.runtime.tables import Tables
from kvist.spec.format import KVFormat
from kvist.spec.layer import Full, LayerSpec, Window
from kvist.spec.layout import CacheLayout, plan_layout
from kvist.spec.model import ModelSpec
from kvist.step import Chunk, TableChange

MIXERS = {"full": [Full()] * 2, "hybrid": [Full(), Window(100)], "sinks": [Full(), Window(64, sinks=4)]}


def layout_of(name: str) -> CacheLayout:
    layers = tuple(LayerSpec(i, mixer, 2, 1, 16, 16) for i, mixer in enumerate(MIXERS[name]))
    model = ModelSpec(architecture="paper", hidden=32, layers=layers, vocab=100, context_tokens=4096)
    return plan_layout(model, KVFormat(), block_tokens=16)


def tables_of(layout: CacheLayout, sequences: int, n_tokens: int, rng: np.random.Generator) -> Tables:
    tables = Tables(len(layout.groups))
    for s in range(sequences):
        for group in layout.groups:
            ids = rng.permutation(1000)[: -(-n_tokens // group.tokens_per_block)]
            tables.apply(TableChange(SeqId(s), GroupId(group.id), 0, tuple(BlockId(int(b)) for b in ids)))
    return tables


def same(a: Inputs, b: Inputs) -> None:
    assert a.logit_base == b.logit_base and [r.tolist() for r in a.rows] == [r.tolist() for r in b.rows]
    for name in ("tokens", "positions", "logit_rows"):
        ours, theirs = getattr(a.batch, name), getattr(b.batch, name)
        assert ours.dtype == theirs.dtype == np.int32 and ours.tolist() == theirs.tolist(), name
    for mine, other in zip(a.batch.groups, b.batch.groups, strict=True):
        pairs = [(mine.block, other.block), (mine.slot, other.slot)]
        pairs += [(getattr(mine.work, f.name), getattr(other.work, f.name)) for f in fields(mine.work)]
        assert all(x.dtype == y.dtype and x.tolist() == y.tolist() for x, y in pairs)


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("sequences", [1, 3, 40])
def test_single_rows(name: str, sequences: int) -> None:
    rng, layout = np.random.default_rng(sequences), layout_of(name)
    tables = tables_of(layout, sequences, 1500, rng)
    chunks = tuple(
        Chunk(SeqId(s), int(rng.integers(0, 1500)), (int(rng.integers(0, 100)),), (0,) if s % 5 else ())
        for s in range(sequences)
    )
    inputs = build_inputs(layout, chunks, tables)
    same(inputs, _single_rows(layout, chunks, tables))
    same(inputs, _any_rows(layout, chunks, tables))
    drawing = [i for i, c in enumerate(chunks) if c.logit_rows]
    assert [inputs.logit_row(i, 0) for i in drawing] == list(range(len(drawing)))


def test_a_row_that_was_not_asked_for_and_a_table_that_is_too_short() -> None:
    layout = layout_of("full")
    tables = tables_of(layout, 1, 32, np.random.default_rng(0))
    inputs = build_inputs(layout, (Chunk(SeqId(0), 5, (1,)),), tables)
    with pytest.raises(AssertionError, match="not asked for"):
        inputs.logit_row(0, 0)
    with pytest.raises(StateError, match="has 2 blocks, its rows need 3"):
        build_inputs(layout, (Chunk(SeqId(0), 32, (1,), (0,)),), tables)
