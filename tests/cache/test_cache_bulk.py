"""Many blocks at once: what the plain version does, and that the pool's books are those of one block at a time."""

from __future__ import annotations

import random

import pytest

from kvist.cache.bulk import PLAIN, packed
from kvist.cache.keys import pack_tokens
from kvist.cache.pool import SPENT_BLOCKS, Pool
from kvist.cache.share import Share
from kvist.errors import BadValue, StateError
from kvist.ids import BlockId


def blocks_of(*ids: int) -> list[BlockId]:
    return [BlockId(i) for i in ids]


@pytest.mark.parametrize("odd", [None, 0, 1, 2])
def test_swap_changes_all_or_nothing(odd: int | None) -> None:
    refs, treed, blocks = [5, 2, 2, 2], [0, 1, 1, 1], blocks_of(1, 3, 2)
    if odd is not None:
        refs[blocks[odd]] = 3
    before = (list(refs), list(treed))
    assert PLAIN.swap(blocks, refs, treed, (2, 1), (1, 0)) is (odd is None)
    assert (refs, treed) == (([5, 1, 1, 1], [0, 0, 0, 0]) if odd is None else before)


def test_swap_sees_a_tree_mark_that_differs_and_a_block_named_twice() -> None:
    refs, treed = [2, 2], [1, 0]
    assert not PLAIN.swap(blocks_of(0, 1), refs, treed, (2, 1), (1, 1))
    assert not PLAIN.swap(blocks_of(0, 0), refs, treed, (2, 1), (1, 1))
    assert (refs, treed) == ([2, 2], [1, 0])


def test_fill_only_count() -> None:
    a, b = object(), object()
    values: list[object] = [a, b, a]
    assert PLAIN.only(values, blocks_of(0, 2)) is a and PLAIN.only(values, blocks_of(1)) is b
    assert PLAIN.only(values, blocks_of(0, 1)) is None
    PLAIN.fill(values, blocks_of(1, 2), None)
    assert values == [a, None, None]
    assert PLAIN.count([1, 2, 1], blocks_of(0, 1, 2), 1) == 2 and PLAIN.count([1], blocks_of(0), 2) == 0


def test_packed_tokens() -> None:
    assert packed(PLAIN, []) == b"" and packed(PLAIN, range(3)) == pack_tokens([0, 1, 2])
    with pytest.raises(BadValue, match="32 bits"):
        packed(PLAIN, [1, 1 << 31])


def state_of(pool: Pool, *shares: Share) -> tuple[object, ...]:
    owners = [(s.blocks, s.cached) for s in shares]
    return pool.refs, pool.treed, pool.free, pool.cached, [p.tenant for p in pool.payer], owners


def test_a_run_at_once_is_block_by_block() -> None:
    """The same calls with whole runs and one block at a time leave the same books, whatever state the blocks are in."""
    rng = random.Random(5)
    pools, mine, theirs = [Pool(64), Pool(64)], [Share("a"), Share("a")], [Share("b"), Share("b")]
    held: list[BlockId] = []  # one entry for each reference of a table
    treed: set[BlockId] = set()
    seen = 0
    for _ in range(4000):
        what = rng.randrange(5)
        n = rng.choice([1, 2, 5, 17])
        mixed = rng.sample(sorted(set(held)), min(n, len(set(held))))
        if what == 0 and pools[0].free >= n:
            both = [pool.allocate(n, share) for pool, share in zip(pools, rng.choice([mine, theirs]), strict=True)]
            assert both[0] == both[1]
            held += both[0]
            continue
        if what == 1:
            held += mixed
            pools[0].retain(mixed)
            for block in mixed:
                pools[1].retain([block])
        elif what == 2:
            for block in mixed:
                held.remove(block)
            idle = pools[0].release(mixed)
            assert list(idle) == [b for block in mixed for b in pools[1].release([block])]
        elif what == 3:
            fresh = [b for b in mixed if b not in treed]
            treed |= set(fresh)
            pools[0].enter_tree(fresh, mine[0])
            for block in fresh:
                pools[1].enter_tree([block], mine[1])
        else:
            gone = rng.sample(sorted(treed), min(n, len(treed)))
            treed -= set(gone)
            freed = pools[0].leave_tree(gone, mine[0])
            assert freed == sum(pools[1].leave_tree([block], mine[1]) for block in gone)
        seen += len(mixed) > 5
        assert state_of(pools[0], mine[0], theirs[0]) == state_of(pools[1], mine[1], theirs[1])
        pools[0].check()
    assert seen > 100


def test_a_block_released_twice_in_one_call_is_refused() -> None:
    pool, share = Pool(20), Share("t")
    blocks = pool.allocate(18, share)
    with pytest.raises(StateError, match="more often"):
        pool.release([*blocks, blocks[0]])


def test_the_free_list_does_not_grow() -> None:
    """Blocks go round for ever: the list of the free ones is cut now and then, and its order stays."""
    pool, share = Pool(8), Share("t")
    for i in range(3 * SPENT_BLOCKS):
        (block,) = pool.allocate(1, share)
        assert block == i % 8
        pool.release([block])
    assert len(pool._free) <= 2 * SPENT_BLOCKS + 8
    pool.check()
