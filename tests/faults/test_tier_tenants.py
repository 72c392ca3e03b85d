"""F015: on real tiers (memory, a folder, Valkey) what a salt stored is read under that salt alone."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("xxhash")

sys.path.append(str(Path(__file__).parents[1] / "tier"))

from remote_fixtures import valkey_server  # noqa: E402, F401
from tiny_engine import B, alone, ask, engine, flush, run, words  # noqa: E402

from kvist.tier.disk.store import DiskTier  # noqa: E402
from kvist.tier.ram import RamTier  # noqa: E402
from kvist.tier.registry import open_tier  # noqa: E402
from kvist.units import MIB  # noqa: E402

PROMPT = words(6 * B + 3)
WHOLE = 6 * B
KINDS = ["ram", "disk", "valkey"]


class Watched:
    """A tier, and which records were asked for and read."""

    def __init__(self, tier):
        self.inner, self.name, self.remote = tier, tier.name, getattr(tier, "remote", False)
        self.reads, self.lookups = [], []

    def exists_many(self, ids):
        self.lookups += ids
        return self.inner.exists_many(ids)

    def get_many_into(self, ids, buffers, *, timeout_s):
        self.reads += ids
        return self.inner.get_many_into(ids, buffers, timeout_s=timeout_s)

    def __getattr__(self, name):
        return getattr(self.inner, name)


@pytest.fixture
def tiers(tmp_path, request):
    """All three, fastest first, empty."""
    url = request.getfixturevalue("valkey_server").url
    disk = DiskTier.open(tmp_path / "t", capacity_bytes=64 * MIB, reserve_bytes=0)
    found = [Watched(RamTier(64 * MIB)), Watched(disk), Watched(open_tier(url))]
    yield found
    found[2].delete(origin=b"tiny models here")
    for tier in found:
        tier.close()


def asked(tiers, name, **whose):
    """One engine's life over these tiers, its pool empty at first: (answer, what it counted)."""
    eng = engine("llama", tiers=tuple(tiers))
    out = run(eng, [ask(name, PROMPT, 4, **whose)])[name, 0]
    flush(eng)
    return out, eng.scheduler.counters


def only_in(tiers, kind, **whose):
    """Stored by tenant 1, and then only one of the tiers still has it."""
    out, counters = asked(tiers, "first", **whose)
    assert out.cached_tokens == 0 == counters.loaded_tokens
    for tier in tiers:
        assert tier.usage().records >= 6, f"{tier.name} got it"
        if tier.name != kind:
            tier.delete(origin=b"tiny models here")
            assert tier.usage().records == 0
        tier.reads.clear()
        tier.lookups.clear()
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_f015_another_salt_and_none_read_nothing_and_the_same_salt_hits(tiers, kind):
    first = only_in(tiers, kind, salt=b"s1", tenant="1")
    (holder,) = [tier for tier in tiers if tier.name == kind]
    for whose in ({"salt": b"s2", "tenant": "2"}, {"tenant": "2"}, {"salt": b"s1\0", "tenant": "1"},
                  {"salt": b"s", "tenant": "1"}, {"salt": b"s1", "tenant": "1", "extras": (b"e" * 16,)}):  # fmt: skip
        out, counters = asked([holder], "other", **whose)
        assert out.cached_tokens == 0 == counters.loaded_tokens, whose
        assert len(holder.lookups) == 6 and not holder.reads, "it was asked, and nothing was read"
        assert out.tokens == first.tokens
        holder.lookups.clear()
    out, counters = asked(tiers, "again", salt=b"s1", tenant="1")
    assert out.cached_tokens == WHOLE == counters.loaded_tokens and out.tokens == first.tokens
    assert set(holder.reads) == set(holder.lookups) and len(holder.reads) == 6
    assert not any(tier.reads for tier in tiers if tier is not holder)


@pytest.mark.parametrize("kind", KINDS)
def test_f015_no_salt_is_a_namespace_too(tiers, kind):
    only_in(tiers, kind)
    (holder,) = [tier for tier in tiers if tier.name == kind]
    out, _ = asked([holder], "salted", salt=b"s1", tenant="1")
    assert out.cached_tokens == 0 and not holder.reads
    out, _ = asked([holder], "plain")
    assert out.cached_tokens == WHOLE


@pytest.mark.parametrize("kind", KINDS)
def test_f015_the_hot_tier_alone_is_dropped(tiers, kind):
    """As long as one has it, each namespace finds its own; what was found is in the faster ones again."""
    only_in(tiers, kind, salt=b"s1", tenant="1")
    assert asked(tiers, "a", salt=b"s1", tenant="1")[0].cached_tokens == WHOLE
    faster = tiers[: KINDS.index(kind)]
    assert all(tier.usage().records == 6 for tier in faster)
    for tier in tiers:
        tier.reads.clear()
    out, _ = asked(tiers, "b", salt=b"s2", tenant="2")
    assert out.cached_tokens == 0 and not any(tier.reads for tier in tiers)


def test_f015_sealed_records_of_one_tenant_are_noise_to_another(tmp_path):
    """The same salt, and so the same ids: what is sealed for one tenant opens for him alone."""
    pytest.importorskip("cryptography")
    from kvist.tier.keyring import Keyring
    from kvist.tier.seal import Sealed

    inner = Watched(DiskTier.open(tmp_path / "t", capacity_bytes=64 * MIB, reserve_bytes=0))
    sealed = Sealed(inner, Keyring(tmp_path / "t" / "tenants.keys", b"k" * 32))
    first, _ = asked([sealed], "first", salt=b"s", tenant="1")
    out, counters = asked([sealed], "other", salt=b"s", tenant="2")
    assert out.cached_tokens == 0 == counters.loaded_tokens and not inner.reads and out.tokens == first.tokens
    out, _ = asked([sealed], "again", salt=b"s", tenant="1")
    assert (
        out.cached_tokens == WHOLE and out.tokens == first.tokens == alone("llama", ask("x", PROMPT, 4))["x", 0].tokens
    )
    inner.close()
