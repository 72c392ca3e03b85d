"""The ram tier: what it evicts, what it refuses, what it packs."""

import random

import numpy as np
import pytest
from tier_records import chain, ids_of, read

from kvist.errors import BadValue
from kvist.ids import RecordId
from kvist.tier.base import Record
from kvist.tier.envelope import Damaged, header_bytes
from kvist.tier.pack import Packer
from kvist.tier.ram import RamTier

DATA_BYTES = 1000


def ram(n_records: int) -> RamTier:
    """Room for exactly so many of the records that ``chain`` makes here."""
    one = chain("one", 1, data_bytes=DATA_BYTES)[0]
    return RamTier(n_records * (header_bytes(one.label) + DATA_BYTES))


def made(name: str, n: int, below: Record | None = None) -> list[Record]:
    return chain(name, n, data_bytes=DATA_BYTES, below=below)


def put(tier: RamTier, records: list[Record]) -> list[str]:
    return list(tier.put_many(records, timeout_s=10.0))


def present(tier: RamTier, records: list[Record]) -> int:
    return sum(tier.exists_many(ids_of(records)))


def test_capacity_is_a_bound_and_usage_is_exact():
    tier = ram(5)
    for name in "abcd":
        assert put(tier, made(name, 2)) == ["stored"] * 2
        usage = tier.usage()
        listed = list(tier.list())
        assert usage.records == len(listed)
        assert usage.used_bytes == sum(header_bytes(e.label) + e.stored_bytes for e in listed) <= usage.capacity_bytes
    assert tier.usage().evicted_records == 3


def test_the_least_recently_used_chain_goes_leaf_first():
    tier = ram(6)
    a, b = made("a", 3), made("b", 3)
    put(tier, a)
    put(tier, b)
    read(tier, a)
    put(tier, made("c", 2))
    assert tier.exists_many(ids_of(b)) == [True, False, False]
    assert present(tier, a) == 3


def test_using_a_leaf_is_using_its_ancestors():
    tier = ram(6)
    a, b = made("a", 3), made("b", 3)
    put(tier, a)
    put(tier, b)
    tier.touch_many(ids_of(a[2:]))
    put(tier, made("c", 3))
    assert present(tier, a) == 3 and present(tier, b) == 0


def test_a_chain_longer_than_the_place_keeps_its_beginning():
    """F053: it does not chase its own tail, whatever the batches."""
    tier = ram(10)
    records = made("long", 15)
    answers = [a for at in range(0, 15, 4) for a in put(tier, records[at : at + 4])]
    assert answers == ["stored"] * 10 + ["full"] * 5
    assert tier.exists_many(ids_of(records)) == [True] * 10 + [False] * 5
    assert put(tier, records) == ["known"] * 10 + ["full"] * 5
    assert tier.usage().evicted_records == 0


def test_two_long_chains_take_turns():
    """F053: room for 1.5 chains; the one used last is there to 80 %, and little is written twice."""
    tier = ram(30)
    chains = [made("left", 20), made("right", 20)]
    stored = useful = 0
    for turn in range(10):
        records = chains[turn % 2]
        useful += len(records)
        stored += put(tier, records).count("stored")
        assert present(tier, records) >= 16
    assert stored <= 2 * useful


def test_a_record_without_its_refused_parent_is_not_kept():
    tier = ram(2)
    records = made("chain", 1)
    big = chain("big", 1, data_bytes=50_000, below=records[0])
    assert put(tier, [*records, *big, *made("leaf", 1, below=big[0])]) == ["stored", "full", "full"]


@pytest.mark.parametrize("seed", range(30))
def test_an_ancestor_never_goes_before_its_descendant(seed):
    """Random puts, gets, touches and deletions of leaves over a random tree."""
    rng = random.Random(seed)
    tier = ram(rng.randint(3, 12))
    tree: list[list[Record]] = [made(f"{seed}/root", rng.randint(1, 4))]
    for i in range(6):
        stem = rng.choice(tree)
        cut = rng.randint(1, len(stem))
        tree.append([*stem[:cut], *made(f"{seed}/{i}", rng.randint(1, 5), below=stem[cut - 1])])
    by_id = {r.label.id: r for records in tree for r in records}
    for _ in range(60):
        records = rng.choice(tree)
        what = rng.random()
        if what < 0.5:
            begin = rng.choice([0, 0, rng.randrange(len(records))])
            tier.put_many(records[begin:], timeout_s=5.0)
        elif what < 0.7:
            read(tier, records[: rng.randint(1, len(records))])
        else:
            tier.touch_many(ids_of(records[rng.randrange(len(records)) :]))
        here = {e.label.id: e for e in tier.list()}
        order = list(tier._slots)
        for id in here:
            parent = by_id[id].label.parent
            if parent in here:
                assert order.index(id) < order.index(parent)
                assert here[id].used <= here[parent].used
        assert tier.usage().used_bytes <= tier.usage().capacity_bytes


def test_list_has_parents_first_and_counts_hits():
    tier = ram(10)
    records = made("a", 4)
    put(tier, records[2:])
    put(tier, records[:2])
    read(tier, records[:1])
    read(tier, records[:2])
    entries = list(tier.list())
    assert [e.label.depth for e in entries] == [0, 1, 2, 3]
    assert [e.hits for e in entries] == [2, 1, 0, 0]


def test_a_larger_record_than_the_place_is_full_and_evicts_nobody():
    tier = ram(2)
    put(tier, made("a", 2))
    assert put(tier, chain("huge", 1, data_bytes=10_000)) == ["full"]
    assert tier.usage().records == 2 and tier.usage().evicted_records == 0


@pytest.mark.parametrize("capacity_bytes", [0, -1])
def test_no_room_at_all_is_refused(capacity_bytes):
    with pytest.raises(BadValue, match="capacity_bytes"):
        RamTier(capacity_bytes)


def test_packing_keeps_more_records():
    pytest.importorskip("zstandard", reason="compression needs zstandard")
    tier = RamTier(20_000, packer=Packer(element_bytes=2))
    values = np.random.default_rng(0).standard_normal(4096).astype(np.float16)
    half = np.where(np.arange(4096) % 2, values, np.float16(0))
    records = [Record(r.label, memoryview(half).cast("B")) for r in chain("half zeros", 3)]
    assert put(tier, records) == ["stored"] * 3
    assert sum(e.data_bytes for e in tier.list()) > 20_000 >= tier.usage().used_bytes
    assert read(tier, records) == (["hit"] * 3, 3)


@pytest.mark.parametrize("element_bytes", [1, 2, 4])
@pytest.mark.parametrize("n_bytes", [0, 1, 2, 3, 4, 1000, 4096])
def test_what_is_packed_comes_back(element_bytes, n_bytes):
    pytest.importorskip("zstandard", reason="compression needs zstandard")
    packer = Packer(element_bytes=element_bytes)
    for data in (bytes(n_bytes), np.arange(n_bytes, dtype=np.uint8).tobytes(), random.Random(0).randbytes(n_bytes)):
        packed = packer.pack(memoryview(data))
        if packed is not None:
            assert len(packed) < len(data)
            out = memoryview(bytearray(n_bytes))
            Packer(element_bytes=4).unpack_into(memoryview(packed), out)
            assert out == data


def test_a_packed_value_that_is_none_is_damaged():
    pytest.importorskip("zstandard", reason="compression needs zstandard")
    packer, buffer = Packer(), memoryview(bytearray(1000))
    good = packer.pack(memoryview(bytes(1000)))
    longer, shorter = packer.pack(memoryview(bytes(1002))), packer.pack(memoryview(bytes(998)))
    assert good and longer and shorter
    for bad in (b"", b"\x02", b"\x03" + good[1:], good[:-1], b"\x02" + random.Random(1).randbytes(50), longer, shorter):
        with pytest.raises(Damaged):
            packer.unpack_into(memoryview(bad), buffer)


def test_bad_packers_are_refused():
    with pytest.raises(BadValue, match="element_bytes"):
        Packer(element_bytes=3)
    with pytest.raises(BadValue, match="level"):
        Packer(level=0)


def test_an_id_of_another_length_is_only_missing():
    tier = ram(2)
    answers = tier.get_many_into([RecordId(b"short")], [memoryview(bytearray(8))], timeout_s=1.0)
    assert answers == [("missing", None)]
