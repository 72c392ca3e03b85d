"""F052, F054: a reset is what was done, not what is remembered: a full filesystem is no reason to keep records."""

import errno
import os

import pytest
from tier_served_kit import real_tiered, serving

from kvist.tier.disk.store import DiskTier
from small_fs import small_fs

LONG = list(range(1000, 1200))


@pytest.mark.parametrize("since", ["while it runs", "before it starts"])
def test_a_full_filesystem(tmp_path, since):
    with small_fs(tmp_path, "64m") as fs:
        if since == "before it starts":
            with serving(real_tiered(fs.path / "c")) as client:
                client.complete(LONG)
                assert client.server.service.served.places.flush(10)
            fs.fill()
        with serving(real_tiered(fs.path / "c")) as client:
            if since == "while it runs":
                client.complete(LONG)
                assert client.server.service.served.places.flush(10)
                fs.fill()
            told = client.post("/reset_prefix_cache")
            assert told.status_code == 200 and told.json()["tiers"]["disk"]["records"] >= 12, told.text
            assert client.cached(LONG) == {"pool": 0, "disk": 0}
            client.settled()
            assert client.post("/reset_prefix_cache").json()["success"]
        fs.empty()
        tier = DiskTier.open(fs.path / "c", capacity_bytes=1 << 30)
        assert not tier.usage().records
        tier.close()


def test_a_tier_that_takes_nothing_for_the_reserve_and_has_nothing(tmp_path):
    """A read-only tier with nothing in it is emptied as well as any."""
    with small_fs(tmp_path, "16m") as fs:
        served = real_tiered(fs.path / "c")
        tier = served.places.tiers[0]
        tier._now.ground.places._reserve_bytes = 1 << 30
        with serving(served) as client:
            client.complete(LONG)
            client.settled()
            assert client.server.service.served.places.flush(10)
            assert tier.usage().condition == "read-only"
            told = client.post("/reset_prefix_cache")
            assert told.status_code == 200 and told.json()["tiers"] == {"disk": {"records": 0}}


def test_what_could_not_be_removed_is_a_failure_with_its_reason(tmp_path, monkeypatch):
    def no_room(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with small_fs(tmp_path, "64m") as fs, serving(real_tiered(fs.path / "c")) as client:
        client.complete(LONG)
        assert client.server.service.served.places.flush(10)
        fs.fill()
        monkeypatch.setattr("kvist.tier.disk.room.admin.delete", no_room)
        told = client.post("/reset_prefix_cache")
        assert told.status_code == 503 and told.json()["tiers"]["disk"]["records"] is None
        assert "filesystem is full" in told.json()["reason"]
        monkeypatch.undo()
        assert client.post("/reset_prefix_cache").json()["success"]
