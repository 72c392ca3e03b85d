"""``kvist cache export`` where a chain's records lie in several tiers: each from the first that has it."""

import json

import pytest
from cache_kit import chain, disk, filled, fine, ids_of, kvist, one_line_error
from test_cache_remote import valkey_server  # noqa: F401

from kvist.cli.cache.several import Several
from kvist.tier.registry import open_tier

LONG = chain("long", 6)
LEAF = LONG[5].label.id.hex()


class Stub:
    def __init__(self, name, **answers):
        self.name, self.answers, self.asked = name, answers, []

    def get_many_into(self, ids, buffers, *, timeout_s):
        assert timeout_s >= 0
        self.asked.append(list(ids))
        return [(self.answers.get(id, "missing"), "label" if self.answers.get(id) == "hit" else None) for id in ids]


@pytest.mark.parametrize(
    "first,second,said,asked",
    [
        ({"a": "hit", "b": "hit"}, {}, ["hit", "hit"], []),
        ({"a": "hit"}, {"b": "hit"}, ["hit", "hit"], [["b"]]),
        ({"a": "damaged", "b": "timeout"}, {"a": "hit"}, ["hit", "timeout"], [["a", "b"]]),
        ({"a": "damaged"}, {"a": "missing", "b": "foreign"}, ["damaged", "foreign"], [["a", "b"]]),
    ],
)
def test_the_next_one_is_asked_for_what_the_first_cannot_give(first, second, said, asked):
    fast, slow = Stub("fast", **first), Stub("slow", **second)
    both = Several([fast, slow])
    assert [how for how, _ in both.get_many_into(["a", "b"], [None, None], timeout_s=1)] == said
    assert slow.asked == asked and both.name == "fast, slow"


@pytest.fixture
def url(valkey_server):  # noqa: F811
    yield valkey_server.url
    tier = open_tier(valkey_server.url)
    tier.delete(ids=list(ids_of(LONG)))
    tier.close()


def test_a_chain_in_two_places_is_exported_whole(tmp_path, url):
    """The folder has its end only (what was before is evicted), the server its beginning."""
    whole = filled(tmp_path / "whole", LONG)
    fine(kvist("cache", "export", whole, LEAF, tmp_path / "want.kvb"))
    part = filled(tmp_path / "part", LONG)
    tier = disk(part)
    tier.delete(ids=[r.label.id for r in LONG[:3]])
    tier.close()
    remote = open_tier(url)
    assert remote.put_many(LONG[:4], timeout_s=10) == ["stored"] * 4
    remote.close()
    config = tmp_path / "kvist.toml"
    config.write_text(f'tier = ["ram:1GiB", "disk:{part}?size=1GiB", "{url}"]\n')
    one_line_error(kvist("cache", "export", part, LEAF, tmp_path / "x.kvb"), 2, "first 3 records are not there")
    done = kvist("cache", "export", part, LEAF, tmp_path / "x.kvb", "--config", config)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "x.kvb").read_bytes() == (tmp_path / "want.kvb").read_bytes()
    done = kvist("cache", "export", url, LEAF, tmp_path / "y.kvb", "--config", config, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["records"] == 6
    other = filled(tmp_path / "other", LONG[:2])
    named = kvist("cache", "export", other, LEAF, tmp_path / "z.kvb", "--config", config)
    one_line_error(named, 2, "no record")


def test_a_damaged_record_comes_from_the_other_place(tmp_path, url):
    folder = filled(tmp_path / "c", LONG)
    (slab,) = folder.glob("slab-*")
    data = bytearray(slab.read_bytes())
    data[data.find(bytes(LONG[2].data)) + 9] ^= 1
    slab.write_bytes(data)
    remote = open_tier(url)
    remote.put_many(LONG, timeout_s=10)
    remote.close()
    one_line_error(kvist("cache", "export", folder, LEAF, tmp_path / "x.kvb"), 2, "damaged")
    env = {"KVIST_TIER": f"disk:{folder}?size=1GiB {url}"}
    done = kvist("cache", "export", folder, LEAF, tmp_path / "x.kvb", env=env)
    assert done.returncode == 0, done.stderr


def test_a_place_that_does_not_answer_is_left_out(tmp_path):
    folder = filled(tmp_path / "c", LONG)
    env = {"KVIST_TIER": f"disk:{folder}?size=1GiB redis://u:secret@127.0.0.1:1"}
    done = kvist("cache", "export", folder, LEAF, tmp_path / "x.kvb", env=env)
    assert done.returncode == 0 and "127.0.0.1:1 is left out" in done.stderr and "secret" not in done.stderr
