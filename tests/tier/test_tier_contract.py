"""The contract of a tier, over every tier that can be had here. Another one is one line of ``tier_benches.MAKERS``."""

import threading
import time

import pytest
from tier_benches import MAKERS, OTHERS_WRITE
from tier_records import ORIGIN, buffers_for, chain, content, ids_of, read

from kvist.tier.base import Record, Tier
from kvist.tier.remote.wire import to_wire

pytest_plugins = ["remote_fixtures"]


def opened(request: pytest.FixtureRequest):
    bench = MAKERS[request.param](request)
    yield bench
    bench.tier.delete(origin=ORIGIN)
    bench.tier.delete(origin=b"\xff" * 16)
    if not bench.shared:
        bench.tier.close()


@pytest.fixture(params=MAKERS)
def bench(request: pytest.FixtureRequest):
    yield from opened(request)


@pytest.fixture(params=OTHERS_WRITE)
def open_bench(request: pytest.FixtureRequest):
    yield from opened(request)


def put(tier: Tier, records: list[Record]) -> list[str]:
    return list(tier.put_many(records, timeout_s=10.0))


def test_what_was_put_is_got_with_its_label(bench):
    tier, records = bench.tier, chain("one", 5)
    assert tier.exists_many(ids_of(records)) == [False] * 5
    assert read(tier, records) == (["missing"] * 5, 0)
    assert put(tier, records) == ["stored"] * 5
    assert tier.exists_many(ids_of(records)) == [True] * 5
    assert read(tier, records) == (["hit"] * 5, 5)


def test_some_here_some_not(bench):
    tier, records = bench.tier, chain("some", 6)
    assert put(tier, records[:3]) == ["stored"] * 3
    assert put(tier, records) == ["known"] * 3 + ["stored"] * 3
    absent = chain("absent", 1)
    assert read(tier, [records[0], *absent, records[5]]) == (["hit", "missing", "hit"], 2)
    assert tier.exists_many(ids_of([*absent, records[1]])) == [False, True]


def test_nothing_asked_nothing_answered(bench):
    assert bench.tier.exists_many([]) == []
    assert bench.tier.get_many_into([], [], timeout_s=1.0) == []
    assert bench.tier.put_many([], timeout_s=1.0) == []
    assert bench.tier.delete() == 0
    bench.tier.touch_many([])
    bench.tier.touch_many(ids_of(chain("nowhere", 2)))


def test_sizes_from_one_byte_to_more_than_a_socket_buffer(bench):
    for data_bytes in (1, 2, 3, 4095, 4097, 1_000_001):
        records = chain(f"size {data_bytes}", 3, data_bytes=data_bytes)
        assert put(bench.tier, records) == ["stored"] * 3
        assert read(bench.tier, records) == (["hit"] * 3, 3)


def test_bytes_that_compress_come_back_too(bench):
    (like,) = chain("zeros", 1, data_bytes=64 << 10)
    record = Record(like.label, memoryview(bytes(64 << 10)))
    assert put(bench.tier, [record]) == ["stored"]
    assert read(bench.tier, [record]) == (["hit"], 1)
    (entry,) = bench.tier.list()
    assert entry.data_bytes == 64 << 10 and (entry.stored_bytes < 32 << 10) == bench.packs


@pytest.mark.parametrize("other_bytes", [1, 4095, 4097, 8192, 2 << 20])
def test_another_size_than_asked_for_is_foreign(bench, other_bytes):
    records = chain("sizes", 3)
    put(bench.tier, records)
    buffers = buffers_for(records)
    buffers[1] = memoryview(bytearray(other_bytes))
    answers = bench.tier.get_many_into(ids_of(records), buffers, timeout_s=10.0)
    assert [got for got, _ in answers] == ["hit", "foreign", "hit"]
    assert buffers[0] == records[0].data and buffers[2] == records[2].data


def test_a_damaged_record_is_damaged_once_then_missing_then_can_be_put(bench):
    """F050: a wrong checksum."""
    if not bench.damage and not bench.raw_write:
        pytest.skip("no way to damage a record of this tier from outside")
    records = chain("damaged", 3)
    put(bench.tier, records)
    before = bench.tier.usage().damaged_records
    if bench.damage:
        bench.damage(records[1].label.id)
    else:
        head, data = to_wire(records[1])
        value = bytearray(head + bytes(data))
        value[len(head) + 7] ^= 1
        bench.raw_write(records[1].label.id, bytes(value))
    assert read(bench.tier, records)[0] == ["hit", "damaged", "hit"]
    assert bench.tier.usage().damaged_records == before + 1
    assert read(bench.tier, records)[0] == ["hit", "missing", "hit"]
    assert put(bench.tier, records) == ["known", "stored", "known"]
    assert read(bench.tier, records) == (["hit"] * 3, 3)


def raw_values(record: Record) -> dict[str, tuple[bytes, tuple[str, ...]]]:
    """Values that are not the record, and what they may be called."""
    head, data = to_wire(record)
    whole = head + bytes(data)
    other = chain("quite another", 1)[0]
    return {
        "empty": (b"", ("damaged",)),
        "one byte": (b"k", ("damaged",)),
        "half a header": (whole[:60], ("damaged",)),
        "header alone": (head, ("damaged",)),
        "one byte short": (whole[:-1], ("damaged",)),
        "one byte more": (whole + b"x", ("damaged",)),
        "half": (whole[: len(whole) // 2], ("damaged",)),
        "another record": (b"".join(map(bytes, to_wire(other))), ("damaged",)),
        "text": (b"hello " * 1000, ("foreign",)),
        "text of the right length": ((b"hello " * 1000)[: len(whole)], ("foreign",)),
        "another version": (whole[:8] + b"\x09\x00" + whole[10:], ("foreign",)),
        "a flipped bit in the header": (whole[:40] + bytes([whole[40] ^ 4]) + whole[41:], ("damaged", "foreign")),
    }


@pytest.mark.parametrize("case", list(raw_values(chain("x", 1)[0])))
def test_anything_else_under_a_records_key_is_an_answer_and_never_bytes(open_bench, case):
    """F050, F055: a short value, random bytes, another's record."""
    bench = open_bench
    records = chain("raw", 3)
    put(bench.tier, records)
    value, words = raw_values(records[1])[case]
    if not value and bench.tier.name == "mooncake":
        pytest.skip("this store keeps no empty values")
    bench.raw_write(records[1].label.id, value)
    for entry in bench.tier.list():
        assert entry.label != records[1].label
    got, good = read(bench.tier, records)
    assert got[0] == got[2] == "hit" and good == 2
    assert got[1] in words
    assert read(bench.tier, records)[0][1] == ("foreign" if got[1] == "foreign" else "missing")
    bench.tier.delete(ids=ids_of(records))
    assert bench.tier.exists_many(ids_of(records)) == [False] * 3


def test_delete_by_id_counts_what_was_there(bench):
    records = chain("delete", 4)
    put(bench.tier, records)
    assert bench.tier.delete(ids=ids_of(records[2:]) + ids_of(chain("absent", 1))) == 2
    assert read(bench.tier, records)[0] == ["hit", "hit", "missing", "missing"]
    assert bench.tier.delete(ids=ids_of(records[2:])) == 0


def test_delete_and_list_by_tenant_and_origin(bench):
    """F054: what was removed is not served any more."""
    other = b"\xff" * 16
    ada, bob = chain("ada", 3), chain("bob", 2, tenant="bob")
    far = chain("far", 2, tenant="ada", origin=other)
    for records in (ada, bob, far):
        assert put(bench.tier, records) == ["stored"] * len(records)

    def listed(**which) -> set[bytes]:
        return {e.label.id for e in bench.tier.list(**which)}

    assert listed() == set(ids_of(ada + bob + far))
    assert listed(tenant="ada") == set(ids_of(ada + far))
    assert listed(origin=other) == set(ids_of(far))
    assert listed(tenant="bob", origin=other) == set()
    assert bench.tier.delete(tenant="ada", origin=ORIGIN) == 3
    assert read(bench.tier, ada)[1] == 0 and read(bench.tier, bob)[1] == 2 and read(bench.tier, far)[1] == 2
    assert bench.tier.delete(tenant="ada") == 2
    assert bench.tier.delete(origin=ORIGIN) == 2
    assert listed() == set()


def test_list_says_what_the_labels_say(bench):
    records = chain("list", 4, data_bytes=5000)
    put(bench.tier, records)
    entries = {e.label.id: e for e in bench.tier.list()}
    assert [entries[id].label for id in ids_of(records)] == [r.label for r in records]
    assert {e.data_bytes for e in entries.values()} == {5000}


def test_usage_counts_records(bench):
    before = bench.tier.usage()
    assert before.condition == "ok" and before.reason == ""
    records = chain("usage", 4, data_bytes=8192)
    put(bench.tier, records)
    after = bench.tier.usage()
    assert after.records - before.records == 4
    assert after.used_bytes >= 4 * 8192
    bench.tier.delete(ids=ids_of(records))
    assert bench.tier.usage().records == before.records


def test_no_time_no_bytes(bench):
    records = chain("late", 2)
    put(bench.tier, records)
    for _ in range(4):
        got, good = read(bench.tier, records, timeout_s=0.0)
        assert good == 0 and set(got) <= {"timeout"}
        assert set(bench.tier.put_many(chain("late too", 2), timeout_s=0.0)) <= {"timeout"}
    assert read(bench.tier, records) == (["hit"] * 2, 2), "no time is no reason to call the tier off"


def test_threads(bench):
    """Put, get, list and delete at once: only right bytes, and nothing raised."""
    faults: list[BaseException] = []
    stop = time.monotonic() + 0.6

    def work(n: int) -> None:
        try:
            turn = 0
            while time.monotonic() < stop:
                turn += 1
                records = chain(f"thread {(n + turn) % 3}", 6, data_bytes=3000)
                # one that is deleted while it is written was not stored, and what follows it has no use
                assert set(put(bench.tier, records)) <= {"stored", "known", "error", "full"}
                assert set(read(bench.tier, records)[0]) <= {"hit", "missing"}
                if n == 0 and turn % 3 == 0:
                    bench.tier.delete(ids=ids_of(records[3:]))
                    list(bench.tier.list())
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(timeout=60)
        assert not t.is_alive()
    assert not faults, faults[0]


def test_content_of_tests_is_stable():
    (record,) = chain("one", 1)
    assert content(record.label.id, 10) == record.data[:10]
