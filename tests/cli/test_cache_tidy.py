"""``kvist cache gc`` and ``rm``: what goes is gone for good, what shares with it stays, and nobody is surprised."""

import fcntl
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cache_kit import (
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

from kvist.tier.disk.store import DiskTier

LONG = chain("long", 6)
FORK = chain("fork", 2, below=LONG[2])
BOBS = chain("bobs", 3, tenant="bob", origin=OTHER_ORIGIN)
ALL = ids_of(LONG, FORK, BOBS)


@pytest.fixture
def cache(tmp_path):
    return filled(tmp_path / "cache", LONG, FORK, BOBS)


def held(folder, record):
    return any(bytes(record.data) in slab.read_bytes() for slab in folder.glob("slab-*"))


def test_a_chain_goes_with_what_only_it_has(cache):
    assert held(cache, LONG[5]) and held(cache, LONG[3])
    out = fine(kvist("cache", "rm", cache, "--id", LONG[5].label.id.hex()[:10], "--yes"))
    assert "3 records" in out
    assert ids_in(cache) == ALL - ids_of(LONG[3:])
    assert not held(cache, LONG[5]) and not held(cache, LONG[3]) and held(cache, LONG[2])


def test_from_the_middle_what_comes_after_goes_too(cache):
    told = json.loads(fine(kvist("cache", "rm", cache, "--id", LONG[2].label.id.hex(), "--yes", "--json")))
    assert told["removed_records"] == 8 and ids_in(cache) == ids_of(BOBS)


def test_several_chains_at_once(cache):
    ids = [arg for r in (FORK[1], BOBS[2]) for arg in ("--id", r.label.id.hex())]
    fine(kvist("cache", "rm", cache, *ids, "--yes"))
    assert ids_in(cache) == ids_of(LONG)
    fine(kvist("cache", "rm", cache, "--id", LONG[5].label.id.hex(), "--yes"))
    assert ids_in(cache) == set()


@pytest.mark.parametrize("flags", [("--tenant", "bob"), ("--origin", OTHER_ORIGIN.hex()), ("--origin", "7a")])
def test_a_tenant_or_a_model(cache, flags):
    assert "3 records" in fine(kvist("cache", "rm", cache, *flags, "--yes"))
    assert ids_in(cache) == ids_of(LONG, FORK) and not held(cache, BOBS[0])


def test_everything_also_what_cannot_be_listed(cache):
    (slab,) = cache.glob("slab-*")
    data = bytearray(slab.read_bytes())
    for record in BOBS:  # all that there is of this model: its name cannot be read any more
        data[data.find(OTHER_ORIGIN, data.find(record.label.id))] ^= 1
    slab.write_bytes(data)
    assert ids_in(cache) == ids_of(LONG, FORK)
    fine(kvist("cache", "rm", cache, "--all", "--yes"))
    told = json.loads(fine(kvist("cache", "stat", cache, "--json")))
    assert told["records"] == told["used_bytes"] == 0 and not list(cache.glob("slab-*"))


def test_it_asks_on_a_terminal_and_only_there(cache):
    one_line_error(kvist("cache", "rm", cache, "--all"), 2, "11 records", "--yes")
    for answer in ("n\n", "\n", "", "yesterday\n"):
        done = kvist("cache", "rm", cache, "--all", typed=answer)
        assert done.returncode == 1 and "[y/N]" in done.stderr and "nothing was removed" in done.stderr
    assert ids_in(cache) == ALL
    assert kvist("cache", "rm", cache, "--tenant", "bob", typed="y\n").returncode == 0
    assert ids_in(cache) == ids_of(LONG, FORK)


@pytest.mark.parametrize(
    "flags,parts",
    [
        ([], ["--id", "--tenant", "--all"]),
        (["--all", "--tenant", "bob"], ["name what is to go"]),
        (["--id", "feed"], ["no record feed"]),
        (["--id", "xyz"], ["'xyz' is no id"]),
        (["--id", ""], ["'' is no id"]),
        (["--id", "0" * 37], ["is no id"]),
        (["--origin", "ff"], ["origin='ff'"]),
        (["--origin", ""], ["origin=''"]),
    ],
)
def test_wrong_calls_remove_nothing(cache, flags, parts):
    one_line_error(kvist("cache", "rm", cache, *flags, "--yes"), 2, *parts)
    assert ids_in(cache) == ALL


def test_an_id_that_several_begin_with_names_them(tmp_path):
    many = [chain(f"c{n}", 1) for n in range(40)]
    cache = filled(tmp_path / "cache", *many)
    digit = max("0123456789abcdef", key=lambda d: sum(c[0].label.id.hex()[0] == d for c in many))
    done = kvist("cache", "rm", cache, "--id", digit, "--yes")
    one_line_error(done, 2, f"have ids that begin with {digit}", "say more of it")
    assert len(ids_in(cache)) == 40


def test_a_tenant_who_has_nothing_is_no_error(cache):
    assert "0 records" in fine(kvist("cache", "rm", cache, "--tenant", "nobody"))
    assert ids_in(cache) == ALL


def test_gc_gives_free_slots_back(cache):
    """A slab grows by many slots at a time; those that nothing is in yet are room for others."""
    before = json.loads(fine(kvist("cache", "stat", cache, "--json")))["on_disk_bytes"]
    told = json.loads(fine(kvist("cache", "gc", cache, "--json")))
    assert told["freed_bytes"] > 1 << 20 and told["on_disk_bytes"] < min(1 << 20, before)
    assert ids_in(cache) == ALL
    assert "came free" in fine(kvist("cache", "gc", cache))


def test_gc_is_for_folders(tmp_path):
    one_line_error(kvist("cache", "gc", "redis://127.0.0.1:1"), 2, "no disk tier")


def test_a_busy_index_is_told(cache):
    other = sqlite3.connect(cache / "index.db", isolation_level=None)
    other.execute("begin immediate")
    one_line_error(kvist("cache", "rm", cache, "--tenant", "bob", "--yes"), 1, str(cache))
    other.execute("rollback")
    other.close()
    assert ids_in(cache) == ALL


@pytest.mark.parametrize("command", [["gc"], ["rm", "--all", "--yes"]])
def test_a_place_that_can_only_be_read_stays_as_it_is(cache, command, monkeypatch):
    whole = DiskTier.open.__func__

    def read_only(cls, folder, **more):
        return whole(cls, folder, **{**more, "read_only": True})

    monkeypatch.setattr(DiskTier, "open", classmethod(read_only))
    one_line_error(kvist("cache", command[0], cache, *command[1:]), 1, "read-only", "nothing was changed")
    assert "11 records good" in fine(kvist("cache", "verify", cache))
    monkeypatch.undo()
    assert ids_in(cache) == ALL


def waits_for_a_lock(pid):
    return any(" -> " in line and f" {pid} " in line for line in Path("/proc/locks").read_text().splitlines())


def test_an_interrupt_while_it_waits_for_another_process(cache):
    """Somebody has the folder's gate: Ctrl-C ends the waiting, quietly, with 130."""
    before = snapshot(cache)
    with open(cache / "kvist-cache.lock", "r+") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        code = "import sys; print('up', flush=True); from kvist.cli.entry import run; run()"
        process = subprocess.Popen(
            [sys.executable, "-c", code, "cache", "gc", str(cache)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert process.stdout.readline() == "up\n"
        until = time.monotonic() + 30
        while not waits_for_a_lock(process.pid) and time.monotonic() < until:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in said and ids_in(cache) == ALL
    assert before.keys() <= snapshot(cache).keys()


@pytest.mark.parametrize("call,command", [("gc", ["gc"]), ("verify", ["verify"]), ("clear", ["rm", "--all", "--yes"])])
def test_an_interrupt_in_the_middle_leaves_a_sound_cache(cache, call, command, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(DiskTier, call, interrupted)
    assert kvist("cache", command[0], cache, *command[1:]).returncode == 130
    monkeypatch.undo()
    assert ids_in(cache) == ALL and not list(cache.glob("owner-*"))
    assert "11 records good" in fine(kvist("cache", "verify", cache))
