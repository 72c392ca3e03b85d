"""``kvist cache stat``, ``ls`` and ``verify``: what is there is said, and looking changes nothing."""

import json
import sqlite3
import subprocess
import sys

import pytest
from cache_kit import (
    BLOCK_TOKENS,
    DATA_BYTES,
    ORIGIN,
    OTHER_ORIGIN,
    chain,
    disk,
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
BOBS = chain("bobs", 3, tenant="bob\x1b[31m", origin=OTHER_ORIGIN)


@pytest.fixture
def cache(tmp_path):
    return filled(tmp_path / "cache", LONG, FORK, BOBS)


def flip(folder, record):
    """One bit of a record's bytes, on the disk."""
    for slab in folder.glob("slab-*"):
        data = bytearray(slab.read_bytes())
        at = data.find(bytes(record.data))
        if at >= 0:
            data[at + 100] ^= 1
            slab.write_bytes(data)
            return
    raise AssertionError("the record is in no slab")


def same_but_sqlites_own(before, after):
    def ours(files):
        return {n: b for n, b in files.items() if not n.endswith(("-shm", "-wal"))}

    return ours(before) == ours(after)


def test_stat_says_what_is_there(cache):
    (cache / "notes.txt").write_text("mine")
    before = snapshot(cache)
    told = json.loads(fine(kvist("cache", "stat", cache, "--json")))
    assert told["records"] == 11 and told["condition"] == "ok" and told["foreign_files"] == 1
    assert told["used_bytes"] == 11 * (DATA_BYTES + 4096) and not told["sealed"]
    assert told["capacity_bytes"] == 10 << 30 and told["capacity_is_default"]
    assert told["on_disk_bytes"] >= told["used_bytes"] and told["reserve_bytes"] == 1 << 30
    assert told["origins"] == [
        {"origin": ORIGIN.hex(), "records": 8, "data_bytes": 8 * DATA_BYTES},
        {"origin": OTHER_ORIGIN.hex(), "records": 3, "data_bytes": 3 * DATA_BYTES},
    ]
    assert [(t["tenant"], t["records"]) for t in told["tenants"]] == [("ada", 8), ("bob\x1b[31m", 3)]
    assert same_but_sqlites_own(before, snapshot(cache))
    shown = fine(kvist("cache", "stat", cache))
    assert "10 GiB (what a folder without a size may take)" in shown and ORIGIN.hex() in shown
    assert "bob?[31m" in shown and "\x1b" not in shown
    quick = json.loads(fine(kvist("cache", "stat", cache, "--json", "--quick")))
    assert quick["origins"] is None and quick["records"] == 11


def test_ls_lists_chains_by_their_last_records(cache):
    before = snapshot(cache)
    chains = json.loads(fine(kvist("cache", "ls", cache, "--json", "--sort", "tokens")))
    assert [c["id"] for c in chains] == [r[-1].label.id.hex() for r in (LONG, FORK, BOBS)]
    assert [(c["records"], c["tokens"], c["data_bytes"]) for c in chains] == [
        (n, n * BLOCK_TOKENS, n * DATA_BYTES) for n in (6, 5, 3)
    ]
    assert all(c["whole"] and "first_tokens" not in c for c in chains)
    assert sorted(c["last_use"] for c in chains) == [1, 2, 3]
    assert same_but_sqlites_own(before, snapshot(cache))


def test_ls_of_a_tenant_of_a_model_and_few(cache):
    def listed(*args):
        return [c["id"] for c in json.loads(fine(kvist("cache", "ls", cache, "--json", *args)))]

    assert listed("--tenant", "bob\x1b[31m") == listed("--origin", "7a7A") == [BOBS[-1].label.id.hex()]
    assert listed("--tenant", "nobody") == [] and len(listed("--limit", "2")) == 2 and len(listed("--limit", "0")) == 3
    assert listed("--sort", "id") == sorted(listed())
    shown = fine(kvist("cache", "ls", cache, "--limit", "1"))
    assert "1 of 3 chains; 11 records" in shown and "0, 1, 2" not in shown


def test_ls_orders_by_last_use_and_counts_hits(cache):
    tier = disk(cache)
    for record in LONG:
        tier.get_many_into([record.label.id], [memoryview(bytearray(DATA_BYTES))], timeout_s=5)
    tier.close()
    first, *_ = json.loads(fine(kvist("cache", "ls", cache, "--json")))
    assert first["id"] == LONG[-1].label.id.hex() and first["last_use"] == 1 and first["hits"] == 1


def test_tokens_are_shown_only_when_asked_for(cache):
    done = kvist("cache", "ls", cache, "--tokens", "--tenant", "ada")
    assert "0, 1, 2" in done.stdout and "what people wrote" in done.stderr
    told = json.loads(fine(kvist("cache", "ls", cache, "--tokens", "--json")))
    assert all(c["first_tokens"] == list(range(8)) for c in told)


def test_a_chain_without_its_beginning_is_marked(cache):
    tier = disk(cache)
    tier.delete(ids=[LONG[1].label.id])
    tier.close()
    chains = json.loads(fine(kvist("cache", "ls", cache, "--json", "--tenant", "ada")))
    assert not chains[0]["whole"] and {c["records"] for c in chains} == {1, 4, 3}
    assert "its beginning is not there" in fine(kvist("cache", "ls", cache))


def test_verify_reads_all_and_drops_what_is_damaged(cache):
    assert "11 records good" in fine(kvist("cache", "verify", cache))
    flip(cache, LONG[4])
    done = kvist("cache", "verify", cache, "--json")
    assert done.returncode == 1 and done.stderr == ""
    told = json.loads(done.stdout)
    assert (told["good"], told["damaged"], told["removed"]) == (10, 1, True)
    assert ids_in(cache) == ids_of(LONG, FORK, BOBS) - {LONG[4].label.id}
    assert json.loads(fine(kvist("cache", "stat", cache, "--json")))["damaged_records"] == 1
    assert kvist("cache", "verify", cache).returncode == 0


def test_a_small_size_in_the_environment_evicts_nothing(tmp_path):
    """What servers are told is a bound for servers: a tool that looks or tidies must not lose records over it."""
    big = chain("big", 24, data_bytes=1 << 17)
    cache = filled(tmp_path / "cache", big)
    small = {"KVIST_TIER": f"disk:{cache}?size=1MiB"}
    told = json.loads(fine(kvist("cache", "stat", "--json", env=small)))
    assert told["capacity_bytes"] == 1 << 20 and not told["capacity_is_default"]
    for command in (["verify"], ["gc"], ["rm", "--tenant", "nobody"]):
        fine(kvist("cache", *command, env=small))
    assert ids_in(cache) == ids_of(big)


def test_a_place_comes_from_the_environment_or_the_config_file(cache, tmp_path):
    config = tmp_path / "kvist.toml"
    config.write_text(f'tier = ["ram:1GiB", "redis://127.0.0.1:1", "disk:{cache}?size=2GiB&reserve=3MiB"]\nport = 1\n')
    told = json.loads(fine(kvist("cache", "stat", "--json", "--config", config)))
    assert told["place"] == str(cache) and (told["capacity_bytes"], told["reserve_bytes"]) == (2 << 30, 3 << 20)
    named = json.loads(fine(kvist("cache", "stat", cache, "--json", "--config", config)))
    assert named == {**told, "on_disk_bytes": named["on_disk_bytes"], "free_bytes": named["free_bytes"]}
    fine(kvist("cache", "stat", env={"KVIST_TIER": str(cache)}))
    fine(kvist("cache", "stat", env={"KVIST_CONFIG": str(config)}))


@pytest.mark.parametrize("command", ["stat", "ls", "verify", "gc", "rm --all --yes"])
def test_nothing_is_made_where_no_cache_is(command, tmp_path):
    missing, other = tmp_path / "missing", tmp_path / "other"
    other.mkdir()
    (other / "index.db").write_text("mine")
    file = tmp_path / "file"
    file.write_text("x")
    name, *flags = command.split()
    for place, said in ((missing, "there is no folder"), (other, "is no cache of kvist"), (file, "is no folder")):
        one_line_error(kvist("cache", name, place, *flags), 2, place, said)
    assert not missing.exists() and snapshot(other) == {"index.db": b"mine"}


@pytest.mark.parametrize(
    "args,parts",
    [
        ([], ["no place was named", "KVIST_TIER"]),
        ([""], ["place=''"]),
        (["ram:1GiB"], ["ram:1GiB", "/metrics"]),
        (["disk:"], ["a folder, such as"]),
        (["disk:/tmp?bogus=1"], ["bogus"]),
        (["disk:/tmp?size=lots"], ["size='lots'"]),
        (["disk:/tmp?size"], ["options such as"]),
        (["gopher://x"], ["gopher", "redis:"]),
        (["--sort", "colour"], ["sort='colour'", "tokens"]),
        (["--limit", "-1"], ["limit=-1"]),
        (["--limit", "x"], ["--limit"]),
        (["--config", "/no/such.toml"], ["/no/such.toml"]),
    ],
)
def test_wrong_calls_exit_with_2_and_one_line(args, parts):
    one_line_error(kvist("cache", "ls", *args), 2, *parts)


def test_a_newer_format_and_a_damaged_index_are_told(cache):
    marker = (cache / "kvist-cache.json").read_text()
    (cache / "kvist-cache.json").write_text('{"format": 99}')
    for command in ("stat", "ls", "verify", "gc"):
        one_line_error(kvist("cache", command, cache), 1, "format 99", "upgrade kvist")
    (cache / "kvist-cache.json").write_text("{")
    one_line_error(kvist("cache", "stat", cache), 1, "does not say what format")
    (cache / "kvist-cache.json").write_text(marker)
    for name in ("index.db", "index.db-wal", "index.db-shm"):
        (cache / name).unlink(missing_ok=True)
    (cache / "index.db").write_bytes(b"no database" * 1000)
    one_line_error(kvist("cache", "stat", cache), 1, "cannot be opened", "kvist cache gc makes")
    fine(kvist("cache", "gc", cache))
    assert ids_in(cache) == ids_of(LONG, FORK, BOBS)


def test_a_server_that_does_not_answer_is_told():
    for command in ("stat", "ls", "verify"):
        one_line_error(kvist("cache", command, "redis://user:secret@127.0.0.1:1"), 1, "does not answer", "refused")
    assert "secret" not in kvist("cache", "stat", "redis://user:secret@127.0.0.1:1").stderr


def test_help_and_looking_need_no_torch(cache):
    code = f"""
import sys
sys.modules["torch"] = None
sys.argv = ["kvist", "cache", "ls", {str(cache)!r}]
from kvist.cli.entry import run
try:
    run()
finally:
    assert not [m for m in sys.modules if m.split(".")[0] in ("cryptography", "obstore", "mooncake", "zstandard")]
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "3 chains" in done.stdout, done.stderr


def test_beside_a_writer_that_is_busy(cache):
    """Who looks does not wait for who writes."""
    writer = sqlite3.connect(cache / "index.db", isolation_level=None)
    writer.execute("begin immediate")
    assert json.loads(fine(kvist("cache", "stat", cache, "--json")))["records"] == 11
    fine(kvist("cache", "ls", cache))
    writer.execute("rollback")
    writer.close()
