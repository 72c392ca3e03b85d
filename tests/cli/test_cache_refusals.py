"""What ``kvist cache`` must not do: write over a cache's files, leave one behind that it refused to fill."""

import os
import sqlite3

import pytest
from cache_kit import chain, disk, filled, fine, ids_in, ids_of, kvist, one_line_error, snapshot

from small_fs import small_fs

LONG = chain("long", 60)
LEAF = LONG[-1].label.id.hex()


@pytest.fixture
def cache(tmp_path):
    return filled(tmp_path / "cache", LONG)


@pytest.mark.parametrize("name", ["index.db", "kvist-cache.json", "new.kvb", "sessions/x.kvist"])
@pytest.mark.parametrize("through", ["straight", "symlinked folder"])
def test_no_export_into_a_cache(cache, tmp_path, name, through):
    (cache / "sessions").mkdir()
    (cache / "sessions" / "x.kvist").write_bytes(b"a session")
    folder = cache
    if through != "straight":
        folder = tmp_path / "link"
        folder.symlink_to(cache)
    before = snapshot(cache)
    one_line_error(kvist("cache", "export", cache, LEAF, folder / name, "--force"), 2, "would lie in the cache")
    assert snapshot(cache) == before and (cache / "sessions" / "x.kvist").read_bytes() == b"a session"
    assert ids_in(cache) == ids_of(LONG)


def test_no_export_into_another_cache_either(cache, tmp_path):
    other = filled(tmp_path / "other", chain("o", 2))
    one_line_error(kvist("cache", "export", cache, LEAF, other / "index.db", "--force"), 2, str(other))
    assert ids_in(other) == ids_of(chain("o", 2))


@pytest.mark.parametrize("new", ["missing", "empty"])
@pytest.mark.parametrize("wrong", ["no key file", "bad key", "no key in env", "cut", "bit", "origin"])
def test_an_import_that_is_refused_makes_no_cache(cache, tmp_path, wrong, new):
    file, key, place = tmp_path / "a.kvb", tmp_path / "key", tmp_path / "new"
    fine(kvist("cache", "export", cache, LEAF, file))
    if new == "empty":
        place.mkdir()
    more = {"no key file": ["--tier-key", key], "bad key": ["--tier-key", key], "no key in env": ["--tier-key", "env"],
            "origin": ["--origin", "77" * 16]}.get(wrong, [])  # fmt: skip
    if wrong == "bad key":
        key.write_text("no key\n")
        os.chmod(key, 0o600)
    data = bytearray(file.read_bytes())
    if wrong == "bit":
        data[len(data) // 2] ^= 1
    file.write_bytes(data[:-1000] if wrong == "cut" else data)
    one_line_error(kvist("cache", "import", file, place, "--create", *more), 2)
    assert not place.exists() if new == "missing" else not any(place.iterdir())


def test_what_is_sound_is_taken(cache, tmp_path):
    file, key = tmp_path / "a.kvb", tmp_path / "key"
    fine(kvist("cache", "export", cache, LEAF, file))
    assert "60 records stored" in fine(kvist("cache", "import", file, tmp_path / "new", "--create"))
    assert ids_in(tmp_path / "new") == ids_of(LONG)
    fine(kvist("cache", "keygen", key))
    assert "60 records stored" in fine(kvist("cache", "import", file, tmp_path / "shut", "--create", "--tier-key", key))
    other = tmp_path / "other-key"
    fine(kvist("cache", "keygen", other))
    before = snapshot(tmp_path / "shut")
    assert kvist("cache", "import", file, tmp_path / "shut", "--tier-key", other).returncode == 2
    assert snapshot(tmp_path / "shut") == before


@pytest.mark.parametrize("command", [["rm", "--all", "--yes"], ["rm", "--tenant", "ada", "--yes"], ["gc"]])
@pytest.mark.parametrize("beside", ["nobody", "a server"])
def test_a_full_file_system(tmp_path, command, beside):
    """F052: what frees room works without any."""
    with small_fs(tmp_path, "4m") as fs:
        cache = filled(fs.path / "cache", LONG)
        server = disk(cache) if beside == "a server" else None
        if server:
            server.get_many_into([r.label.id for r in LONG], [memoryview(bytearray(8192)) for _ in LONG], timeout_s=9)
        fs.fill()
        assert not fs.free_bytes
        said = fine(kvist("cache", command[0], cache, *command[1:]))
        assert fs.free_bytes > 0 and ("60 records" in said or command == ["gc"])
        assert ids_in(cache) == (ids_of(LONG) if command == ["gc"] else set())
        if server:
            server.close()


def test_the_reason_is_the_real_one(tmp_path, monkeypatch):
    """Full is not busy."""
    with small_fs(tmp_path, "4m") as fs:
        cache = filled(fs.path / "cache", LONG)
        fine(kvist("cache", "gc", cache))
        server = disk(cache)
        fs.fill()
        monkeypatch.setattr("kvist.tier.disk.store.free_up", lambda *_: None)
        monkeypatch.setattr("kvist.tier.disk.room.free_up", lambda *_: None)
        done = kvist("cache", "rm", cache, "--tenant", "ada", "--yes")
        assert done.returncode == 1 and "busy" not in done.stderr and "full: 0 B are free" in done.stderr, done.stderr
        server.close()


def test_busy_is_still_told_as_busy(cache):
    other = sqlite3.connect(cache / "index.db", isolation_level=None)
    tier = disk(cache)
    other.execute("begin immediate")
    assert tier.delete(tenant="ada") == -1 and "busy" in tier.trouble
    other.execute("rollback")
    other.close()
    tier.close()


def test_all_goes_that_the_index_has(cache):
    """Also what cannot be listed, for its label is damaged."""
    slab = next(cache.glob("slab-*"))
    data = bytearray(slab.read_bytes())
    data[:4096] = bytes(4096)
    slab.write_bytes(data)
    assert "60 records" in fine(kvist("cache", "rm", cache, "--all", "--yes"))
    assert ids_in(cache) == set() and not list(cache.glob("slab-*"))
