"""Kept answers under the tenants' keys."""

import pytest

from kvist.text.turn_file import TurnFile
from kvist.text.turn_store import TurnStore
from kvist.tier.keyring import Keyring
from kvist.tier.turn_seal import turn_seal

pytest.importorskip("cryptography", reason="sealing needs the package cryptography")

MASTER = bytes(range(32))
IDS = [0x5A5A5A5A] * 40


def attached(tmp_path, seal):
    store = TurnStore(10_000)
    return store, TurnFile.attach(store, tmp_path / "turns.db", side=b"s", seal=seal)


def test_they_come_back_with_the_key_and_go_with_it(tmp_path):
    ring = Keyring(tmp_path / "keys", MASTER)
    store, file = attached(tmp_path, turn_seal(ring))
    for owner in ("me", "you"):
        store.put([owner.encode() * 9], [], IDS, [1], owner)
    assert file.flush(5)
    file.close()
    raw = (tmp_path / "turns.db").read_bytes()
    assert bytes([0x5A] * 40) not in raw and b"meme" not in raw
    store, file = attached(tmp_path, turn_seal(Keyring(tmp_path / "keys", MASTER)))
    file.close()
    assert [*store.get(b"me" * 9).ids] == [*IDS, 1] and file.loaded == 2
    ring.forget("me")
    store, file = attached(tmp_path, turn_seal(ring))
    file.close()
    assert store.get(b"me" * 9) is None and store.get(b"you" * 9) and (file.loaded, file.unreadable) == (1, 1)


def test_ones_row_does_not_open_as_anothers_or_changed(tmp_path):
    seal = turn_seal(Keyring(tmp_path / "keys", MASTER))
    sealed = seal.close("me", b"words")
    seal.close("you", b"words")
    assert seal.open("me", sealed) == b"words" and seal.close("me", b"words") != sealed
    for owner, row in (("you", sealed), ("nobody", sealed), ("me", sealed[:-1]), ("me", b""), ("me", sealed[:12])):
        assert seal.open(owner, row) is None
    for at in range(len(sealed)):
        assert seal.open("me", sealed[:at] + bytes([sealed[at] ^ 4]) + sealed[at + 1 :]) is None


def test_while_the_keyring_is_bad_memory_serves_and_says_so(tmp_path):
    ring = Keyring(tmp_path / "keys", MASTER)
    store, file = attached(tmp_path, turn_seal(ring))
    (tmp_path / "keys").chmod(0o644)
    store.put([b"k"], [], IDS, [1], "me")
    assert not file.flush(0.2) and "chmod 600" in file.reason and store.get(b"k")
    (tmp_path / "keys").chmod(0o600)
    assert file.flush(5) and file.condition == "ok"
    file.close()
    assert attached(tmp_path, turn_seal(ring))[0].get(b"k")


def test_a_keyring_that_is_bad_at_the_start_costs_no_row(tmp_path):
    ring = Keyring(tmp_path / "keys", MASTER)
    store, file = attached(tmp_path, turn_seal(ring))
    store.put([b"k"], [], IDS, [1], "me")
    assert file.flush(5)
    file.close()
    (tmp_path / "keys").chmod(0o644)
    _, file = attached(tmp_path, turn_seal(ring))
    file.close()
    assert (file.loaded, file.unreadable) == (0, 0) and file.condition != "ok" and "chmod 600" in file.reason
    (tmp_path / "keys").chmod(0o600)
    store, file = attached(tmp_path, turn_seal(ring))
    file.close()
    assert store.get(b"k")
