"""A file of kept answers is set aside on proof of damage only, once, and only the file that the proof is of."""

import logging
import multiprocessing
import random
import sqlite3
from contextlib import closing

import pytest
from turn_file_kit import again, attached, holds, talk

from kvist.text import turn_aside, turn_file, turn_sqlite
from kvist.text.turn_aside import Spot
from kvist.text.turn_place import Damaged, is_damage
from kvist.text.turn_rows import Seal, TurnRows


@pytest.fixture
def path(tmp_path):
    return tmp_path / "turns.db"


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(turn_file, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(turn_sqlite, "BUSY_S", 0.1)


def kept(path, name=b"old", turns=3):
    """A file with a conversation. Returns what it holds."""
    store, file = attached(path)
    told = talk(store, name, turns)
    assert file.flush(5)
    file.close()
    return told


def harmed(path):
    raw = bytearray(path.read_bytes())
    raw[:16] = b"X" * 16
    path.write_bytes(raw)
    return bytes(raw)


def names(path):
    return sorted(name.name for name in path.parent.iterdir())


def test_a_second_finder_leaves_the_new_file(path, monkeypatch, caplog):
    """Between his finding the damage and his renaming, another found it, too, and began a new file."""
    kept(path)
    raw, real, told = harmed(path), Spot.put_aside, {}

    def late(self, error):
        if not told:
            told.update({b"": None})
            told.update(kept(path, b"others"))
            del told[b""]
        return real(self, error)

    monkeypatch.setattr(Spot, "put_aside", late)
    with caplog.at_level(logging.WARNING, "kvist.text"):
        store, file = attached(path)
    assert file.condition == "ok" and holds(store, told), "he opens what the other one kept"
    more = talk(store, b"own", 2)
    assert file.flush(5)
    file.close()
    assert names(path) == ["turns.db", "turns.db.damaged-1"] and holds(again(path), told | more)
    assert path.with_name("turns.db.damaged-1").read_bytes() == raw, "the evidence is still there"
    assert caplog.text.count("was damaged") == 1


def _finder(path, barrier, n, out):
    store, told = None, {}
    barrier.wait(20)
    store, file = attached(path)
    told = talk(store, b"by %d" % n, 2)
    good = file.flush(10)
    file.close()
    out.put((n, good, told))


def test_processes_that_find_the_damage_at_once_lose_nothing(path):
    context = multiprocessing.get_context("fork")
    for _ in range(6):
        for name in path.parent.iterdir():
            name.unlink()
        kept(path)
        raw = harmed(path)
        barrier, out = context.Barrier(4), context.Queue()
        finders = [context.Process(target=_finder, args=(path, barrier, n, out)) for n in range(4)]
        for finder in finders:
            finder.start()
        answers = [out.get(timeout=30) for _ in finders]
        for finder in finders:
            finder.join(10)
        assert all(good for _, good, _ in answers)
        store = again(path)
        assert all(holds(store, told) for _, _, told in answers)
        assert names(path) == ["turns.db", "turns.db.damaged-1"]
        assert path.with_name("turns.db.damaged-1").read_bytes() == raw


def test_a_new_file_with_the_old_ones_number_is_another_file(path):
    """Inodes are used again at once: the one that was opened must not come again."""
    kept(path)
    spot = Spot(path)
    with spot.opening():
        harmed(path)
    for _ in range(50):
        path.unlink()
        path.write_bytes(b"")
        assert not spot.put_aside(Damaged("it was")) and names(path) == ["turns.db"]
    with spot.opening():
        pass
    assert spot.put_aside(Damaged("it is")) and names(path) == ["turns.db.damaged-1"]
    spot.release()


def test_what_is_written_into_a_file_that_just_went_is_written_again(path, monkeypatch):
    store, file = attached(path)
    told, real = talk(store, b"a", 2), TurnRows.write
    assert file.flush(5)

    def write(self, *args):
        if path.exists():
            path.rename(path.with_name("elsewhere"))
        monkeypatch.setattr(TurnRows, "write", real)
        return real(self, *args)

    monkeypatch.setattr(TurnRows, "write", write)
    more = talk(store, b"b", 2)
    assert file.flush(5) and holds(again(path), more)
    assert holds(store, told | more) and file.condition == "ok"
    file.close()


def test_whoever_renames_for_long_is_waited_for_and_then_tried_again(path, monkeypatch):
    kept(path)
    raw = harmed(path)
    monkeypatch.setattr(turn_aside, "LOCK_TRIES", 2)
    with turn_aside._locked(path, turn_aside.fcntl.LOCK_SH):
        store, file = attached(path)
        assert file.condition == "off" and "cannot be put aside" in file.reason and path.read_bytes() == raw
    told = talk(store, b"b", 2)
    assert file.flush(5) and file.condition == "ok"
    file.close()
    assert holds(again(path), told) and names(path) == ["turns.db", "turns.db.damaged-1"]


@pytest.mark.parametrize("word", [b"integer primary", b"autoincrement", b"owner text", b"body blob", b"paths ("])
def test_one_bit_of_the_schema_is_damage(path, word):
    """SQLite quotes the schema when it says so, and Python cannot read that."""
    kept(path)
    raw = path.read_bytes()
    at = raw.index(word)
    path.write_bytes(raw[:at] + bytes([raw[at] ^ 0x80]) + raw[at + 1 :])
    store, file = attached(path)
    told = talk(store, b"new", 3)
    assert file.flush(2) and file.condition == "ok", file.reason
    file.close()
    assert holds(again(path), told)


@pytest.mark.parametrize("at", [18, 19])
@pytest.mark.parametrize("value", [0, 3, 130])
def test_a_format_that_sqlite_would_only_read_is_damage(path, at, value):
    kept(path)
    raw = bytearray(path.read_bytes())
    raw[at] = value
    path.write_bytes(raw)
    kept(path, b"new")
    assert path.with_name("turns.db.damaged-1").read_bytes() == raw


@pytest.mark.parametrize(
    "code,damage",
    [("CORRUPT", True), ("NOTADB", True), ("ERROR", True), ("CORRUPT_INDEX", True), ("CORRUPT_SEQUENCE", True),
     ("BUSY", False), ("BUSY_SNAPSHOT", False), ("LOCKED", False), ("FULL", False), ("IOERR", False),
     ("IOERR_READ", False), ("READONLY", False), ("CANTOPEN", False), ("PERM", False)],
)  # fmt: skip
def test_which_codes_are_proof(code, damage):
    error = sqlite3.DatabaseError("something")
    error.sqlite_errorcode = getattr(sqlite3, f"SQLITE_{code}")
    assert is_damage(error) == damage
    assert not is_damage(sqlite3.ProgrammingError("closed")) and not is_damage(OSError(5, "the disk"))


def test_a_seal_that_cannot_be_read_is_no_damage(path):
    """Whatever it raises: the file is as it was."""

    def broken(*_):
        return b"\xff".decode()

    store, file = attached(path, seal=Seal(broken, broken))
    talk(store, b"a", 1)
    assert not file.flush(0.1) and file.condition != "ok" and "decode" in file.reason
    file.close()
    attached(path, seal=Seal(lambda _, plain: plain, broken))[1].close()
    assert names(path) == ["turns.db"]


@pytest.mark.parametrize("wal", [False, True])
def test_a_foreign_database_that_is_locked_is_left_alone(path, monkeypatch, wal):
    monkeypatch.setattr("kvist.text.turn_place._LOOK_S", 0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        if wal:
            db.execute("pragma journal_mode = wal").fetchall()
            db.execute("pragma locking_mode = exclusive").fetchall()
        db.executescript("create table mine (x); insert into mine values (1);")
        db.execute("begin exclusive")
        store, file = attached(path)
        talk(store, b"a", 2)
        assert not file.flush(0.3) and file.condition == "off" and "locked" in file.reason
        assert not [name for name in names(path) if "damaged" in name]
        db.execute("commit")
    assert not file.flush(0.3) and "is not a file of kept answers" in file.reason
    file.close()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("select x from mine").fetchall() == [(1,)]


def test_no_damage_keeps_answers_from_being_kept(path):
    """Save one byte that makes it a newer kvist's file: that one is left alone."""
    for n in range(20):
        kept(path, b"%d" % n, 6)
    whole, draw, mended = path.read_bytes(), random.Random(5), 0
    for n in range(150):
        for name in path.parent.iterdir():
            name.unlink()
        raw = bytearray(whole)
        page = 4096 * draw.choice([0, 0, 1, 2, draw.randrange(len(raw) // 4096)])
        for _ in range(draw.choice([1, 3, 30])):
            raw[page + draw.randrange(100 if n % 3 == 0 else 4096)] = draw.randrange(256)
        raw[60:64] = whole[60:64]
        path.write_bytes(raw)
        store, file = attached(path)
        told = talk(store, b"new", 2)
        assert file.flush(3) and file.condition == "ok", (n, file.reason)
        file.close()
        assert holds(again(path), told), n
        mended += any("damaged" in name for name in names(path))
    assert 30 < mended < 150
