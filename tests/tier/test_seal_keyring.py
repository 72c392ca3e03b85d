"""A sealed tier while its keyring changes, goes bad and comes back."""

import logging

import pytest
from seal_kit import Shelf, chain, got, hits, ids_of, with_tenant

from kvist.tier.keyring import Keyring
from kvist.tier.seal import Sealed

pytest.importorskip("cryptography", reason="sealing needs the package cryptography")

MASTER = bytes(range(32))


@pytest.fixture
def sealed(tmp_path):
    return Sealed(Shelf(), Keyring(tmp_path / "keys", MASTER))


def test_a_key_that_another_process_replaced_is_used_at_once(sealed, tmp_path):
    view, beside = sealed.view("a"), Keyring(tmp_path / "keys", MASTER)
    view.put_many(records := chain(2, tenant="a"), timeout_s=5)
    beside.forget("a")
    beside.key("a")
    assert view.exists_many(ids_of(records)) == [False] * 2
    assert view.put_many(records, timeout_s=5) == ["stored"] * 2
    assert got(Sealed(sealed.inner, beside).view("a"), records) == hits(records)


def test_a_keyring_that_goes_bad_is_a_condition_and_comes_back(sealed, tmp_path, caplog):
    records, path = chain(2, tenant="a"), tmp_path / "keys"
    view = sealed.view("a")
    view.put_many(records, timeout_s=5)
    path.chmod(0o644)
    path.write_bytes((good := path.read_bytes()) + b"x")
    with caplog.at_level(logging.WARNING, "kvist.tier"):
        for _ in range(3):
            assert view.exists_many(ids_of(records)) == [False] * 2
            assert [how for how, _, _ in got(view, records)] == ["error"] * 2
            assert [how for how, _, _ in got(sealed, records)] == ["error"] * 2
            assert view.put_many(records, timeout_s=5) == ["off"] * 2
            assert not list(view.list()) and sealed.drop_unreadable() == 0
        assert sealed.usage().condition == "off" and "chmod 600" in sealed.usage().reason
        path.write_bytes(good)
        path.chmod(0o600)
        assert got(view, records) == hits(records) and sealed.usage().condition == "ok"
    assert len(caplog.records) == 2 and "again" in caplog.messages[1]


def test_a_key_that_cannot_be_written_takes_only_the_new_tenant_out(sealed, tmp_path, monkeypatch):
    records = chain(2, tenant="a")
    sealed.view("a").put_many(records, timeout_s=5)
    with monkeypatch.context() as patch:
        patch.setattr("kvist.tier.private_file.os.fsync", _no_room)
        new = with_tenant(records, "b")
        assert sealed.view("b").put_many(new, timeout_s=5) == ["off"] * 2
        assert sealed.usage().condition == "ok" and sealed.inner.held
        assert got(sealed.view("a"), records) == hits(records) and sealed.usage().condition == "ok"
        assert sealed.view("x" * 256).put_many(with_tenant(records, "x" * 256), timeout_s=5) == ["off"] * 2
    assert sealed.view("b").put_many(new, timeout_s=5) == ["stored"] * 2


def _no_room(_):
    raise OSError(28, "No space left on device")
