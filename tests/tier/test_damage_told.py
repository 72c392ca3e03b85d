"""Damage that a load finds is one line in the log, wherever the records lie, and never a line for each."""

import logging

import pytest
from tier_records import chain, ids_of, read

from kvist.tier.remote.tier import RemoteTier

RECORDS = chain("told", 30)


class Rotten:
    """A server whose values are all damaged."""

    where = "rotten://here"

    def get(self, ids, buffers, until, out):
        out += [("damaged", None)] * len(ids)

    def remove(self, ids, until):
        return len(ids)

    def measure(self, until):
        return 0, 0, None

    def close(self):
        pass


def test_a_servers_damage_is_told_once(caplog):
    tier = RemoteTier(Rotten(), name="rotten")
    with caplog.at_level(logging.WARNING, "kvist.tier"):
        for record in RECORDS[:9]:
            read(tier, [record])
    (line,) = [r.getMessage() for r in caplog.records]
    assert "rotten://here: 1 record was damaged" in line and "kvist cache verify" in line
    with caplog.at_level(logging.WARNING, "kvist.tier"):
        read(tier, RECORDS)
    assert len(caplog.records) == 2 and "39 records" in caplog.text and tier.usage().damaged_records == 39


def test_seals_that_do_not_agree_are_told_once(tmp_path, caplog):
    """Sound envelopes over bytes that nobody with the key sealed."""
    pytest.importorskip("cryptography")
    from kvist.tier.base import Record
    from kvist.tier.keyring import Keyring
    from kvist.tier.ram import RamTier
    from kvist.tier.seal import Sealed

    inner = RamTier(1 << 24)
    sealed = Sealed(inner, Keyring(tmp_path / "tenants.keys", b"k" * 32))
    view = sealed.view("ada")
    assert view.put_many(RECORDS, timeout_s=10) == ["stored"] * 30
    entries = list(inner.list())
    inner.delete(ids=[e.label.id for e in entries])
    inner.put_many([Record(e.label, memoryview(bytes(e.data_bytes))) for e in entries], timeout_s=10)
    with caplog.at_level(logging.WARNING, "kvist.tier"):
        for record in RECORDS[:8]:
            assert read(view, [record])[0] == ["damaged"]
    (line,) = [r.getMessage() for r in caplog.records]
    assert "seals do not agree" in line and "1 record was damaged" in line
    assert sealed.usage().damaged_records == 8 and not any(view.exists_many(ids_of(RECORDS[:8])))
