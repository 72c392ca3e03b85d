"""The pool between tenants: floors by weight, who gives when memory is short, and books that end with the tenant."""

from __future__ import annotations

import random

import pytest
from cache_paper import FULL, Desk, layout_of, window

from kvist.cache import share as module
from kvist.cache.cache import TenantShare
from kvist.cache.share import Share, Shares
from kvist.errors import BadValue, PoolFull, StateError
from kvist.ids import SeqId

ONE = layout_of((4, FULL))
HYBRID = layout_of((4, FULL), (8, window(8)))
CALM = list(range(1000, 1160))
"""160 tokens: 40 blocks of 4."""


def flood(desk: Desk, blocks: int, *, size: int = 13, tenant: str = "loud", mark: int = 0) -> None:
    """Prompts nobody sent before, ``blocks`` blocks in all."""
    for i in range(blocks // size):
        desk.serve([mark + 7 * i + j for j in range(size * 4)], tenant=tenant, salt=tenant.encode())


def hit(desk: Desk, prompt: list[int], tenant: str) -> int:
    return desk.cache.match(prompt, limit=len(prompt), salt=tenant.encode()).cached_tokens


@pytest.mark.parametrize("size", [1, 13, 30, 50])
def test_a_flood_leaves_the_other_its_floor(size: int) -> None:
    """40 of 100 blocks stay a hit while another tenant sends 100 times the pool, in prompts of up to half the pool."""
    desk = Desk(ONE, 100, check=False)
    desk.serve(CALM, tenant="calm", salt=b"calm")
    for round_ in range(25):
        flood(desk, 400, size=size, mark=100_000 + 10_000 * round_)
        assert hit(desk, CALM, "calm") == 160, f"lost in round {round_}"
    desk.cache.check()
    told = desk.cache.tenants()
    assert told["calm"] == TenantShare(40, 50.0, 0)
    assert told["loud"].used_blocks == 60 and told["loud"].evicted_blocks > 9000
    assert sum(t.evicted_blocks for t in told.values()) == desk.cache.counters.evicted_blocks


def test_without_a_tenant_the_same_flood_takes_all() -> None:
    """What the floor is worth: both as one tenant, the older prefix is gone."""
    desk = Desk(ONE, 100, check=False)
    desk.serve(CALM, salt=b"calm")
    flood(desk, 400, tenant="")
    assert hit(desk, CALM, "calm") == 0


def test_prompts_that_wait_in_the_pool_are_paid_by_who_sent_them() -> None:
    """Blocks a tenant computes in, or has asked for, count before they are cached: it makes room for itself first."""
    desk = Desk(ONE, 100)
    desk.serve(CALM, tenant="calm", salt=b"calm")
    desk.serve(list(range(240)), tenant="loud", salt=b"loud")
    running = [desk.start([50_000 + i] * 80, tenant="loud", salt=b"loud", reuse=False) for i in range(3)]
    for seq in running:
        desk.compute(seq)
    assert desk.cache.tenants()["loud"].used_blocks == 60 and hit(desk, CALM, "calm") == 160
    last = desk.start([60_000] * 80, tenant="loud", salt=b"loud", reuse=False)
    desk.compute(last)  # it holds 60 blocks and nothing of its own is cached: now the other gives
    assert hit(desk, CALM, "calm") == 80 and desk.cache.tenants()["calm"].evicted_blocks == 20
    with pytest.raises(PoolFull):
        desk.cache.extend(last, 80 + 81)
    desk.cache.check()


@pytest.mark.parametrize("layout", [ONE, HYBRID], ids=["one", "hybrid"])
def test_weights_are_parts_of_a_full_pool(layout) -> None:
    """3 to 1 and both greedy: three quarters and one quarter, give or take a prompt."""
    desk = Desk(layout, 120, check=False, weights={"gold": 3.0})
    for i in range(60):
        flood(desk, 30, size=5, tenant="gold", mark=1_000_000 + 1000 * i)
        flood(desk, 30, size=5, tenant="tin", mark=5_000_000 + 1000 * i)
    told = desk.cache.tenants()
    assert (told["gold"].floor_blocks, told["tin"].floor_blocks) == (90.0, 30.0)
    assert abs(told["gold"].used_blocks - 90) <= 8 and abs(told["tin"].used_blocks - 30) <= 8
    desk.cache.check()


def test_an_idle_pool_may_be_used_wholly() -> None:
    desk = Desk(ONE, 100, weights={"calm": 9.0})
    flood(desk, 400)
    assert desk.cache.tenants()["loud"] == TenantShare(100, 100.0, desk.cache.counters.evicted_blocks)
    desk.serve(CALM, tenant="calm", salt=b"calm")
    assert desk.cache.tenants()["loud"].used_blocks == 60, "gives what the other needs, not what it could claim"


def test_among_those_above_the_policy_decides() -> None:
    """Three tenants of 4, 4 and 2 blocks: the least recently used leaf of the two that are above their third."""
    desk = Desk(ONE, 10)
    for tenant, n in (("c", 2), ("a", 4), ("b", 4)):
        desk.serve([ord(tenant)] * 4 * n, tenant=tenant, salt=tenant.encode())
    new = desk.start([1] * 4, tenant="c", salt=b"c", reuse=False)
    desk.compute(new)
    assert [hit(desk, [ord(t)] * 16, t) for t in "abc"] == [12, 16, 8]
    desk.tokens[new] += [1] * 4
    desk.compute(new)
    assert [hit(desk, [ord(t)] * 16, t) for t in "abc"] == [12, 16, 4], (
        "with what it asks for, c is above its third, and its leaf is the oldest"
    )


def test_a_namespace_belongs_to_who_published_first() -> None:
    desk = Desk(ONE, 40)
    desk.serve(list(range(40)), tenant="first")
    seq = desk.start([*range(40), *range(500, 540)], tenant="second")
    desk.compute(seq)
    told = desk.cache.tenants()
    assert (told["first"].used_blocks, told["second"].used_blocks) == (20, 0)
    desk.finish(seq)
    assert desk.cache.reset("second") == 0 and desk.cache.reset("first") == 20
    desk.serve(list(range(8)), tenant="second")
    assert desk.cache.tenants()["second"].used_blocks == 2, "once empty, it is for the next"


def test_reset_of_one_tenant_leaves_the_others() -> None:
    desk = Desk(HYBRID, 80)
    for tenant in ("a", "b"):
        for i in range(2):
            desk.serve([i] * 30, tenant=tenant, salt=tenant.encode(), extras=(bytes([i]) * 16,))
    running = desk.start([0] * 40, tenant="a", salt=b"a", extras=(bytes(16),))
    desk.compute(running)
    gone, free = desk.cache.tenants()["a"].used_blocks, desk.cache.free_blocks
    cached = desk.cache.cached_blocks
    dropped = desk.cache.reset("a")
    assert 0 < dropped < gone and desk.cache.free_blocks == free + dropped
    assert desk.cache.cached_blocks == cached - dropped > 0
    desk.cache.check()
    desk.read(running)
    assert desk.cache.match([1] * 30, salt=b"a", extras=(bytes([1]) * 16,)).cached_tokens == 0
    assert desk.cache.match([1] * 30, salt=b"b", extras=(bytes([1]) * 16,)).cached_tokens == 29
    assert desk.cache.reset("nobody") == 0
    assert desk.cache.reset() == cached - dropped


def test_tenants_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """500 tenants through a pool of 24 blocks: only those with blocks or sequences are known, and a few old totals."""
    monkeypatch.setattr(module, "PAST_TENANTS", 20)
    desk = Desk(ONE, 24, check=False)
    for i in range(500):
        desk.serve([i] * 10, tenant=f"t{i}", salt=str(i).encode())
    desk.cache.check()
    told = desk.cache.tenants()
    here = [tenant for tenant, share in told.items() if share.used_blocks]
    assert set(desk.cache._shares.by_tenant) == set(here) and len(here) == 22, "22 floors of 24 / 22 blocks"
    assert len(told) == 42 and told["t470"] == TenantShare(0, 0.0, 3) and "t0" not in told
    desk.serve([1] * 10, tenant="t470", salt=b"470")
    assert desk.cache.tenants()["t470"].evicted_blocks == 3, "its total goes on"
    desk.cache.reset()
    assert not desk.cache._shares.by_tenant and not desk.cache._tree.queue._heaps
    seq = desk.start([1] * 4, tenant="idle")
    assert desk.cache.tenants()["idle"] == TenantShare(0, 0.0, 0), "no block yet, no floor"
    desk.finish(seq)
    assert "idle" not in desk.cache.tenants()


def test_a_refused_admission_leaves_no_tenant() -> None:
    desk = Desk(ONE, 8)
    seq = desk.start([1, 2], tenant="a")
    with pytest.raises(StateError):
        desk.cache.admit(seq, [1], tenant="b")
    with pytest.raises(BadValue):
        desk.cache.admit(SeqId(9), [1], tenant="b", extras=(b"short",), reuse=False)
    with pytest.raises(BadValue):
        desk.cache.admit(SeqId(9), [2**40], tenant="b")
    assert set(desk.cache.tenants()) == {"a"}


@pytest.mark.parametrize("weight", [0, -1.0, float("nan"), float("inf")])
def test_weights_are_above_zero(weight: float) -> None:
    with pytest.raises(BadValue, match="weights.'a'.*above 0"):
        Desk(ONE, 8, weights={"a": weight})


def test_floor_arithmetic() -> None:
    shares = Shares({"a": 3.0}, 100)
    a, b = shares.join("a"), shares.join("b")
    a.blocks, b.blocks = 76, 25
    assert shares.unit_blocks() == 25.0
    assert [s.excess_blocks(25.0) for s in (a, b)] == [1, 0]
    a.blocks = 0
    assert shares.unit_blocks() == 100.0, "who has nothing claims nothing"
    assert shares.join("a") is a and a.holders == 2
    shares.quit(a), shares.quit(a)
    assert set(shares.by_tenant) == {"b"} and isinstance(b, Share)


def test_available_for_spares_the_floors_of_others() -> None:
    """100 blocks. Alone: all that is available. Else less what others have cached within their floors."""
    desk = Desk(ONE, 100)
    cache = desk.cache
    assert cache.available_for("a") == cache.available_blocks == 100
    desk.serve(list(range(160)), tenant="a", salt=b"a")
    assert cache.available_for("a") == cache.available_blocks == 100
    assert cache.available_for("b") == 60, "a has 40 cached, its floor is 50 beside b"
    desk.serve(list(range(240)), tenant="b", salt=b"b")
    assert (cache.free_blocks, cache.available_for("a"), cache.available_for("b")) == (0, 50, 60)
    assert cache.available_for("c") == 100 - 34 - 34, "a third of the pool each, rounded up"
    seq = desk.start(list(range(121)), tenant="b", salt=b"b")
    assert cache.live_blocks == 30 and cache.available_blocks == 70
    assert cache.available_for("a") == 70 - 20, "30 of b's floor of 50 are held: 20 of its 30 cached are safe"
    desk.finish(seq, publish=False)


def test_available_for_by_weight_and_never_below_nothing() -> None:
    desk = Desk(ONE, 40, weights={"a": 3.0})
    cache = desk.cache
    desk.serve(list(range(160)), tenant="a", salt=b"a")
    assert cache.available_for("b") == 10 and cache.available_for("a") == 40
    seq = desk.start(list(range(160)), limit=160, tenant="a", salt=b"a")
    assert cache.available_blocks == cache.available_for("b") == cache.available_for("a") == 0
    desk.finish(seq, publish=False)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_available_for_a_tenant_spares_the_others(seed: int) -> None:
    """Random loads: taking exactly that much leaves every other tenant what its floor covered."""
    rng = random.Random(seed)
    desk = Desk(ONE, 60, weights={"b": 2.0})
    for i in range(60):
        tenant = rng.choice("abc")
        desk.serve([1000 * i + j for j in range(rng.randint(1, 60))], tenant=tenant, salt=tenant.encode())
        asker = rng.choice("abcd")
        most, before = desk.cache.available_for(asker), desk.cache.tenants()
        assert 0 <= most <= desk.cache.available_blocks
        seq = desk.start([7], limit=0, reuse=False, tenant=asker)
        desk.cache.extend(seq, 4 * most)
        after = desk.cache.tenants()
        for name, told in after.items():
            assert name == asker or told.used_blocks >= min(before[name].used_blocks, int(told.floor_blocks)), name
        desk.finish(seq, publish=False)
