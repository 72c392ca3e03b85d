"""No fault of the file of kept answers reaches serving: memory goes on, a condition says why, and it ends by itself."""

import logging
import os
import random
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from turn_file_kit import again, attached, holds, talk

from kvist.text import turn_file, turn_sqlite
from kvist.text.turn_rows import Seal, TurnRows


@pytest.fixture
def path(tmp_path):
    return tmp_path / "turns.db"


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(turn_file, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(turn_sqlite, "BUSY_S", 0.1)


def removed(path):
    """The file with its log, and what was put aside."""
    for name in path.parent.glob(f"{path.name}*"):
        name.unlink()


def faulty(path, condition, match, caplog):
    """Attach and put: nothing raised, and memory works. Returns store and file."""
    with caplog.at_level(logging.WARNING, "kvist.text"):
        store, file = attached(path)
        told = talk(store, b"new", 3)
        file.flush(0.2)
        assert holds(store, told) and file.condition == condition and match in file.reason
    assert len(caplog.records) <= 2
    return store, file


@pytest.mark.parametrize(
    "content", [b"notes of somebody", b"SQLite format 3\0" + bytes(200), b"x"], ids=["text", "sqlite", "short"]
)
def test_what_is_no_file_of_ours_is_put_aside(path, content, caplog):
    """It has our name in our folder: damaged, as far as anybody can tell."""
    path.write_bytes(content)
    _, file = faulty(path, "ok", "", caplog)
    file.close()
    assert path.with_name("turns.db.damaged-1").read_bytes() == content and len(again(path)) == 3
    assert [r.getMessage().count("turns.db.damaged-1") for r in caplog.records] == [1]


def test_a_foreign_database_and_another_version_are_left_alone(path, caplog):
    with closing(sqlite3.connect(path)) as db:
        db.executescript("create table mine (x); pragma user_version = 1;")
    _, file = faulty(path, "off", "is not a file of kept answers", caplog)
    file.forget("me")
    assert not file.flush(0.05), "what could not be removed is not said to be"
    file.close()
    path.unlink()
    attached(path)[1].close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("pragma user_version = 2")
        db.execute("pragma wal_checkpoint(truncate)").fetchall()
    before = path.read_bytes()
    caplog.clear()
    faulty(path, "off", "version 2, this kvist reads 1", caplog)[1].close()
    assert path.read_bytes() == before


def test_a_link_a_folder_and_an_impossible_place_are_left_alone(path, caplog):
    target = path.with_name("target")
    target.write_bytes(b"")
    path.symlink_to(target)
    faulty(path, "off", "no plain file", caplog)[1].close()
    assert target.read_bytes() == b""
    path.unlink()
    path.mkdir()
    caplog.clear()
    faulty(path, "off", "no plain file", caplog)[1].close()
    caplog.clear()
    faulty(target / "below" / "turns.db", "off", "Not a directory", caplog)[1].close()


def test_a_damaged_file_of_ours_is_begun_anew(path, caplog):
    store, file = attached(path)
    for n in range(50):
        store.put([b"%d" % n], [], [n] * 500, [n])
    file.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + os.urandom(len(whole) - 4096))
    store, file = faulty(path, "ok", "", caplog)
    file.close()
    assert "was damaged" in caplog.text and len(again(path)) == 3
    aside = path.with_name("turns.db.damaged-1")
    assert aside.stat().st_size == len(whole) and aside.stat().st_mode & 0o077 == 0
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + os.urandom(len(whole) - 4096))
    faulty(path, "ok", "", caplog)[1].close()
    assert not aside.exists() and path.with_name("turns.db.damaged-2").exists(), "the newest is kept"


@pytest.mark.parametrize("at", [0, 7, 17, 62, 68, 70])
def test_a_damaged_beginning_is_damage(path, caplog, at):
    """Whatever says whose file it is."""
    store, file = attached(path)
    talk(store, b"a", 3)
    file.close()
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x40
    path.write_bytes(raw)
    faulty(path, "ok", "", caplog)[1].close()
    assert path.with_name("turns.db.damaged-1").read_bytes() == raw and len(again(path)) == 3


def test_damage_found_while_writing_is_put_aside_each_time(path, monkeypatch, caplog):
    """As long as a write went through in between: a place that damages everything is not tried for ever."""
    real, faults = TurnRows.write, [1, 0, 1, 0, 1, 1, 1]

    def write(self, *args):
        if faults and faults.pop(0):
            error = sqlite3.DatabaseError("database disk image is malformed")
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error
        return real(self, *args)

    monkeypatch.setattr(TurnRows, "write", write)
    store, file = attached(path)
    with caplog.at_level(logging.WARNING, "kvist.text"):
        for turn in range(3):
            talk(store, b"%d" % turn, 1)
            assert file.flush(5)
    file.close()
    said = [r.getMessage() for r in caplog.records]
    assert sum("was damaged" in line for line in said) == 3 and sum("read-only" in line for line in said) == 1
    assert [p.name for p in path.parent.glob("*.damaged-?")] == ["turns.db.damaged-3"] and file.condition == "ok"


def test_whoever_is_forgotten_is_forgotten_there_too(path):
    store, file = attached(path)
    talk(store, b"a", 3, "me")
    file.close()
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + bytes(len(whole) - 4096))
    store, file = attached(path)
    talk(store, b"b", 3, "you")
    assert file.flush(5) and path.with_name("turns.db.damaged-1").exists()
    file.forget("me")
    assert file.flush(5) and not list(path.parent.glob("*damaged*"))
    file.close()


def test_whatever_byte_changes_no_wrong_id_comes_back(path):
    store, file = attached(path)
    told = talk(store, b"a", 4, "me") | talk(store, b"b", 4, "you")
    for n in range(10):
        store.put([b"%d" % n], [], [n] * 700, [n])
        told[b"%d" % n] = ([n] * 701, 700)
    file.close()
    whole, draw, survived = path.read_bytes(), random.Random(3), 0
    for at in [*range(100, 400, 7), *(draw.randrange(len(whole)) for _ in range(250))]:
        removed(path)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << draw.randrange(8)]) + whole[at + 1 :])
        store, file = attached(path)
        found = {key: store.get(key) for key in told}
        assert all(k is None or ([*k.ids], k.prompt_tokens) == told[key] for key, k in found.items()), at
        assert len(store) == sum(k is not None for k in found.values())
        survived += len(store)
        store.put([b"new"], [], [1], [2])
        file.flush(1)
        file.close()
    assert survived > 1000


def test_cut_off_anywhere_it_is_begun_anew_or_left(path):
    store, file = attached(path)
    told = talk(store, b"a", 4)
    file.close()
    whole = path.read_bytes()
    for length in (0, 1, 50, 99, 100, 101, 4095, 4096, 4097, len(whole) - 1):
        removed(path)
        path.write_bytes(whole[:length])
        store, file = attached(path)
        assert all(not store.get(key) or [*store.get(key).ids] == ids for key, (ids, _) in told.items())
        file.close()


def test_a_locked_file_is_written_when_it_is_free(path, caplog):
    attached(path)[1].close()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("begin exclusive")
        _, file = faulty(path, "read-only", "locked", caplog)
        db.execute("rollback")
    assert file.flush(5) and (file.condition, file.reason) == ("ok", "")
    file.close()
    assert len(again(path)) == 3


def test_a_full_disk_is_a_condition_and_what_waits_is_written_later(path, monkeypatch, caplog):
    real, room = TurnRows._make_room, []

    def full(self):
        if not room:
            self._db.execute("pragma max_page_count = 1").fetchall()
            self._db.execute("insert into paths (side, owner, bytes, body) values ('', '', 0, zeroblob(1 << 20))")
        real(self)

    monkeypatch.setattr(TurnRows, "_make_room", full)
    _, file = faulty(path, "read-only", "full", caplog)
    room.append(1)
    assert file.flush(5) and file.condition == "ok"
    file.close()
    assert len(again(path)) == 3 and len(caplog.records) == 2


def test_a_file_that_is_removed_is_begun_again(path):
    store, file = attached(path)
    told = talk(store, b"a", 2)
    assert file.flush(5)
    removed(path)
    more = talk(store, b"b", 2)
    assert file.flush(5) and file.condition == "ok"
    file.close()
    assert holds(again(path), more) and not again(path).get(list(told)[0])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody who may not write")
def test_a_read_only_folder_is_read(caplog):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "turns.db"
        store, file = attached(path)
        told = talk(store, b"a", 3)
        file.close()
        path.chmod(0o444), Path(folder).chmod(0o555)
        os.seteuid(65534)
        try:
            store, file = faulty(path, "read-only", "cannot be written", caplog)
            assert holds(store, told)
            file.close()
        finally:
            os.seteuid(0)


def test_a_seal_that_fails_is_a_condition(path, caplog):
    def broken(*_):
        raise ValueError("no key today")

    store, file = attached(path, seal=Seal(broken, broken))
    told = talk(store, b"a", 1)
    assert not file.flush(0.1) and holds(store, told) and "no key today" in file.reason and file.condition != "ok"
    file.close()
