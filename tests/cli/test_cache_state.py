"""What ``kvist cache`` says of places that are not as they should be: lost slabs, plain records, read-only, full."""

import json
import os
import subprocess
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from cache_kit import chain, disk, filled, fine, kvist

from kvist.cli.cache.facts import gather_facts
from kvist.cli.cache.place import place_of
from kvist.ids import RecordId
from kvist.tier.base import Entry, Label, Usage
from kvist.tier.tenant_cipher import SEAL_BYTES

LONG = chain("long", 6)
WIDE = chain("wide", 3, data_bytes=65536)


@pytest.fixture
def cache(tmp_path):
    return filled(tmp_path / "cache", LONG, WIDE)


def slab(cache, slot_bytes):
    (path,) = cache.glob(f"slab-{slot_bytes}-*.kvs")
    return path


def stat(*args, **more):
    return json.loads(fine(kvist("cache", "stat", *args, "--json", **more)))


@pytest.mark.parametrize("how,gone,words", [("removed", 6, "is gone"), ("cut", 4, "is cut short")])
def test_verify_counts_and_names_what_is_lost(cache, how, gone, words):
    path = slab(cache, 12288)
    if how == "removed":
        path.unlink()
    else:
        os.truncate(path, 2 * 12288 + 7)
    done = kvist("cache", "verify", cache, "--json")
    told = json.loads(done.stdout)
    assert done.returncode == 1 and (told["good"], told["damaged"], told["lost"]) == (9 - gone, 0, gone)
    (one,) = told["lost_with"]
    assert (one["file"], one["records"]) == (path.name, gone) and words in one["what"]
    assert stat(cache)["damaged_records"] == gone
    assert kvist("cache", "verify", cache).returncode == 0, "it is said once, and stays counted"


def test_verify_says_it_to_people(cache):
    slab(cache, 69632).unlink()
    with slab(cache, 12288).open("r+b") as file:
        file.seek(5000)
        file.write(b"xyz")
    done = kvist("cache", "verify", cache)
    assert done.returncode == 1 and "5 records good" in done.stdout and "1 damaged" in done.stdout
    assert "damaged: 1 record in slab-12288-1.kvs" in done.stdout
    assert "lost: slab-69632-2.kvs is gone, and with it 3 records" in done.stdout


def test_a_sound_place_has_nothing_lost(cache):
    told = json.loads(fine(kvist("cache", "verify", cache, "--json")))
    assert (told["lost"], told["lost_with"], told["damaged_in"]) == (0, [], {})


def test_plain_records_beside_sealed_ones_are_counted(cache, tmp_path):
    pytest.importorskip("cryptography")
    from kvist.tier.keyring import Keyring
    from kvist.tier.master_key import read_master_key
    from kvist.tier.seal import Sealed

    assert (stat(cache)["sealed"], stat(cache)["sealed_records"], stat(cache)["plain_records"]) == (False, 0, 9)
    fine(kvist("cache", "keygen", tmp_path / "key"))
    keyring = Keyring(cache / "tenants.keys", read_master_key(tmp_path / "key"))
    filled(cache, chain("later", 4, tenant="bob"), wrap=lambda tier: Sealed(tier, keyring))
    told = stat(cache)
    assert (told["sealed"], told["sealed_records"], told["plain_records"]) == (True, 4, 9)
    shown = " ".join(fine(kvist("cache", "stat", cache)).replace("│", "").split())
    assert "9 records of before lie plain beside 4 sealed" in shown
    assert stat(cache, "--quick")["plain_records"] is None
    (cache / "tenants.keys").rename(tmp_path / "tenants.keys")
    shown = " ".join(fine(kvist("cache", "stat", cache)).replace("│", "").split())
    assert not stat(cache)["sealed"] and "4 records are sealed, and there are no keys" in shown


def test_only_sealed_records_are_a_plain_yes(tmp_path):
    pytest.importorskip("cryptography")
    from kvist.tier.keyring import Keyring
    from kvist.tier.master_key import read_master_key
    from kvist.tier.seal import Sealed

    fine(kvist("cache", "keygen", tmp_path / "key"))
    disk(tmp_path / "c").close()
    keyring = Keyring(tmp_path / "c" / "tenants.keys", read_master_key(tmp_path / "key"))
    filled(tmp_path / "c", LONG, wrap=lambda tier: Sealed(tier, keyring))
    shown = fine(kvist("cache", "stat", tmp_path / "c"))
    assert "with a key of his own" in shown and "plain" not in shown


def test_a_place_opened_to_read_says_so(cache):
    told = stat(f"disk:{cache}?size=1GiB&read_only=on")
    assert told["condition"] == "read-only" and "read_only=on" in told["reason"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_read_only_file_system_is_told(cache, tmp_path):
    assert stat(cache)["condition"] == "ok"
    view = tmp_path / "view"
    view.mkdir()
    for args in (["--bind", cache, view], ["-o", "remount,bind,ro", view]):
        done = subprocess.run(["mount", *map(str, args)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    try:
        told = stat(view)
        assert told["condition"] == "read-only" and "mounted to read only" in told["reason"] and told["records"] == 9
        done = kvist("cache", "verify", view)
        assert done.returncode == 0 and "9 records good" in done.stdout, done
    finally:
        subprocess.run(["umount", "-l", str(view)], capture_output=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody who may not write")
@pytest.mark.parametrize("what", ["folder", "index"])
def test_what_this_user_may_not_write_is_told(what):
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        cache = filled(Path(place) / "c", LONG)
        for file in cache.iterdir():
            file.chmod(0o666)
        cache.chmod(0o555 if what == "folder" else 0o777)
        if what == "index":
            (cache / "index.db").chmod(0o444)
        os.seteuid(65534)
        try:
            told = stat(cache)
        finally:
            os.seteuid(0)
        assert told["condition"] == "read-only" and ("index.db" if what == "index" else "the folder") in told["reason"]


def test_too_little_free_space_names_what_to_change(cache):
    told = stat(f"disk:{cache}?size=1GiB&reserve=1000000GiB")
    assert told["condition"] == "ok" and "reserve of 1e+06 GiB" in told["reason"] and "reserve=SIZE" in told["reason"]
    assert "--tier" in told["reason"] and "disk:FOLDER?size=SIZE&reserve=SIZE" in told["reason"]


class Streaming:
    """Records one by one, each with long tokens."""

    name = "s3"
    long = 1 << 20

    def list(self):
        for at in range(30):
            label = Label(RecordId(b"%018d" % at), RecordId(b""), b"o" * 16, 0, "ada", bytes(self.long))
            yield Entry(label, 8192 + (SEAL_BYTES if at % 3 == 0 else 0), 12288, 0, 0)

    def usage(self):
        return Usage(30, 30 * 8192, None)


def test_stat_counts_records_as_they_come_and_holds_none(tmp_path):
    """Each has all tokens of its block with it: a place with many would not fit into memory."""
    tracemalloc.start()
    facts = gather_facts(place_of({"place": "s3://bucket"}), Streaming(), count=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (facts.sealed_records, facts.plain_records) == (10, 20)
    (share,) = facts.tenants
    assert (share.name, share.records, share.data_bytes) == ("ada", 30, 30 * 8192 + 10 * SEAL_BYTES)
    assert peak < 5 * Streaming.long
