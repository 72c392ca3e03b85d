"""F052: on a filesystem without a byte left records can still be removed, by a tier that is open and by a new one."""

import os
import shutil
import sqlite3

import pytest
from crash_bench import MIB, chain, check_books, get, ids_of, opened, put, record
from test_disk_room import wound

from kvist.tier.disk.store import DiskTier
from small_fs import small_fs

ORIGIN = b"o" * 16


def filled(fs, *, exact=False, n=100):
    tier = opened(fs.path / "c", 64 * MIB)
    records = chain("a", n)
    assert put(tier, records) == ["stored"] * n
    if exact:
        assert tier.gc() >= 0
    return tier, records


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("by", ["origin", "tenant", "ids", "clear"])
def test_an_open_tier_is_emptied(tmp_path, by, exact):
    with small_fs(tmp_path, "4m") as fs:
        tier, records = filled(fs, exact=exact)
        fs.fill()
        assert not fs.free_bytes
        more = {"origin": {"origin": ORIGIN}, "tenant": {"tenant": "t"}, "ids": {"ids": ids_of(records)}}
        done = tier.clear() if by == "clear" else tier.delete(**more[by])
        assert (done, tier.trouble) == (100, "")
        assert tier.usage().records == 0 and get(tier, records)[0] == ["missing"] * 100
        assert fs.free_bytes >= 40 * 8192 and tier.delete(origin=ORIGIN) == 0
        assert put(tier, records[:3]) == ["stored"] * 3
        tier.close()
        fs.empty()
        assert check_books(fs.path / "c")["records"] == 3


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("ended", ["closed", "killed"])
@pytest.mark.parametrize("gone", ["all", "some"])
def test_a_tier_that_is_opened_then(tmp_path, exact, ended, gone):
    """Not even the index can be opened: closed, it has no log; killed, the log has what the index has not."""
    with small_fs(tmp_path, "4m") as fs:
        tier, records = filled(fs, exact=exact)
        if ended == "killed":
            shutil.copytree(fs.path / "c", tmp_path / "kept")
            tier.close()
            shutil.rmtree(fs.path / "c")
            shutil.copytree(tmp_path / "kept", fs.path / "c")
            (fs.path / "c" / "index.db-shm").unlink()
        else:
            tier.close()
        fs.fill()
        tier = opened(fs.path / "c", 64 * MIB)
        assert tier.usage().condition == "read-only"
        if gone == "all":
            assert tier.delete(origin=ORIGIN) == 100 and tier.usage().records == 0
        else:
            assert tier.delete(ids=ids_of(records[20:])) == 80
            assert get(tier, records) == (["hit"] * 20 + ["missing"] * 80, True)
        assert fs.free_bytes > 0
        assert put(tier, [record("b0")]) == ["stored"] and tier.usage().condition == "ok"
        tier.close()
        fs.empty()
        check_books(fs.path / "c")


def test_free_slots_are_given_back(tmp_path):
    with small_fs(tmp_path, "4m") as fs:
        tier, records = filled(fs)
        tier.close()
        fs.fill()
        tier = opened(fs.path / "c", 64 * MIB)
        assert tier.gc() >= 0 and not tier.trouble and fs.free_bytes > MIB // 4
        assert get(tier, records) == (["hit"] * 100, True)
        tier.close()
        fs.empty()
        assert check_books(fs.path / "c")["records"] == 100


def test_another_has_it_open(tmp_path):
    """A process for people beside a server: the server's records go, and it goes on."""
    with small_fs(tmp_path, "4m") as fs:
        server, records = filled(fs, exact=True)
        fs.fill()
        tier = opened(fs.path / "c", 64 * MIB)
        assert tier.delete(origin=ORIGIN) == 100 and not tier.trouble
        tier.close()
        assert server.delete(origin=ORIGIN) == 0 and get(server, records)[0] == ["missing"] * 100
        assert put(server, records[:5]) == ["stored"] * 5
        server.close()
        fs.empty()
        assert check_books(fs.path / "c")["records"] == 5


def test_nothing_to_remove_is_no_failure(tmp_path):
    with small_fs(tmp_path, "2m") as fs:
        fs.fill()
        tier = opened(fs.path / "c", 64 * MIB)
        assert tier.usage().condition == "read-only"
        assert tier.delete(origin=ORIGIN) == 0 and tier.clear() == 0
        tier.close()
        assert tier.delete(origin=ORIGIN) == -1


def test_what_cannot_be_done_says_that_the_filesystem_is_full(tmp_path, monkeypatch):
    with small_fs(tmp_path, "4m") as fs:
        tier, records = filled(fs, exact=True)
        fs.fill()
        monkeypatch.setattr("kvist.tier.disk.store.free_up", lambda c, ground, gone: None)
        assert tier.delete(origin=ORIGIN) == -1
        assert "full" in tier.trouble and "0 B" in tier.trouble and "busy" not in tier.trouble
        assert tier.usage().condition == "read-only" and get(tier, records)[0] == ["hit"] * 100
        monkeypatch.undo()
        assert tier.delete(origin=ORIGIN) == 100 and not tier.trouble
        tier.close()


def test_a_busy_index_is_told_as_busy(tmp_path, monkeypatch):
    monkeypatch.setattr("kvist.tier.disk.store.BUSY_S", 0.05)
    tier = opened(tmp_path / "c")
    put(tier, chain("a", 2))
    other = sqlite3.connect(tmp_path / "c" / "index.db", isolation_level=None)
    other.execute("begin immediate")
    assert tier.delete(origin=ORIGIN) == -1 and "busy" in tier.trouble and tier.usage().condition == "ok"
    other.execute("rollback")
    other.close()
    assert tier.delete(origin=ORIGIN) == 2
    tier.close()


def test_a_save_that_the_filesystem_has_no_room_for_is_full_and_no_error(tmp_path):
    with small_fs(tmp_path, "4m") as fs:
        tier, _ = filled(fs, exact=True)
        later = wound(tier)
        answers = set()
        for name in "bcdefg":
            fs.fill()
            later[0] += 100
            answers |= set(put(tier, chain(name, 100)))
        assert "full" in answers and "error" not in answers
        tier.close()


def test_records_that_stay_are_whole_after_a_removal_that_failed(tmp_path, monkeypatch):
    """The bytes of what was to go are destroyed; the rest is untouched, and what has holes is found damaged."""
    with small_fs(tmp_path, "4m") as fs:
        tier, records = filled(fs, exact=True)
        fs.fill()

        def broken(*_):
            raise OSError(5, os.strerror(5))

        monkeypatch.setattr("kvist.tier.disk.room.admin.delete", broken)
        assert DiskTier.delete(tier, ids=ids_of(records[30:])) == -1 and "EIO" in tier.trouble
        monkeypatch.undo()
        assert get(tier, records[:30]) == (["hit"] * 30, True)
        assert tier.delete(ids=ids_of(records[30:])) == 70
        tier.close()


def test_what_could_not_be_taken_back_is_counted_and_kept_by_nobody(tmp_path):
    """Slots that a failed call had reserved and could not give back: the next removal frees them, without counting."""
    tier = opened(tmp_path / "c")
    put(tier, chain("a", 2))
    other = sqlite3.connect(tmp_path / "c" / "index.db", isolation_level=None)
    token = tier._now.ground.owner.token
    other.execute("update record set state = 1, owner = ? where depth = 1", (token,))
    other.close()
    assert tier.delete(origin=ORIGIN) == 1 and tier.delete(origin=ORIGIN) == 0
    tier.close()
    assert check_books(tmp_path / "c")["records"] == 0
