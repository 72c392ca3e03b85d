"""Every tier that can be had here, for the contract. A further one is one line of ``MAKERS``."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from tier_records import content

from kvist.ids import RecordId
from kvist.tier.base import Tier
from kvist.tier.ram import RamTier
from kvist.tier.registry import open_tier


@dataclass
class Bench:
    """A tier under test. ``raw_write(id, value)`` puts any bytes where the record lies (None: not for this tier)."""

    tier: Tier
    raw_write: Callable[[RecordId, bytes], None] | None = None
    damage: Callable[[RecordId], None] | None = None
    packs: bool = False
    shared: bool = False
    """Closed by somebody else."""


def ram_bench(request: pytest.FixtureRequest) -> Bench:
    tier = RamTier(1 << 24)
    return Bench(tier, damage=lambda id: tier._slots[id].data.__setitem__(7, tier._slots[id].data[7] ^ 1))


def packed_ram_bench(request: pytest.FixtureRequest) -> Bench:
    pytest.importorskip("zstandard", reason="compression needs zstandard")
    return Bench(open_tier("ram:16MiB?pack=2"), packs=True)


def disk_bench(request: pytest.FixtureRequest) -> Bench:
    folder = request.getfixturevalue("tmp_path") / "disk"

    def damage(id: RecordId) -> None:
        data = bytes(content(id, 4096))
        for path in folder.glob("*.kvs"):
            with open(path, "r+b") as file:
                if (at := file.read().find(data)) >= 0:
                    file.seek(at + 7)
                    file.write(bytes([data[7] ^ 1]))

    return Bench(open_tier(f"disk:{folder}?size=64MiB&reserve=0&sync=off"), damage=damage)


def sealed_bench(request: pytest.FixtureRequest) -> Bench:
    pytest.importorskip("cryptography", reason="sealing needs cryptography")
    from kvist.tier.keyring import Keyring
    from kvist.tier.seal import Sealed

    keyring = Keyring(request.getfixturevalue("tmp_path") / "keys", bytes(range(32)))
    return Bench(Sealed(RamTier(1 << 24), keyring))


def valkey_bench(request: pytest.FixtureRequest) -> Bench:
    server = request.getfixturevalue("valkey_server")
    tier: Any = open_tier(server.url)

    def raw_write(id: RecordId, value: bytes) -> None:
        tier._place._pool.use(
            time.monotonic() + 5, lambda c: c.ask(["SET", f"kvist:1:{id.hex()}", value], time.monotonic() + 5)
        )

    return Bench(tier, raw_write)


def s3_bench(request: pytest.FixtureRequest) -> Bench:
    server = request.getfixturevalue("moto_server")
    tier: Any = open_tier(server.url, ask_timeout_s=10.0)
    place = tier._place
    return Bench(tier, lambda id, value: place._obstore.put(place._store, place._path(id), value, use_multipart=False))


def packed_s3_bench(request: pytest.FixtureRequest) -> Bench:
    pytest.importorskip("zstandard", reason="compression needs zstandard")
    server = request.getfixturevalue("moto_server")
    return Bench(open_tier(server.url.replace("/a/b", "/packed") + "&pack=2", ask_timeout_s=10.0), packs=True)


def mooncake_bench(request: pytest.FixtureRequest) -> Bench:
    tier: Any = request.getfixturevalue("mooncake_tier")

    def raw_write(id: RecordId, value: bytes) -> None:
        tier._place._store.remove(f"kvist:1:{id.hex()}", True)
        assert tier._place._store.put(f"kvist:1:{id.hex()}", value) == 0

    return Bench(tier, raw_write, shared=True)


MAKERS = {
    "ram": ram_bench,
    "ram, packed": packed_ram_bench,
    "disk": disk_bench,
    "ram, sealed": sealed_bench,
    "valkey": valkey_bench,
    "s3": s3_bench,
    "s3, packed": packed_s3_bench,
    "mooncake": mooncake_bench,
}

OTHERS_WRITE = ("valkey", "s3", "mooncake")
"""Where anybody may put anything under a record's key."""
