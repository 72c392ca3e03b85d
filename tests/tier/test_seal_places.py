"""Sealed around the tiers that people have: memory and disk."""

import pytest
from seal_kit import ORIGIN, chain, got, hits, ids_of

from kvist.tier.keyring import Keyring
from kvist.tier.ram import RamTier
from kvist.tier.seal import Sealed

pytest.importorskip("cryptography", reason="sealing needs the package cryptography")

MASTER = bytes(range(32))


def ram(folder):
    return RamTier(1 << 24)


def disk(folder):
    from kvist.tier.disk.store import DiskTier

    return DiskTier.open(folder / "cache", capacity_bytes=1 << 26, reserve_bytes=0, sync=False)


@pytest.mark.parametrize("place", [ram, disk])
def test_any_tier_can_be_sealed(place, tmp_path):
    sealed = Sealed(place(tmp_path), Keyring(tmp_path / "keys", MASTER))
    try:
        for tenant, size in (("a", 4096), ("b", 10_000), ("", 1)):
            view, records = sealed.view(tenant), chain(6, tenant=tenant, size=size)
            assert view.put_many(records, timeout_s=5) == ["stored"] * 6
            assert got(view, records) == hits(records)
            assert sorted(e.label.depth for e in view.list(origin=ORIGIN)) == [*range(6)]
            assert {e.label.tokens for e in view.list()} == {r.label.tokens for r in records}
            view.touch_many(ids_of(records))
        assert sealed.usage().records == 18 and sealed.wipe("b") == 6
        assert sealed.view("a").delete(ids=ids_of(chain(6))[3:]) == 3
        assert sealed.delete(origin=ORIGIN) == 9 and sealed.usage().records == 0
    finally:
        sealed.close()


def test_on_disk_it_survives_a_restart_and_the_folder_shows_nothing(tmp_path):
    records = chain(4, tenant="a", size=8192)
    sealed = Sealed(disk(tmp_path), Keyring(tmp_path / "keys", MASTER))
    assert sealed.view("a").put_many(records, timeout_s=5) == ["stored"] * 4
    sealed.close()
    raw = b"".join(path.read_bytes() for path in (tmp_path / "cache").iterdir() if path.is_file())
    for record in records:
        for secret in (bytes(record.data)[:64], record.label.tokens, record.label.id[:16]):
            assert secret not in raw
    sealed = Sealed(disk(tmp_path), Keyring(tmp_path / "keys", MASTER))
    assert got(sealed.view("a"), records) == hits(records)
    sealed.close()
