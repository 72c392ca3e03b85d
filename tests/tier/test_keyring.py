"""Tenants' keys in a file: what it refuses, what it destroys, and several processes with one file."""

import json
import sys
import threading
from base64 import b64encode

import pytest

from kvist.errors import BadValue, KvistError, StateError, UsageError
from kvist.tier import private_file
from kvist.tier.keyring import Keyring
from kvist.tier.master_key import new_master_key, read_master_key, write_master_key

pytest.importorskip("cryptography", reason="sealing needs the package cryptography")

MASTER = bytes(range(32))
OTHER = bytes(32)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "keys.json"


def test_keys_come_back_and_are_as_many_as_tenants(path):
    ring = Keyring(path, MASTER)
    keys = {name: ring.key(name) for name in ("", "a", "b", "ü/..\n", "x" * 255)}
    assert len(set(keys.values())) == 5 and {len(key) for key in keys.values()} == {32}
    assert ring.key("a") == keys["a"] and ring.find("c") is None
    again = Keyring(path, MASTER)
    assert {name: again.find(name) for name in keys} == keys and again.tenants() == sorted(keys)
    with pytest.raises(BadValue, match="255 bytes"):
        ring.key("ü" * 128)


def test_the_file_shows_no_key_and_only_its_owner_may_open_it(path):
    ring = Keyring(path, MASTER)
    key = ring.key("a")
    text = path.read_bytes()
    for secret in (key, MASTER):
        assert secret not in text and secret.hex().encode() not in text and b64encode(secret) not in text
    assert path.stat().st_mode & 0o777 == 0o600
    for mode in (0o640, 0o604, 0o644, 0o620):
        path.chmod(mode)
        with pytest.raises(UsageError, match=f"chmod 600 {path}"):
            Keyring(path, MASTER)


def test_a_wrong_master_key_a_truncated_file_and_another_version_are_told_apart(path):
    Keyring(path, MASTER).key("a")
    whole = path.read_bytes()
    with pytest.raises(UsageError, match="master key is not the one"):
        Keyring(path, OTHER)
    for length in range(len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(UsageError, match="damaged"):
            Keyring(path, MASTER)
    told = json.loads(whole)
    for version in (2, None, "1"):
        path.write_text(json.dumps(told | {"kvist_keyring": version}))
        with pytest.raises(UsageError, match="version"):
            Keyring(path, MASTER)
    path.write_bytes(whole)
    assert Keyring(path, MASTER).tenants() == ["a"]


def test_whatever_byte_changes_no_wrong_key_comes_out(path):
    right = Keyring(path, MASTER).key("a")
    whole = path.read_bytes()
    for at in range(len(whole)):
        for flip in (1, 0x80):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
            try:
                keys = [Keyring(path, MASTER).find(name) for name in Keyring(path, MASTER).tenants()]
            except UsageError:
                continue
            assert keys in ([], [right])


def test_one_tenants_wrapped_key_is_not_anothers(path):
    ring = Keyring(path, MASTER)
    ring.key("a"), ring.key("b")
    told = json.loads(path.read_text())
    told["keys"]["b"] = told["keys"]["a"]
    path.write_text(json.dumps(told))
    with pytest.raises(UsageError, match="damaged"):
        Keyring(path, MASTER)


def test_things_that_are_no_file_are_refused(path, tmp_path):
    (tmp_path / "real").write_text("{}")
    path.symlink_to(tmp_path / "real")
    with pytest.raises(UsageError, match="cannot be read"):
        Keyring(path, MASTER)
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="cannot be read"):
        Keyring(path, MASTER)
    path.unlink()
    path.mkdir(mode=0o700)
    with pytest.raises(UsageError, match="cannot be read"):
        Keyring(path, MASTER)
    with pytest.raises(UsageError, match="cannot be locked"):
        Keyring(tmp_path / "none" / "keys", MASTER)
    for short in (b"", MASTER[:31], MASTER + b"x"):
        with pytest.raises(BadValue, match="32 bytes"):
            Keyring(tmp_path / "k", short)


def test_a_forgotten_key_is_nowhere_and_the_next_is_another(path):
    ring, beside = Keyring(path, MASTER), Keyring(path, MASTER)
    old, kept = ring.key("a"), ring.key("b")
    assert beside.find("a") == old
    with open(path, "rb") as file:  # what a reader of the old file still has
        wrapped = json.loads(file.read())["keys"]["a"].encode()
        assert ring.forget("a") and not ring.forget("a")
        file.seek(0)
        assert set(file.read()) == {0}, "the old content is overwritten"
    assert wrapped not in path.read_bytes() and "a" not in ring.tenants()
    assert ring.find("a") is None and beside.find("a") is None and Keyring(path, MASTER).find("a") is None
    assert beside.key("a") != old and ring.find("a") == beside.find("a") and ring.find("b") == kept


def test_another_master_key_opens_the_same_keys(path):
    ring, beside = Keyring(path, MASTER), Keyring(path, MASTER)
    key = ring.key("a")
    ring.rewrap(OTHER)
    assert ring.find("a") == key == Keyring(path, OTHER).find("a") and ring.key("b")
    with pytest.raises(UsageError, match="master key is not the one"):
        Keyring(path, MASTER)
    with pytest.raises(UsageError, match="master key is not the one"):
        beside.find("a")
    with pytest.raises(BadValue, match="32 bytes"):
        ring.rewrap(b"short")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(path, monkeypatch, call):
    ring = Keyring(path, MASTER)
    key = ring.key("a")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(private_file.os, call, fail)
    for change in (lambda: ring.key("b"), lambda: ring.forget("a"), lambda: ring.rewrap(OTHER)):
        with pytest.raises(StateError, match="No space left"):
            change()
    monkeypatch.undo()
    assert ring.tenants() == ["a"] and ring.find("a") == key == Keyring(path, MASTER).find("a")
    assert {p.name for p in path.parent.iterdir()} == {"keys.json", "keys.json.lock"}


def test_processes_that_begin_at_once_agree_on_every_key(path):
    """Eight threads with a keyring each stand in for processes: the lock is the file's."""
    found = [{} for _ in range(8)]

    def work(mine):
        ring = Keyring(path, MASTER)
        for n in range(6):
            mine[n] = ring.key(f"t{n}")

    threads = [threading.Thread(target=work, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found[0]) == 6 and all(mine == found[0] for mine in found)


def test_master_keys_are_read_from_hex_and_base64_and_never_shown(tmp_path):
    assert len(bytes.fromhex(new_master_key())) == 32 and new_master_key() != new_master_key()
    key = bytes(range(224, 256))
    for text in (key.hex(), key.hex().upper(), b64encode(key).decode(), b64encode(key).decode().rstrip("=")):
        assert read_master_key(environ={"KVIST_CACHE_KEY": text + "\n"}) == key
    assert read_master_key(environ={"KVIST_CACHE_KEY": b64encode(key, b"-_").decode()}) == key
    for bad in ("", "secret", key.hex()[:-1], key.hex()[:-1] + "g", b64encode(key[:31]).decode(), "ü" * 64):
        with pytest.raises(BadValue, match="64 hex digits") as error:
            read_master_key(environ={"KVIST_CACHE_KEY": bad})
        assert not bad or bad not in str(error.value)
    with pytest.raises(UsageError, match="set KVIST_CACHE_KEY"):
        read_master_key(environ={})
    file = tmp_path / "master"
    write_master_key(file)
    assert len(read_master_key(file)) == 32 and file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageError, match="already"):
        write_master_key(file)
    file.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        read_master_key(file)
    for nothing in (tmp_path / "no", tmp_path):
        with pytest.raises(KvistError, match="cannot be read|opened by others"):
            read_master_key(nothing)
    with pytest.raises(UsageError, match="could be written"):
        write_master_key(tmp_path / "no" / "master")


def test_without_the_package_the_remedy_is_named(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(UsageError, match="pip install cryptography"):
        Keyring(path, MASTER)
