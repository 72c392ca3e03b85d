"""The pool: states of a block, misuse, order of the free list, and cost that does not grow with the pool."""

from __future__ import annotations

import random

import pytest

from kvist.cache.pool import Pool
from kvist.cache.share import Share
from kvist.errors import BadValue, PoolFull, StateError
from kvist.ids import BlockId

SHARE = Share("t")


@pytest.mark.parametrize("lifo", [False, True])
def test_f034_double_release_is_refused(lifo: bool) -> None:
    """alloc x; release x; release x; alloc y; alloc z: the second release raises, y and z differ."""
    pool = Pool(4, lifo=lifo)
    (x,) = pool.allocate(1, SHARE)
    pool.release([x])
    with pytest.raises(StateError, match="more often than it was taken"):
        pool.release([x])
    pool.check()
    y, z = pool.allocate(1, SHARE) + pool.allocate(1, SHARE)
    assert y != z
    pool.check()


def test_f034_misuse_of_other_kinds() -> None:
    pool = Pool(2)
    (x,) = pool.allocate(1, SHARE)
    with pytest.raises(StateError, match="cannot be retained"):
        pool.retain([BlockId(1 - x)])
    pool.enter_tree([x], SHARE)
    with pytest.raises(StateError, match="in the tree already"):
        pool.enter_tree([x], SHARE)
    assert pool.release([x]) == [x], "cached now: the tree alone holds it"
    with pytest.raises(StateError, match="more often"):
        pool.release([x])
    with pytest.raises(StateError, match="not pinned"):
        pool.unpin(x)
    assert pool.leave_tree([x], SHARE) == 1
    with pytest.raises(StateError, match="not in the tree"):
        pool.leave_tree([x], SHARE)
    pool.check()
    with pytest.raises(BadValue, match="blocks=0"):
        Pool(0)


def test_pool_full_changes_nothing() -> None:
    pool = Pool(3)
    pool.allocate(2, SHARE)
    with pytest.raises(PoolFull, match="2 blocks needed, 1 free"):
        pool.allocate(2, SHARE)
    assert (pool.free, pool.live, pool.cached) == (1, 2, 0)
    assert pool.allocate(0, SHARE) == []


def test_order_of_the_free_list() -> None:
    for lifo, want in ((False, [3, 1]), (True, [1, 2])):
        pool = Pool(4, lifo=lifo)
        taken = pool.allocate(3, SHARE)
        assert taken == [0, 1, 2]
        pool.release([taken[2]])
        pool.release([taken[1]])
        assert pool.allocate(2, SHARE) == (want if lifo else [3, 2])


def test_states_under_random_use() -> None:
    """free + live + cached = total after every operation, with tables, tree and pins at once."""
    rng, pool = random.Random(3), Pool(30)
    tables: list[BlockId] = []
    treed: set[BlockId] = set()
    pins: list[BlockId] = []
    for _ in range(3000):
        what = rng.randrange(7)
        if what == 0 and pool.free:
            tables += pool.allocate(rng.randint(1, min(3, pool.free)), SHARE)
        elif what == 1 and tables:
            tables.append(rng.choice(tables))
            pool.retain([tables[-1]])
        elif what == 2 and tables:
            block = tables.pop(rng.randrange(len(tables)))
            idle = pool.release([block])
            assert bool(idle) == (block in treed and block not in tables and block not in pins)
        elif what == 3 and set(tables) - treed:
            block = rng.choice(sorted(set(tables) - treed))
            pool.enter_tree([block], SHARE)
            treed.add(block)
        elif what == 4 and treed:
            block = rng.choice(sorted(treed))
            treed.remove(block)
            assert pool.leave_tree([block], SHARE) == (block not in tables and block not in pins)
        elif what == 5 and treed:
            pins.append(rng.choice(sorted(treed)))
            pool.pin(pins[-1])
        elif what == 6 and pins:
            pool.unpin(pins.pop(rng.randrange(len(pins))))
        pool.check()
        held = set(tables) | set(pins)
        assert pool.live == len(held) and pool.cached == len(treed - held)
        for block in treed | held:
            assert pool.held(block) == (block in tables)
            assert pool.shared(block) == (block in treed or tables.count(block) > 1)


class _Counting(list):
    """A list that counts how often an element is touched."""

    touched = 0

    def __getitem__(self, i):
        type(self).touched += 1
        return super().__getitem__(i)

    def __setitem__(self, i, value):
        type(self).touched += 1
        super().__setitem__(i, value)

    def __iter__(self):
        raise AssertionError("walks the pool")


def test_f115_work_does_not_grow_with_the_pool() -> None:
    touched = []
    for size in (100, 1600):
        pool = Pool(size)
        pool.refs = _Counting(pool.refs)
        _Counting.touched = 0
        for _ in range(10):
            blocks = pool.allocate(5, SHARE)
            pool.retain(blocks)
            pool.release(blocks)
            pool.enter_tree(blocks, SHARE)
            pool.release(blocks)
            pool.leave_tree(blocks, SHARE)
        touched.append(_Counting.touched)
    assert touched[0] == touched[1]
