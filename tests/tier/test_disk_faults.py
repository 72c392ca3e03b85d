"""F052 and its kin: a place that fails costs misses, says so once, and is used again when it is well."""

import errno
import logging
import os

import pytest
from crash_bench import MIB, FaultyIo, chain, check_books, get, ids_of, opened, physical, put

from kvist.errors import StateError
from kvist.tier.disk.health import Health


def clocked(tier):
    """Puts the tier's pauses on a clock that the test winds."""
    now = [0.0]
    tier.health._clock = lambda: now[0]
    return now


@pytest.mark.parametrize("where", ["fallocate", "pwritev", "commit"])
def test_disk_full_once_evicts_and_goes_on(tmp_path, where):
    io = FaultyIo()
    tier = opened(tmp_path / "c", io=io)
    put(tier, chain("a", 300))
    io.fail[where] = [errno.ENOSPC]
    answers = put(tier, chain("b", 300))
    assert answers[:200] == ["stored"] * 200 and tier.usage().condition == "ok"
    assert get(tier, chain("b", 300))[1] and tier.usage().evicted_records > 0
    tier.close()
    check_books(tmp_path / "c")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("where", ["pwritev", "fdatasync"])
def test_writes_that_always_fail(tmp_path, caplog, where, code):
    """Read-only with one line of log; what is there is served; tried again after a pause; well again by itself."""
    io = FaultyIo()
    tier = opened(tmp_path / "c", io=io, sync=True)
    now = clocked(tier)
    a, b = chain("a", 20), chain("b", 30)
    put(tier, a)
    io.fail[where] = code
    with caplog.at_level(logging.WARNING, "kvist.tier"):
        assert set(put(tier, b)) <= {"error", "full", "off"}
        usage = tier.usage()
        assert usage.condition == "read-only" and errno.errorcode[code] in usage.reason and "\n" not in usage.reason
        calls = io.calls[where]
        assert put(tier, b) == ["off"] * 30 and io.calls[where] == calls, "not tried while the pause lasts"
        there = tier.exists_many(ids_of(a))
        assert get(tier, a) == (["hit" if t else "missing" for t in there], True)
        assert not any(tier.exists_many(ids_of(b))), "nothing half visible"
        for _ in range(8):
            now[0] += 61
            put(tier, b)
        assert io.calls[where] > calls
        io.fail.clear()
        assert put(tier, b) == ["off"] * 30
        now[0] += 61
        assert put(tier, b) == ["stored"] * 30 and tier.usage().condition == "ok" and tier.usage().reason == ""
    assert [r.getMessage().count("->") for r in caplog.records] == [1, 1], "one line per change, not per failure"
    assert get(tier, b) == (["hit"] * 30, True)
    tier.close()
    check_books(tmp_path / "c")


def test_pauses_double_up_to_a_minute():
    now = [0.0]
    health = Health("x", lambda: now[0])
    for expected in (1, 2, 4, 8, 16, 32, 60, 60):
        health.failed("why")
        now[0] += expected - 0.01
        assert not health.may_try()
        now[0] += 0.02
        assert health.may_try()
    health.worked()
    health.failed("why")
    now[0] += 1.01
    assert health.may_try()


def test_growth_that_always_fails_lives_on_what_it_has(tmp_path):
    io = FaultyIo()
    tier = opened(tmp_path / "c", MIB, io=io)
    put(tier, chain("a", 60))
    io.fail["fallocate"] = errno.ENOSPC
    assert put(tier, chain("b", 60)) == ["stored"] * 60 and tier.usage().condition == "ok"
    tier.close()
    io = FaultyIo(fallocate=errno.ENOSPC)
    tier = opened(tmp_path / "new", MIB, io=io)
    assert set(put(tier, chain("a", 10))) == {"full"} and put(tier, chain("a", 10)) == ["off"] * 10
    assert tier.usage().condition == "read-only" and "space" in tier.usage().reason
    tier.close()


def test_free_space_reserve(tmp_path):
    """The reserve counts what the filesystem has free, not what the capacity allows."""
    stat = os.statvfs(tmp_path)
    free = stat.f_bavail * stat.f_frsize
    tier = opened(tmp_path / "c", 64 * MIB, reserve_bytes=2 * free)
    assert put(tier, chain("a", 10)) == ["full"] * 10 and physical(tmp_path / "c") < MIB
    assert tier.usage().condition == "read-only"
    tier.close()


def test_reads_that_fail(tmp_path):
    """EIO: an error for that record alone, and it stays; it is served when the fault has gone."""
    io = FaultyIo()
    tier = opened(tmp_path / "c", io=io)
    a = chain("a", 10)
    put(tier, a)
    io.fail["preadv"] = [errno.EIO, 0, 0, 0, errno.EIO]
    answers, right = get(tier, a)
    assert right and answers.count("error") == 1 and answers.count("hit") == 9
    io.fail["preadv"] = errno.EIO
    assert get(tier, a)[0] == ["error"] * 10
    io.fail.clear()
    assert get(tier, a) == (["hit"] * 10, True) and tier.usage().damaged_records == 0
    tier.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_commits_that_fail(tmp_path, code):
    io = FaultyIo()
    tier = opened(tmp_path / "c", io=io)
    clocked(tier)
    a = chain("a", 10)
    put(tier, a)
    io.fail["commit"] = code
    assert set(put(tier, chain("b", 5))) <= {"error", "full"}
    assert tier.usage().condition == "read-only" and get(tier, a) == (["hit"] * 10, True)
    assert tier.delete(ids=ids_of(a)) == -1 and tier.exists_many(ids_of(a)) == [True] * 10
    io.fail.clear()
    tier.close()
    tier = opened(tmp_path / "c")
    assert put(tier, chain("b", 5)) == ["stored"] * 5
    tier.close()
    assert check_books(tmp_path / "c")["records"] == 15


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
def test_a_folder_that_cannot_be_written_is_read(tmp_path, code):
    tier = opened(tmp_path / "c")
    a = chain("a", 10)
    put(tier, a)
    tier.close()
    tier = opened(tmp_path / "c", io=FaultyIo(open_rw=code))
    usage = tier.usage()
    assert usage.condition == "read-only" and usage.records == 10 and os.strerror(code) in usage.reason
    assert get(tier, a) == (["hit"] * 10, True) and put(tier, a) == ["off"] * 10
    assert tier.delete(tenant="t") == -1 and tier.gc() == -1 and tier.verify().records == 10
    tier.touch_many(ids_of(a))
    tier.close()


def test_an_empty_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "c").mkdir()
    tier = opened(tmp_path / "c", io=FaultyIo(open_rw=errno.EROFS))
    a = chain("a", 3)
    assert tier.usage().condition == "read-only" and put(tier, a) == ["off"] * 3
    assert get(tier, a)[0] == ["missing"] * 3 and tier.usage().records == 0
    tier.close()
    assert not list((tmp_path / "c").iterdir())


def test_read_only_beside_a_writer_and_with_its_log_left_behind(tmp_path):
    writer = opened(tmp_path / "c")
    a = chain("a", 10)
    put(writer, a)
    reader = opened(tmp_path / "c", read_only=True)
    assert get(reader, a) == (["hit"] * 10, True)
    put(writer, chain("b", 5))
    assert get(reader, chain("b", 5)) == (["hit"] * 5, True)
    assert put(reader, a) == ["off"] * 10
    reader.close()
    writer.close()


def test_two_versions_of_kvist_on_one_folder(tmp_path):
    """A newer format is refused in clear words and not touched; an unreadable marker is not guessed at."""
    folder = tmp_path / "c"
    opened(folder).close()
    marker = folder / "kvist-cache.json"
    before = sorted((p.name, p.read_bytes()) for p in folder.iterdir() if p != marker)
    for text in ('{"format": 2}', '{"format": 99, "x": 1}'):
        marker.write_text(text)
        with pytest.raises(StateError, match="upgrade kvist"):
            opened(folder)
        assert marker.read_text() == text
    for text in ("", "{", "[]", '{"format": 0}', '{"format": "1"}', '{"format": true}', "\xff"):
        marker.write_bytes(text.encode("latin-1"))
        with pytest.raises(StateError, match="does not say"):
            opened(folder)
        assert marker.read_bytes() == text.encode("latin-1")
    assert sorted((p.name, p.read_bytes()) for p in folder.iterdir() if p != marker) == before


def test_direct_io_refused_falls_back(tmp_path, caplog):
    class NoDirect(FaultyIo):
        def open(self, name, flags, dir_fd):
            if flags & os.O_DIRECT:
                raise OSError(errno.EINVAL, "no")
            return super().open(name, flags, dir_fd)

    tier = opened(tmp_path / "c", io=NoDirect(), sync=True)
    a = chain("a", 10, size=5000)
    assert put(tier, a) == ["stored"] * 10 and get(tier, a) == (["hit"] * 10, True)
    assert sum("no direct I/O" in r.getMessage() for r in caplog.records) == 1 and not tier._slabs.direct
    tier.close()
