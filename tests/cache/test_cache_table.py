"""Block tables and the messages that keep an executor's copy equal."""

from __future__ import annotations

import random

from kvist.cache.table import BlockTable
from kvist.ids import NULL_BLOCK, BlockId, GroupId, SeqId
from kvist.step import TableChange

S, G = SeqId(1), GroupId(0)


def ids(*blocks: int) -> list[BlockId]:
    return [BlockId(b) for b in blocks]


def apply(mirror: list[int], change: TableChange | None) -> None:
    if change is not None:
        del mirror[change.keep :]
        mirror += change.append
        for i in range(change.null_from, change.null_to):
            mirror[i] = NULL_BLOCK


def test_messages_are_compact() -> None:
    table = BlockTable(S, G, 0, ids(5, 6), 0)
    assert table.diff() == TableChange(S, G, 0, (BlockId(5), BlockId(6)))
    assert table.diff() is None
    table.append(ids(7))
    assert table.diff() == TableChange(S, G, 2, (BlockId(7),))
    table.replace(1, BlockId(9))
    assert table.diff() == TableChange(S, G, 1, (BlockId(9), BlockId(7)))
    assert table.truncate(2) == ids(7)
    assert table.diff() == TableChange(S, G, 2, ())
    table.append(ids(8, 4))
    assert table.null(2) == ids(5, 9)
    assert table.diff() == TableChange(S, G, 2, (BlockId(8), BlockId(4)), 0, 2)
    assert table.held == 2 and table.blocks == ids(8, 4)


def test_a_new_table_speaks_even_when_empty() -> None:
    """The id may have been used before (resumed after preemption): the old rows must go."""
    assert BlockTable(S, G, 0, (), 0).diff() == TableChange(S, G, 0, ())


def test_sinks_stay() -> None:
    table = BlockTable(S, G, 1, ids(0, 1, 2, 3), 0)
    assert table.null(3) == ids(1, 2)
    assert table.ids == [0, NULL_BLOCK, NULL_BLOCK, 3] and table.held == 2
    assert table.truncate(2) == ids(3) and table.held == 1
    assert table.truncate(0) == ids(0) and table.held == 0


def test_a_mirror_follows_anything() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        sink = rng.choice([0, 0, 1, 2])
        table = BlockTable(S, G, sink, ids(*range(100, 100 + rng.randint(0, 5))), 0)
        mirror: list[int] = [77, 78]
        for step in range(40):
            what = rng.randrange(5)
            if what == 0:
                table.append(ids(*range(step * 10, step * 10 + rng.randint(1, 3))))
            elif what == 1 and table.ids:
                table.truncate(rng.randint(0, len(table.ids)))
            elif what == 2 and len(table.ids) > table.null_to:
                table.null(rng.randint(table.null_to, len(table.ids)))
            elif what == 3 and len(table.ids) > table.null_to:
                table.replace(rng.randrange(table.null_to, len(table.ids)), BlockId(1000 + step))
            assert table.held == sum(b != NULL_BLOCK for b in table.ids) == len(table.blocks)
            if rng.random() < 0.4:
                apply(mirror, table.diff())
                assert mirror == table.ids
                assert table.diff() is None
