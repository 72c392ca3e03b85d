"""Killed at any step of a write, a keyring and a bundle are the old or the new one, and no secret lies beside it."""

import os

import pytest
from seal_kit import ORIGIN, Shelf, chain, ids_of

from kvist.tier import bundle, private_file
from kvist.tier.bundle import write_bundle
from kvist.tier.bundle_read import read_bundle
from kvist.tier.keyring import Keyring

MASTER = bytes(range(32))
CALLS = ("fsync", "replace", "unlink", "open")


def killed_at(work, step, after):
    """Do ``work`` in a child that dies before (or after) the ``step``-th call. Whether it got to its end."""
    child = os.fork()
    if not child:
        try:
            count = [0]

            class Deadly:
                def __getattr__(self, name):
                    real = getattr(os, name)
                    if name not in CALLS:
                        return real

                    def call(*args, **more):
                        count[0] += 1
                        if count[0] == step and not after:
                            os._exit(9)
                        answer = real(*args, **more)
                        if count[0] == step:
                            os._exit(9)
                        return answer

                    return call

            private_file.os = bundle.os = Deadly()
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def every_step(work, check):
    ended = 0
    for after in (False, True):
        for step in range(1, 40):
            how = killed_at(work, step, after)
            assert how in (0, 9)
            check()
            if how == 0:
                ended += step > 3
                break
    assert ended == 2


def test_a_keyring(tmp_path):
    pytest.importorskip("cryptography", reason="sealing needs the package cryptography")
    path = tmp_path / "keys"
    ring = Keyring(path, MASTER)
    kept, old = ring.key("kept"), ring.key("a")
    wrapped = [line for line in path.read_bytes().splitlines() if b'"a"' in line][0]

    def check():
        found = Keyring(path, MASTER)
        assert found.find("kept") == kept and found.find("a") in (None, old)
        if found.find("a") is None:
            assert not any(wrapped in p.read_bytes() for p in tmp_path.iterdir()), "nothing beside has it"
            before = set(tmp_path.iterdir())
            found._keys["a"] = old
            found._write(found._cipher, MASTER)
            assert before - set(tmp_path.iterdir()) <= {tmp_path / "keys.part"}

    every_step(lambda: Keyring(path, MASTER).forget("a"), check)
    Keyring(path, MASTER).key("b")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["keys", "keys.lock"]


def test_a_bundle(tmp_path):
    path, shelf, old, new = tmp_path / "s.kvb", Shelf(), chain(2), chain(3)
    shelf.put_many(new, timeout_s=1)

    def export(records):
        write_bundle(path, shelf, ids_of(records), {}, record_bytes=64)

    export(old)

    def check():
        assert read_bundle(path, Shelf(), origin=ORIGIN).stored in (2, 3)
        export(old)
        assert os.listdir(tmp_path) == [path.name], "what a killed export left is gone"

    every_step(lambda: export(new), check)
