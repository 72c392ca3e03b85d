"""Kept answers on disk: they survive, within bounds, each owner's part apart, whoever else writes."""

import signal
import sqlite3
import subprocess
import sys
import threading
from array import array
from contextlib import closing

import pytest
from turn_file_kit import SIDE, again, attached, holds, talk

from kvist.text import turn_file, turn_sqlite
from kvist.text.turn_rows import Seal, TurnRows
from kvist.text.turn_store import ENTRY_TOKENS, TurnStore


@pytest.fixture
def path(tmp_path):
    return tmp_path / "turns.db"


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(turn_file, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(turn_sqlite, "BUSY_S", 0.1)


def test_what_was_put_is_there_again_and_goes_on(path):
    store, file = attached(path)
    told = talk(store, b"a", 5, "me") | talk(store, b"b", 3, "you")
    store.put([b"two", b"keys"], [], [1, 2], [3])
    file.close()
    assert (file.condition, file.reason, file.dropped) == ("ok", "", 0)
    store, file = attached(path)
    assert file.loaded == 3 and holds(store, told | {b"two": ([1, 2, 3], 2), b"keys": ([1, 2, 3], 2)})
    assert store.held_tokens == 35 + 21 + 3 + 10 * ENTRY_TOKENS
    store.put([b"a-5"], list(told)[:5], [*told[b"a-4"][0], 7], [8], "me")
    store.put([b"branch"], list(told)[:2], [*told[b"a-1"][0], 9], [9], "me")
    file.close()
    store = again(path)
    assert holds(store, told | {b"a-5": ([*told[b"a-4"][0], 7, 8], 36), b"branch": ([*told[b"a-1"][0], 9, 9], 15)})
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("select count(*) from paths").fetchone() == (4,), "a path that grows stays one row"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_path_that_grows_stays_one_row_in_one_life(path):
    store, file = attached(path)
    keys, ids = [], []
    for turn in range(4):
        store.put([b"%d" % turn], keys, [*ids, turn], [9])
        keys.append(b"%d" % turn)
        ids += [turn, 9]
        assert file.flush(5)
        with closing(sqlite3.connect(path)) as db:
            assert db.execute("select count(*) from paths").fetchone() == (1,)
    file.close()


def test_a_restored_path_takes_its_keys_from_others_and_no_more_room_than_there_is():
    store = TurnStore(2 * (4 + 2 * ENTRY_TOKENS))
    first = store.restore("me", array("i", [1, 2, 3, 4]), ((b"a", 1, 2), (b"b", 3, 4)))
    again = store.restore("me", array("i", [1, 2, 5]), ((b"a", 1, 2), (b"c", 2, 3)))
    assert 0 < first < again and len(store) == 3 and [*store.get(b"b").ids] == [1, 2, 3, 4]
    assert store.held_tokens == 4 + 3 + 3 * ENTRY_TOKENS
    assert not store.restore("me", array("i", [7] * 100), ((b"d", 1, 100),)) and not store.restore("me", array("i"), ())
    assert store.held_tokens <= store.max_tokens and store.get(b"d") is None
    for n in range(5):
        store.put([b"new%d" % n], [], [n], [n], "me")
    assert store.get(b"a") is None and store.get(b"b") is None and store.get(b"new4")


def test_ids_of_another_tokenizer_or_template_are_left_where_they_are(path):
    store, file = attached(path)
    told = talk(store, b"a", 2)
    file.close()
    store, file = attached(path, side=b"other")
    file.close()
    assert (len(store), file.loaded, file.unreadable) == (0, 0, 0) and holds(again(path), told)


def test_a_store_with_less_room_takes_the_latest(path):
    store, file = attached(path)
    for n in range(20):
        talk(store, b"%d" % n, 1)
        assert file.flush(5)
    file.close()
    store, file = attached(path, 3 * (7 + ENTRY_TOKENS))
    assert file.loaded == 3 and store.held_tokens <= store.max_tokens
    file.close()
    talk(store, b"new", 1)
    kept = [n for n in range(20) if store.get(b"%d-0" % n)]
    assert kept == [18, 19], "the earliest of three made room"


def test_after_kill_9_what_was_flushed_is_there(path):
    code = (
        "import sys; from pathlib import Path; from kvist.text.turn_file import TurnFile\n"
        "from kvist.text.turn_store import TurnStore\n"
        "s = TurnStore(10**6); f = TurnFile.attach(s, Path(sys.argv[1]), side=sys.argv[2].encode())\n"
        "for n in range(50): s.put([b'%d' % n], [], [n] * 100, [n])\n"
        "assert f.flush(10)\nprint('flushed', flush=True)\n"
        "n = 50\nwhile True: s.put([b'%d' % n], [], [n] * 100, [n]); n += 1\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path), SIDE.decode()], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"flushed\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    store = again(path, 10**6)
    assert len(store) >= 50 and all([*store.get(b"%d" % n).ids] == [n] * 101 for n in range(50))


def test_two_that_write_at_once_lose_nothing(path):
    (one, file), (other, beside) = attached(path), attached(path)
    told = {}

    def work(store, name):
        for n in range(15):
            told.update(talk(store, b"%s%d" % (name, n), 4, salt=n))

    threads = [threading.Thread(target=work, args=each) for each in ((one, b"x"), (other, b"y"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert file.flush(10) and beside.flush(10) and (file.condition, beside.condition) == ("ok", "ok")
    file.close(), beside.close()
    assert holds(again(path), told) and len(told) == 120


def test_two_that_go_on_from_one_answer_both_keep_theirs(path):
    store, file = attached(path)
    told = talk(store, b"a", 2)
    file.close()
    pair = attached(path), attached(path)
    for n, (store, file) in enumerate(pair):
        ids = told[b"a-1"][0]
        store.put([b"next%d" % n], list(told), [*ids, n], [n])
        told_n = {b"next%d" % n: ([*ids, n, n], len(ids) + 1)}
        assert file.flush(5) and holds(store, told_n)
    for _, file in pair:
        file.close()
    store = again(path)
    assert store.get(b"next0").ids[-1] == 0 and store.get(b"next1").ids[-1] == 1


def test_the_file_stays_within_its_bound_and_each_owner_keeps_his_part(path):
    store, file = attached(path, 10**6, max_bytes=40_000)
    mine = talk(store, b"mine", 3, "me")
    assert file.flush(5)
    for n in range(400):
        store.put([b"%d" % n], [], [n] * 200, [n], "they")
        if n % 20 == 0:
            assert file.flush(5)
    file.close()
    with closing(sqlite3.connect(path)) as db:
        assert 30_000 < db.execute("select sum(length(body)) from paths").fetchone()[0] <= 40_000
        assert db.execute("select sum(length(body)) - sum(bytes) from paths").fetchone() == (0,)
    store = again(path, 10**6)
    assert holds(store, mine) and store.get(b"399") and not store.get(b"100")
    assert sum(p.stat().st_size for p in path.parent.iterdir()) < 2 * 40_000 + (3 << 20)


def test_a_forgotten_owner_is_not_in_the_file(path):
    store, file = attached(path)
    words = array("i", [77_777_777] * 50)
    store.put([b"a"], [], words, [1], "me")
    told = talk(store, b"b", 2, "you")
    assert file.flush(5)
    everything = lambda: b"".join(p.read_bytes() for p in path.parent.iterdir() if not p.name.endswith("-shm"))  # noqa: E731
    assert words.tobytes() in everything()
    assert store.forget_owner("me") == 1 and store.get(b"a") is None and store.forget_owner("me") == 0
    file.forget("me")
    assert file.flush(5) and words.tobytes()[:40] not in everything(), "neither in a free page nor in the log"
    file.close()
    assert again(path).get(b"a") is None and holds(again(path), told)
    store, file = attached(path)
    file.forget(None)
    assert file.flush(5)
    file.close()
    assert len(again(path)) == 0


def test_what_waits_of_a_forgotten_owner_is_never_written(path, monkeypatch):
    store, file = attached(path)
    gate, began = threading.Event(), threading.Event()
    real = TurnRows.write
    monkeypatch.setattr(TurnRows, "write", lambda *a: (began.set(), gate.wait(5), _fail_once(a, real))[2])
    store.put([b"in flight"], [], [1], [2], "me")
    assert began.wait(5)
    store.put([b"waiting"], [], [1], [2], "me")
    told = talk(store, b"b", 2, "you")
    file.forget("me")
    gate.set()
    assert file.flush(5)
    file.close()
    store = again(path)
    assert store.get(b"in flight") is None and store.get(b"waiting") is None and holds(store, told)


def _fail_once(args, real, seen=[]):  # noqa: B006
    if not seen:
        seen.append(1)
        raise OSError(28, "No space left on device")
    return real(*args)


def test_a_put_never_waits_and_too_many_are_dropped_and_counted(path, monkeypatch):
    monkeypatch.setattr(turn_file, "WAITING_BYTES", 10_000)
    store, file = attached(path)
    gate = threading.Event()
    real = TurnRows.write
    monkeypatch.setattr(TurnRows, "write", lambda *a: (gate.wait(10), real(*a))[1])
    for n in range(100):
        store.put([b"%d" % n], [], [n] * 100, [n])
    assert not file.flush(0.05) and 80 < file.dropped < 100 and len(store) == 100
    gate.set()
    assert file.flush(5)
    assert 0 < len(again(path)) == 100 - file.dropped
    store.put([b"new"], [], [1], [2])
    assert file.flush(5)
    file.close()
    assert again(path).get(b"new"), "there is room again"


def test_sealed_rows_show_nothing_and_open_only_with_the_seal(path):
    def close(owner, data):
        return owner.encode() + bytes(b ^ 0x5A for b in data)

    def open_(owner, data):
        return bytes(b ^ 0x5A for b in data[len(owner) :]) if data.startswith(owner.encode()) else None

    seal = Seal(close, open_)
    store, file = attached(path, seal=seal)
    told = talk(store, b"conversation", 3, "me")
    file.close()
    assert b"conversation" not in path.read_bytes() and holds(again(path, seal=seal), told)
    for other in (None, Seal(close, lambda *_: None)):
        store, file = attached(path, seal=other)
        assert len(store) == 0 and file.unreadable == 1 and file.condition == "ok"
        file.close()


def test_nothing_is_kept_where_the_store_keeps_nothing(path):
    _, file = attached(path, 0)
    assert file.condition == "off" and not path.exists()
    file.close()
