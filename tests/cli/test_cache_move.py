"""``kvist cache export`` and ``import``, and the keys: one file, wholly or not at all; what is sealed stays so."""

import json
import os
import stat

import pytest
from cache_kit import (
    DATA_BYTES,
    ORIGIN,
    OTHER_ORIGIN,
    chain,
    filled,
    fine,
    ids_in,
    ids_of,
    kvist,
    one_line_error,
    snapshot,
)

LONG = chain("long", 6)
FORK = chain("fork", 2, below=LONG[2])
LEAF = LONG[5].label.id.hex()
FORK_PATH = ids_of(LONG[:3], FORK)


@pytest.fixture
def cache(tmp_path):
    return filled(tmp_path / "cache", LONG, FORK)


@pytest.fixture
def file(cache, tmp_path):
    fine(kvist("cache", "export", cache, FORK[1].label.id.hex()[:8], tmp_path / "fork.kvb"))
    return tmp_path / "fork.kvb"


def test_a_chain_goes_out_and_into_another_place(cache, file, tmp_path):
    before = snapshot(cache)
    new = tmp_path / "new"
    out = fine(kvist("cache", "import", file, new, "--create"))
    assert "5 records stored, 0 were there already" in out and f"origin: {ORIGIN.hex()}" in out and "tokens: 80" in out
    assert ids_in(new) == FORK_PATH and "5 records good" in fine(kvist("cache", "verify", new))
    assert "0 records stored, 5 were there already" in fine(kvist("cache", "import", file, new))
    fine(kvist("cache", "export", new, FORK[1].label.id.hex(), tmp_path / "again.kvb"))
    assert (tmp_path / "again.kvb").read_bytes() == file.read_bytes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert {n: b for n, b in before.items() if "-" not in n or "slab" in n}.items() <= snapshot(cache).items()


def test_json_of_both(cache, tmp_path):
    done = kvist("cache", "export", cache, LEAF, tmp_path / "x.kvb", "--json")
    told = json.loads(done.stdout)
    assert (told["records"], told["data_bytes"], told["about"]["tenant"]) == (6, 6 * DATA_BYTES, "ada")
    told = json.loads(fine(kvist("cache", "import", tmp_path / "x.kvb", tmp_path / "y", "--create", "--json")))
    assert (told["stored"], told["known"], told["lost"]) == (6, 0, 0)


def test_records_of_several_groups_go_together(tmp_path):
    """Group and shard are the end of an id: one key names the chains of all of them."""
    first, second = chain("both", 4), chain("both", 4, place=b"\1\0")
    cache = filled(tmp_path / "cache", first, second)
    (told,) = json.loads(fine(kvist("cache", "ls", cache, "--json")))
    assert told["records"] == 8 and told["tokens"] == 64 and len(told["ids"]) == 2
    fine(kvist("cache", "export", cache, told["id"][:12], tmp_path / "both.kvb"))
    fine(kvist("cache", "import", tmp_path / "both.kvb", tmp_path / "new", "--create"))
    assert ids_in(tmp_path / "new") == ids_of(first, second)


def test_what_is_there_is_overwritten_only_by_force(cache, file):
    old = file.read_bytes()
    one_line_error(kvist("cache", "export", cache, LEAF, file), 2, "is there already", "--force")
    assert file.read_bytes() == old
    fine(kvist("cache", "export", cache, LEAF, file, "--force"))
    assert file.read_bytes() != old


def test_wrong_exports_leave_nothing(cache, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    for id, where, parts in (
        ("feed", out / "x", ["no record feed"]),
        ("nothex", out / "x", ["is no id"]),
        (LEAF, out, ["cannot be written"]),
        (LEAF, tmp_path / "no" / "x", ["cannot be written"]),
    ):
        one_line_error(kvist("cache", "export", cache, id, where), 2, *parts)
    one_line_error(kvist("cache", "export", tmp_path / "gone", LEAF, out / "x"), 2, "there is no folder")
    assert not list(out.iterdir()) and not (tmp_path / "gone").exists()


def test_a_chain_that_is_not_whole_is_not_exported(cache, tmp_path):
    from cache_kit import disk

    tier = disk(cache)
    tier.delete(ids=[LONG[1].label.id])
    tier.close()
    one_line_error(kvist("cache", "export", cache, LEAF, tmp_path / "x"), 2, "first 2 records are not there")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("cut", [0, 10, 100, -1])
def test_a_bad_file_changes_nothing(cache, file, tmp_path, cut):
    bad = tmp_path / "bad"
    bad.write_bytes(file.read_bytes()[:cut])
    before = ids_in(cache)
    one_line_error(kvist("cache", "import", bad, cache, "--json"), 2, "is refused")
    assert ids_in(cache) == before


def test_a_file_of_another_model_is_refused_when_asked(file, cache):
    done = kvist("cache", "import", file, cache, "--origin", OTHER_ORIGIN.hex(), "--json")
    one_line_error(done, 2, "another model", ORIGIN.hex())
    one_line_error(kvist("cache", "import", file, cache, "--origin", "7a", "--json"), 2, "32 hex digits")
    fine(kvist("cache", "import", file, cache, "--origin", ORIGIN.hex()))


def test_no_cache_is_made_by_mistake(file, tmp_path):
    new, full = tmp_path / "new", tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("x")
    one_line_error(kvist("cache", "import", file, new, "--json"), 2, "there is no folder")
    one_line_error(kvist("cache", "import", file, full, "--json"), 2, "is no cache of kvist")
    one_line_error(kvist("cache", "import", file, full, "--create", "--json"), 2, "--create", "empty")
    assert not new.exists() and snapshot(full) == {"mine": b"x"}


def test_a_place_too_small_keeps_a_whole_beginning(tmp_path):
    big = chain("big", 30, data_bytes=1 << 17)
    cache = filled(tmp_path / "cache", big)
    fine(kvist("cache", "export", cache, big[29].label.id.hex(), tmp_path / "big.kvb"))
    small = filled(tmp_path / "small", chain("one", 1))
    done = kvist("cache", "import", tmp_path / "big.kvb", f"disk:{small}?size=3MiB&reserve=0B")
    assert done.returncode == 1 and "of 30 records: full" in done.stderr
    taken = ids_in(small) - ids_of(chain("one", 1))
    assert 3 < len(taken) < 30 and taken == ids_of(big[: len(taken)])


@pytest.mark.parametrize("at", [1, 3, 6])
def test_an_interrupted_export_leaves_no_file(cache, tmp_path, at, monkeypatch):
    import contextlib

    from kvist.cli.cache import move

    @contextlib.contextmanager
    def bar(title):
        def tell(done, total):
            if done == at * DATA_BYTES:
                raise KeyboardInterrupt

        yield tell

    monkeypatch.setattr(move, "byte_bar", bar)
    out = tmp_path / "out"
    out.mkdir()
    (out / "s.kvb").write_text("old")
    assert kvist("cache", "export", cache, LEAF, out / "s.kvb", "--force").returncode == 130
    assert snapshot(out) == {"s.kvb": b"old"} and os.listdir(out) == ["s.kvb"]
