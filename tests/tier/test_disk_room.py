"""F052 on a real file system of a few MiB: the index has its room, others may take all of it, and room comes back."""

import time

import pytest
from crash_bench import MIB, chain, check_books, get, opened, physical, put

from small_fs import small_fs


def wound(tier):
    """Puts the tier's pauses on a clock that the test winds on."""
    later = [0.0]
    tier.health._clock = lambda: time.monotonic() + later[0]
    return later


def changes(caplog):
    return [r.getMessage().split(": ", 1)[1].split(" (")[0] for r in caplog.records if "->" in r.getMessage()]


@pytest.mark.parametrize("size,least", [("1m", 60), ("2m", 180), ("3m", 200)])
@pytest.mark.parametrize("capacity", [64 * MIB, 10240 * MIB])
def test_slabs_leave_the_index_its_room(tmp_path, size, least, capacity):
    """However large the capacity says it may become."""
    with small_fs(tmp_path, size) as fs:
        tier = opened(fs.path / "c", capacity, sync=True)
        records = chain("a", 200)
        stored = put(tier, records).count("stored")
        assert stored >= least and get(tier, records)[0].count("hit") == stored
        assert tier.usage().condition == "ok" and not put(tier, chain("b", 40)).count("error")
        assert get(tier, chain("b", 40)) == (["hit"] * 40, True), "what was used longest ago makes room"
        there = tier.usage().records
        tier.close()
        assert check_books(fs.path / "c")["records"] == there
        tier = opened(fs.path / "c", capacity)
        assert tier.usage().condition == "ok" and get(tier, chain("b", 40)) == (["hit"] * 40, True)
        tier.close()


def test_the_reserve_stays_free_and_is_named_once(tmp_path, caplog):
    with small_fs(tmp_path, "3m") as fs:
        tier = opened(fs.path / "c", 64 * MIB, reserve_bytes=MIB)
        for name in "abcd":
            assert put(tier, chain(name, 100))[:60] == ["stored"] * 60
            assert fs.free_bytes >= MIB
        assert physical(fs.path / "c") > MIB and tier.usage().evicted_records > 0
        tier.close()
    (line,) = [r.getMessage() for r in caplog.records]
    assert "1 MiB of it stay free" in line and "reserve=SIZE" in line and "--tier" in line


def test_a_reserve_larger_than_the_file_system(tmp_path, caplog):
    with small_fs(tmp_path, "3m") as fs:
        tier = opened(fs.path / "c", 64 * MIB, reserve_bytes=1 << 30)
        for _ in range(3):
            assert set(put(tier, chain("a", 20))) <= {"full", "off"}
        assert tier.usage().condition == "read-only" and "reserve=SIZE" in tier.usage().reason
        tier.close()
    assert changes(caplog) == ["ok -> read-only"]


def test_others_take_all_and_give_it_back(tmp_path, caplog):
    with small_fs(tmp_path, "4m") as fs:
        tier = opened(fs.path / "c", 64 * MIB, sync=True)
        later, a = wound(tier), chain("a", 60)
        assert put(tier, a) == ["stored"] * 60
        fs.fill()
        for name in "bcde":
            answers = put(tier, chain(name, 300))
            assert set(answers) <= {"stored", "known", "error", "full", "off"}
            assert get(tier, chain(name, 300))[1] and get(tier, a)[1]
        assert tier.usage().condition == "read-only" and "full" in tier.usage().reason
        fs.empty()
        later[0] += 61
        assert put(tier, chain("f", 100)) == ["stored"] * 100 and tier.usage().condition == "ok"
        assert get(tier, chain("f", 100)) == (["hit"] * 100, True)
        tier.close()
        check_books(fs.path / "c")
    assert changes(caplog) == ["ok -> read-only", "read-only -> ok"]


@pytest.mark.parametrize("before", ["new", "closed", "read-only"])
def test_no_room_at_the_start_is_no_fate(tmp_path, caplog, before):
    """What is there is read, and once there is room (or the right to write) it is a cache like any other."""
    with small_fs(tmp_path, "4m") as fs:
        a, b = chain("a", 30), chain("b", 30)
        if before != "new":
            tier = opened(fs.path / "c", 64 * MIB)
            put(tier, a)
            tier.close()
        fs.read_only(True) if before == "read-only" else fs.fill()
        tier = opened(fs.path / "c", 64 * MIB)
        later = wound(tier)
        there = "missing" if before == "new" else "hit"
        assert put(tier, b) == ["off"] * 30 and get(tier, a) == ([there] * 30, True)
        later[0] += 61
        assert put(tier, b) == ["off"] * 30 and get(tier, a) == ([there] * 30, True)
        assert tier.usage().condition == "read-only" and tier.usage().reason
        fs.read_only(False) if before == "read-only" else fs.empty()
        assert put(tier, b) == ["off"] * 30, "not before its pause is over"
        later[0] += 61
        assert put(tier, b) == ["stored"] * 30 and tier.usage().condition == "ok"
        assert get(tier, b) == (["hit"] * 30, True) and get(tier, a) == ([there] * 30, True)
        tier.close()
        assert check_books(fs.path / "c")["records"] == (30 if before == "new" else 60)
    assert changes(caplog) == ["ok -> read-only", "read-only -> ok"]


def test_a_folder_that_was_asked_to_be_read_is_never_written(tmp_path):
    opened(tmp_path / "c").close()
    tier = opened(tmp_path / "c", read_only=True)
    wound(tier)[0] += 1000
    assert put(tier, chain("a", 3)) == ["off"] * 3 and tier.usage().reason == "opened to read"
    tier.close()


def test_closed_while_it_could_only_be_read(tmp_path):
    with small_fs(tmp_path, "2m") as fs:
        fs.fill()
        tier = opened(fs.path / "c", 64 * MIB)
        wound(tier)[0] += 61
        put(tier, chain("a", 3))
        tier.close()
        tier.close()
        fs.empty()
        assert put(tier, chain("a", 3)) == ["off"] * 3 and tier.usage().condition == "off"
