"""``kvist cache`` on a server: Valkey, started for real where its package is."""

import json
import sys
from pathlib import Path

import pytest
from cache_kit import OTHER_ORIGIN, chain, filled, fine, ids_in, ids_of, kvist, one_line_error

sys.path.append(str(Path(__file__).parents[1] / "tier"))

from remote_fixtures import valkey_server  # noqa: E402, F401

from kvist.tier.registry import open_tier  # noqa: E402

LONG = chain("long", 4)
BOBS = chain("bobs", 3, tenant="bob", origin=OTHER_ORIGIN)


@pytest.fixture
def url(valkey_server):  # noqa: F811
    tier = open_tier(valkey_server.url)
    tier.put_many(LONG + BOBS, timeout_s=10)
    yield valkey_server.url
    tier.delete(ids=list(ids_of(LONG, BOBS)))
    tier.close()


def test_looking_and_checking(url):
    told = json.loads(fine(kvist("cache", "stat", url, "--json")))
    assert (told["kind"], told["condition"], told["on_disk_bytes"], told["sealed"]) == ("valkey", "ok", None, False)
    assert [t["records"] for t in told["tenants"]] == [4, 3]
    assert "valkey tier in" in fine(kvist("cache", "stat", url))
    chains = json.loads(fine(kvist("cache", "ls", url, "--json")))
    assert {(c["id"], c["last_use"]) for c in chains} == {(r[-1].label.id.hex(), None) for r in (LONG, BOBS)}
    assert "7 records good" in fine(kvist("cache", "verify", url))
    one_line_error(kvist("cache", "gc", url), 2, "no disk tier")


def test_moving_and_removing(url, tmp_path):
    fine(kvist("cache", "export", url, BOBS[2].label.id.hex()[:8], tmp_path / "b.kvb"))
    assert "3 records" in fine(kvist("cache", "rm", url, "--tenant", "bob", "--yes"))
    assert "4 records" in fine(kvist("cache", "rm", url, "--id", LONG[3].label.id.hex(), "--yes"))
    assert json.loads(fine(kvist("cache", "ls", url, "--json"))) == []
    fine(kvist("cache", "import", tmp_path / "b.kvb", url))
    assert "3 records" in fine(kvist("cache", "rm", url, "--all", "--yes"))
    folder = filled(tmp_path / "cache", LONG)
    fine(kvist("cache", "import", tmp_path / "b.kvb", folder))
    assert ids_in(folder) == ids_of(LONG, BOBS)
