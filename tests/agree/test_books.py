"""The cache's bulk work: the native twin does what the plain one does, alone and under the whole cache."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest

from kvist.kernels import native_module

if native_module.absent_reason():
    pytest.skip(native_module.absent_reason(), allow_module_level=True)
sys.path.insert(0, str(Path(__file__).parent.parent / "laws"))

from cache_paper import LAYOUTS, Driver

from kvist.cache.bulk import PLAIN, packed
from kvist.cache.cache import Cache
from kvist.cache.keys import pack_tokens
from kvist.errors import BadValue
from kvist.kernels.books import NativeBulk, best_available

NATIVE = best_available()
assert NATIVE is not None


@pytest.mark.parametrize("n", [0, 1, 2, 31, 4096])
def test_packing(n: int) -> None:
    tokens = random.Random(n).choices([0, 1, -1, 49_151, 1 << 20, (1 << 31) - 1, -(1 << 31)], k=n)
    assert NATIVE.pack(tokens) == NATIVE.pack(tuple(tokens)) == pack_tokens(tokens)


@pytest.mark.parametrize("bad", [1 << 31, -(1 << 31) - 1, 1 << 90, 1.5, "7", None])
def test_what_it_does_not_pack_is_refused_by_the_plain_one(bad: object) -> None:
    assert NATIVE.pack([1, bad]) is None  # type: ignore[list-item]
    with pytest.raises(BadValue, match="32 bits"):
        packed(NATIVE, [1, bad])  # type: ignore[list-item]


def test_other_sequences_and_ints_are_packed_all_the_same() -> None:
    for tokens in (range(5), np.arange(5), [np.int64(i) for i in range(5)]):
        assert packed(NATIVE, tokens) == pack_tokens(range(5))


def test_random_states() -> None:
    rng, yes = random.Random(2), 0
    for _ in range(4000):
        total = rng.randint(1, 40)
        same = rng.random() < 0.6
        refs = [2 if same else rng.choice([1, 2, 300]) for _ in range(total)]
        treed = [1 if same else rng.randrange(2) for _ in range(total)]
        blocks = rng.choices(range(total), k=rng.randint(1, 12)) if rng.random() < 0.3 else rng.sample(range(total), 1)
        if rng.random() < 0.5:
            blocks = rng.sample(range(total), rng.randint(1, total))
        before, now = rng.choice([((2, 1), (1, 1)), ((2, 1), (3, 1)), ((1, 0), (2, 1)), ((2, 1), (1, 0))])
        ours, theirs = (list(refs), list(treed)), (list(refs), list(treed))
        did = PLAIN.swap(blocks, *ours, before, now)
        assert NATIVE.swap(blocks, *theirs, before, now) == did and theirs == ours
        assert NATIVE.count(refs, blocks, 2) == PLAIN.count(refs, blocks, 2)
        owners = [rng.choice(["a", "b"]) if not same else "a" for _ in range(total)]
        assert NATIVE.only(owners, blocks) == PLAIN.only(owners, blocks)
        copy = list(owners)
        NATIVE.fill(copy, tuple(blocks), None)
        PLAIN.fill(owners, blocks, None)
        assert copy == owners
        yes += did
    assert 500 < yes < 3500


def test_references_beyond_the_small_ints_go_block_by_block() -> None:
    """Equal ints above 256 may be two objects: the native twin may say no, never a wrong yes."""
    refs, big = [int("300"), int("300")], int("300")
    if NATIVE.swap([0, 1], refs, [0, 0], (big, 0), (301, 0)):
        assert refs == [301, 301]
    else:
        assert refs == [300, 300]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: NATIVE.fill([1, 2], [2], 0), IndexError),
        (lambda: NATIVE.fill([1, 2], [-1], 0), IndexError),
        (lambda: NATIVE.only([1], ["x"]), TypeError),
        (lambda: NATIVE.count((1,), [0], 1), TypeError),
        (lambda: NATIVE.swap({0}, [1], [0], (1, 0), (2, 0)), TypeError),
    ],
)
def test_misuse_is_refused(call, error) -> None:
    with pytest.raises(error):
        call()


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_laws_hold_with_it(name: str) -> None:
    """The driver of the cache laws, over a cache with the native twin, makes the same choices with the same results."""
    books = []
    for bulk in (PLAIN, NativeBulk()):
        driver = Driver(LAYOUTS[name], 3)
        driver.cache = Cache(LAYOUTS[name], blocks=40, weights={"b": 3.0, "c": 0.5}, bulk=bulk)
        driver.run(150)
        books.append((driver.books(), driver.done, driver.cache.counters))
    assert books[0] == books[1]
