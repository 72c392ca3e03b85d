"""What is exported is whole: a failed export leaves what was there before it."""

import os

import pytest
from seal_kit import Shelf, chain, ids_of

from kvist.errors import StateError, UsageError
from kvist.tier import bundle
from kvist.tier.bundle import write_bundle

ABOUT = {"model": "tiny"}


def shelf_of(records):
    shelf = Shelf()
    shelf.put_many(records, timeout_s=1)
    return shelf


@pytest.fixture
def path(tmp_path):
    return tmp_path / "session.kvb"


@pytest.mark.parametrize("j", [0, 2, 4])
def test_what_the_tier_has_not_wholly_is_not_exported(path, j):
    records = chain(5)
    shelf = shelf_of(records)
    del shelf.held[records[j].label.id]
    path.write_bytes(b"old")
    with pytest.raises(UsageError, match=f"record {j} of 5 could not be read from tier shelf: missing"):
        write_bundle(path, shelf, ids_of(records), ABOUT, record_bytes=64)
    assert path.read_bytes() == b"old" and os.listdir(path.parent) == [path.name]


def test_nothing_half_a_chain_and_too_much_to_say_are_not_exported(path):
    records = chain(3)
    shelf = shelf_of(records)
    for ids, about, match in (
        ([], ABOUT, "nothing to export"),
        (ids_of(records[1:]), ABOUT, "no chain"),
        (ids_of([records[0], records[2]]), ABOUT, "no chain"),
        (ids_of(records), {"long": "x" * (1 << 20)}, "at most 1048576 bytes"),
    ):
        with pytest.raises(UsageError, match=match):
            write_bundle(path, shelf, ids, about, record_bytes=64)
    assert not os.listdir(path.parent)


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_disk_that_fails_leaves_the_old_file(path, call, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    path.write_bytes(b"old")
    monkeypatch.setattr(bundle.os, call, fail)
    with pytest.raises(StateError, match="No space left on device; the old file is as it was"):
        write_bundle(path, shelf_of(chain(2)), ids_of(chain(2)), ABOUT, record_bytes=64)
    monkeypatch.undo()
    assert path.read_bytes() == b"old" and os.listdir(path.parent) == [path.name]
    with pytest.raises(StateError, match="cannot be written"):
        write_bundle(path.parent / "none" / "x", shelf_of(chain(2)), ids_of(chain(2)), ABOUT, record_bytes=64)


def test_what_a_killed_export_left_is_removed_and_one_that_runs_is_not(path):
    left, foreign = path.with_name(".bundle-x1.part"), path.with_name(".bundle-notes")
    left.write_bytes(b"words of somebody"), foreign.write_bytes(b"")
    shelf = shelf_of(chain(2))
    real, during = shelf.get_many_into, path.with_name("other.kvb")

    def get(*args, **more):
        if not during.exists():
            during.write_bytes(b"")
            write_bundle(during, shelf, ids_of(chain(2)), ABOUT, record_bytes=64)
        return real(*args, **more)

    shelf.get_many_into = get
    write_bundle(path, shelf, ids_of(chain(2)), ABOUT, record_bytes=64)
    assert sorted(os.listdir(path.parent)) == sorted((foreign.name, path.name, during.name))
    assert path.read_bytes() == during.read_bytes()
