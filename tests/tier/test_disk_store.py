"""What is put comes back, or it is said why not; and it is still there afterwards."""

import mmap
import os
import stat

import pytest
from crash_bench import MIB, ShortIo, chain, check_books, get, ids_of, opened, physical, put, record, rid

from kvist.errors import BadValue, StateError


@pytest.fixture
def tier(tmp_path):
    t = opened(tmp_path / "c")
    yield t
    t.close()


def test_round_trip_over_a_restart(tmp_path):
    records = chain("a", 40)
    tier = opened(tmp_path / "c", sync=True)
    assert put(tier, records) == ["stored"] * 40
    before = tier.usage()
    assert get(tier, records) == (["hit"] * 40, True)
    tier.close()
    tier = opened(tmp_path / "c")
    assert tier.usage() == before and before.records == 40 and before.used_bytes == 40 * 8192
    assert tier.exists_many([*ids_of(records), rid("no")]) == [True] * 40 + [False]
    assert get(tier, records) == (["hit"] * 40, True)
    assert put(tier, records) == ["known"] * 40
    tier.close()
    assert check_books(tmp_path / "c") == {"records": 40, "used_bytes": 40 * 8192}


@pytest.mark.parametrize("size", [0, 1, 31, 4095, 4096, 4097, 12288, 70_001])
def test_any_size_aligned_or_not(tier, size):
    """Buffers at every kind of address; the bytes around them are left alone."""
    records = chain("s", 5, size=size, tokens=b"abcd" * (size % 3000))
    assert put(tier, records) == ["stored"] * 5
    assert get(tier, records) == (["hit"] * 5, True)
    room = mmap.mmap(-1, 5 * 81_920)
    view = memoryview(room)
    for shift in (0, 1, 4096):
        at = [view[shift + i * 73_728 : shift + i * 73_728 + size] for i in range(5)] if shift != 4096 else []
        for b, r in zip(at, records, strict=False):
            assert tier.get_many_into([r.label.id], [b], timeout_s=5)[0][0] == "hit"
            assert bytes(b) == bytes(r.data) and view[b.nbytes + shift + records.index(r) * 73_728] == 0


def test_answers_that_are_no_hits(tier):
    a = chain("a", 2)
    assert put(tier, a) == ["stored"] * 2
    buffer = memoryview(bytearray(8192))
    assert tier.get_many_into([a[0].label.id], [buffer], timeout_s=5) == [("foreign", None)]
    assert tier.get_many_into([rid("x")], [buffer], timeout_s=5) == [("missing", None)]
    assert tier.get_many_into([a[0].label.id], [buffer[:4096]], timeout_s=-1) == [("timeout", None)]
    assert tier.put_many(chain("b", 2), timeout_s=-1) == ["timeout"] * 2
    assert tier.exists_many([b"", b"short", rid("x")]) == [False] * 3
    assert tier.exists_many([]) == [] and tier.get_many_into([], [], timeout_s=1) == [] and put(tier, []) == []
    assert get(tier, a) == (["hit"] * 2, True), "nothing of that did any harm"


def test_records_that_cannot_be_written_down_are_refused_and_so_are_their_descendants(tier):
    bad = [record("b", tenant="x" * 300), record("c", "b", 1), record("d", origin=b"short"), record("e")]
    assert put(tier, bad) == ["error", "full", "error", "stored"]


def test_the_same_record_twice_in_a_call(tier):
    a = record("a")
    assert put(tier, [a, a]) == ["stored", "known"]
    assert get(tier, [a, a]) == (["hit"] * 2, True)
    assert tier.usage().records == 1


def test_delete_by_id_tenant_origin(tier):
    a, b, c = chain("a", 4, tenant="x"), chain("b", 4, tenant="y"), chain("c", 4, tenant="y", origin=b"p" * 16)
    put(tier, a + b + c)
    assert tier.delete() == 0
    assert tier.delete(ids=ids_of(a[2:]) + [rid("no")]) == 2
    assert tier.delete(tenant="y", origin=b"o" * 16) == 4
    assert tier.exists_many(ids_of(a + b + c)) == [True] * 2 + [False] * 6 + [True] * 4
    assert tier.delete(origin=b"p" * 16) == 4
    assert tier.usage().records == 2 and {e.label.id for e in tier.list()} == set(ids_of(a[:2]))
    assert put(tier, b) == ["stored"] * 4 and get(tier, b) == (["hit"] * 4, True)


def test_what_was_deleted_is_gone_from_the_disk(tmp_path):
    """Also what eviction had left in free slots, and in the index and its log."""
    folder = tmp_path / "c"
    tier = opened(folder, MIB)
    secret = [record(f"s{i}", tenant="very-secret-tenant", tokens=b"SECRET-TOKENS...", size=4096) for i in range(30)]
    put(tier, secret)
    assert put(tier, chain("other", 60))[-1] == "stored" and tier.usage().evicted_records > 0
    tier.delete(tenant="very-secret-tenant")
    left = b"".join(p.read_bytes() for p in folder.iterdir())
    assert b"SECRET-TOKENS..." not in left
    assert not any(bytes(r.data[:64]) in left for r in secret)
    tier.close()


def test_list_tells_labels_and_use(tier):
    a = chain("a", 3)
    put(tier, a)
    get(tier, a[:1])
    entries = list(tier.list(origin=b"o" * 16, tenant="t"))
    assert [e.label for e in entries] == [r.label for r in a], "parents first, tokens and all"
    assert [e.hits for e in entries] == [1, 0, 0] and entries[0].used > entries[1].used
    assert [e.data_bytes for e in entries] == [4096] * 3 and entries[0].stored_bytes == 8192
    assert list(tier.list(tenant="nobody")) == []


def test_private_files(tmp_path):
    tier = opened(tmp_path / "c")
    put(tier, chain("a", 3))
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700
    assert {stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "c").iterdir()} == {0o600}
    tier.close()


def test_closed(tmp_path):
    tier = opened(tmp_path / "c")
    a = chain("a", 3)
    put(tier, a)
    tier.close()
    tier.close()
    assert tier.exists_many(ids_of(a)) == [False] * 3 and put(tier, a) == ["off"] * 3
    assert get(tier, a)[0] == ["missing"] * 3 and tier.usage().condition == "off"
    assert tier.delete(ids=ids_of(a)) == -1 and list(tier.list()) == [] and tier.gc() == -1
    assert not list((tmp_path / "c").glob("owner-*"))


@pytest.mark.parametrize("most", [4096, 5000, 100])
def test_short_reads_and_writes(tmp_path, most):
    """F050: a call that moves less than it was asked to."""
    records = chain("a", 12, size=12288)
    tier = opened(tmp_path / "c", io=ShortIo(most))
    assert put(tier, records) == ["stored"] * 12 and get(tier, records) == (["hit"] * 12, True)
    tier.close()


def test_gc_gives_the_room_back(tmp_path):
    folder = tmp_path / "c"
    tier = opened(folder)
    put(tier, chain("a", 100) + chain("big", 20, size=40_960))
    assert physical(folder) > 1_600_000
    tier.delete(tenant="t")
    assert tier.gc() >= 0 and not list(folder.glob("slab-*"))
    assert physical(folder) < 300_000
    assert put(tier, chain("a", 100)) == ["stored"] * 100
    tier.close()
    check_books(folder)


def test_verify_reports_and_drops(tmp_path):
    folder = tmp_path / "c"
    tier = opened(folder)
    records = chain("a", 30)
    put(tier, records)
    (slab,) = folder.glob("slab-*")
    with slab.open("r+b") as f:
        f.seek(5 * 8192 + 4096 + 17)
        f.write(b"\xff\0")
        f.flush()
        os.fsync(f.fileno())
    seen = []
    report = tier.verify(lambda done, total: seen.append((done, total)))
    assert (report.records, report.damaged, report.bytes) == (30, 1, 30 * 8192) and seen[-1] == (report.bytes,) * 2
    assert tier.usage().damaged_records == 1 and tier.usage().records == 29
    assert tier.verify().damaged == 0 and get(tier, records)[1]
    tier.close()


@pytest.mark.parametrize("kw", [{"capacity_bytes": 1000}, {"capacity_bytes": MIB, "reserve_bytes": -1}])
def test_bad_numbers(tmp_path, kw):
    from kvist.tier.disk.store import DiskTier

    with pytest.raises(BadValue):
        DiskTier.open(tmp_path / "c", **kw)


def test_bad_paths(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadValue, match="folder"):
        opened(tmp_path / "file")
    with pytest.raises(BadValue, match="folder"):
        opened(tmp_path / "file" / "below")
    with pytest.raises(BadValue, match="folder"):
        opened(tmp_path / "none", read_only=True)
    for name in ("index.db", "kvist-cache.json", "kvist-cache.lock"):
        folder = tmp_path / f"with-{name}"
        folder.mkdir()
        (folder / name).symlink_to(tmp_path / "file")
        with pytest.raises(StateError, match="not a regular file"):
            opened(folder)
    assert (tmp_path / "file").read_text() == ""
