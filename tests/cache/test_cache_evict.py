"""Eviction: the shelf, the order, and that whatever is called available can be had."""

from __future__ import annotations

import time

import pytest
from cache_paper import FULL, Desk, layout_of, window

from kvist.cache.evict import registry
from kvist.cache.evict.base import Habits, NodeFacts, Priority
from kvist.cache.evict.lru import Lru
from kvist.cache.habits import START
from kvist.cache.queue import BURIED, LEAF
from kvist.cache.tenancy import Tenancy
from kvist.errors import BadValue, PoolFull

ONE = layout_of((4, FULL))


class Facts:
    def __init__(self, last_use: int) -> None:
        self.start, self.end, self.last_use, self.gap, self.hits, self.serial = 0, 4, last_use, 3, 0, 1
        self.behind = False


@pytest.mark.parametrize("name", registry.names())
def test_shelf(name: str) -> None:
    """Every policy: frozen, named as registered, sortable answers that depend on the node alone."""
    policy = registry.load(name)
    assert policy.name == name and policy == registry.load(name)
    for habits in (START, Habits(in_turn=False, fresh_first=(False, True), usual_gap=64)):
        assert sorted([policy.priority(Facts(2), habits), policy.priority(Facts(1), habits)])
        assert policy.priority(Facts(1), habits) == policy.priority(Facts(1), habits)
        spared = policy.spared(Facts(1), 2, habits)
        assert spared is None or spared > policy.priority(Facts(1), habits), "behind all others"
    with pytest.raises(AttributeError):
        policy.name = "other"  # type: ignore[misc]
    desk = Desk(ONE, 8, policy=policy)
    for i in range(20):
        desk.serve([i] * 12)
    assert desk.cache.counters.evicted_blocks > 30


def test_unknown_policy_is_named() -> None:
    with pytest.raises(BadValue, match="evict='mru' is not allowed: expected one of auto, lru, interval"):
        registry.load("mru")


def test_lru_order() -> None:
    desk = Desk(ONE, 6)
    for i in range(3):
        desk.serve([i] * 8)
    assert desk.serve([0] * 8) == 7, "used: now the youngest"
    desk.serve([9] * 8)
    assert [desk.cache.match([i] * 8).cached_tokens for i in range(3)] == [7, 0, 7]


def test_another_policy_decides() -> None:
    class Deep(Lru):
        name = "deep"

        def priority(self, node: NodeFacts, habits: Habits) -> Priority:
            return (-node.end, -node.hits)

    desk = Desk(ONE, 8, policy=Deep())
    desk.serve([1] * 16)
    desk.serve([2] * 8)
    desk.serve([3] * 12)
    assert [desk.cache.match([i] * 16, limit=16).cached_tokens for i in (1, 2)] == [12, 8]


def test_f108_the_last_block_goes_first() -> None:
    """Cache of 3 blocks, request [1, 2, 3], a new request of one block, 200 times: always block 3."""
    desk = Desk(ONE, 3)
    request = list(range(12))
    for i in range(200):
        desk.serve(request)
        node = next(iter(next(iter(desk.cache._tree.roots.values())).children.values()))
        last = node.blocks[0][-1]
        seq = desk.start([1000 + i] * 3)
        desk.compute(seq)
        assert desk.cache.table(seq) == ((last,),)
        desk.finish(seq, publish=False)
        assert desk.cache.match(request).cached_tokens == 8


def test_window_blocks_that_serve_no_end_go_first() -> None:
    """Hybrid: tombstones behind the window before any leaf is cut; the continuation at the end stays whole."""
    desk = Desk(layout_of((4, FULL), (4, window(8))), 32)
    old = list(range(48))
    desk.serve(old)
    seq = desk.start([99] * 12)
    desk.compute(seq)
    assert desk.cache.free_blocks == 2
    desk.tokens[seq] += [98] * 16
    desk.compute(seq)
    tally = desk.cache.counters
    assert tally.tombstoned_blocks == tally.evicted_blocks == 6
    assert desk.cache.match([*old, 1]).cached_tokens == 48
    assert desk.cache.match([*old[:46], 1]).cached_tokens == 46, "nor a continuation inside the last span"
    assert desk.cache.match([*old[:20], 1]).reason == "window"
    desk.finish(seq)


def test_buried_blocks_can_be_had() -> None:
    """B computed duplicates of A's run and published below it; A is gone: A's blocks are cached and available."""
    desk = Desk(ONE, 12)
    prompt = list(range(16))
    a, b = desk.start(prompt), desk.start(prompt + list(range(50, 54)))
    desk.compute(a), desk.compute(b)
    desk.finish(a)
    cache = desk.cache
    assert (cache.cached_blocks, cache.live_blocks, cache.free_blocks) == (4, 5, 3)
    node = next(iter(next(iter(cache._tree.roots.values())).children.values()))
    assert (node.start, node.end) == (0, 20) and node.queued >> LEAF & 1
    c = desk.start([7] * 28)
    desk.compute(c)
    assert cache.available_blocks == 0 and cache.counters.detached_blocks == 1
    desk.read(b)
    with pytest.raises(PoolFull):
        cache.extend(b, 24)
    desk.finish(c)
    desk.tokens[b] += list(range(60, 64))
    desk.compute(b)
    assert cache.match(desk.tokens[b]).cached_tokens == 23, "b offers its whole path again"
    desk.finish(b)


def test_buried_under_a_branch() -> None:
    desk = Desk(ONE, 16)
    prompt = list(range(8))
    a = desk.start(prompt + [1] * 4)
    b = desk.start(prompt + [2] * 4)
    desk.compute(a), desk.compute(b)
    desk.finish(a)
    top = next(iter(next(iter(desk.cache._tree.roots.values())).children.values()))
    assert len(top.children) == 2 and top.queued >> BURIED & 1
    assert desk.cache.reset() == 3 and desk.cache.cached_blocks == 0
    desk.cache.check()
    desk.read(b)


@pytest.mark.parametrize("trusting", [False, True])
def test_a_place_that_was_cut_and_grown_again_is_not_trusted(trusting: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """B stands (on duplicates) in A's node; the node is cut and another sequence grows it with other tokens."""
    if trusting:

        def place(self: Tenancy, f=Tenancy.place):
            self.node_cuts = self.node.cuts if self.node else 0
            return f(self)

        monkeypatch.setattr(Tenancy, "place", place)
    desk = Desk(ONE, 16)
    prompt = list(range(16))
    a, b = desk.start(prompt), desk.start(prompt)
    desk.compute(a), desk.compute(b)
    desk.finish(a)
    assert desk.cache.cached_blocks == 4
    c = desk.start([9] * 39)
    desk.compute(c)  # cuts two spans of A's node
    desk.finish(c, publish=False)
    d = desk.start(prompt[:8] + [70] * 12)
    assert desk.admission.cached_tokens == 8
    desk.compute(d)
    desk.tokens[b] += [5] * 4
    desk.compute(b)
    wrong = desk.cache.match(prompt[:8] + [70] * 8 + [5] * 4, limit=20).cached_tokens == 20
    assert wrong == trusting, "tokens of b were hung under tokens of d"
    if not trusting:
        assert desk.cache.match([*prompt, *[5] * 4], limit=20).cached_tokens == 20


def test_the_queue_forgets_the_dead() -> None:
    desk = Desk(ONE, 24, check=False)
    for i in range(3000):
        desk.serve([i] * 10)
    assert len(desk.cache._tree.queue) < 200 and desk.cache._tree.nodes < 40
    for i in range(300):
        desk.serve([i] * 6, salt=str(i).encode())
    desk.cache.check()
    assert len(desk.cache._tree.roots) < 24, "namespaces do not pile up"


def test_eviction_does_not_look_at_every_node() -> None:
    """Evicting one block costs the same among 50 and among 2,000 entries (within noise: a factor of 6)."""
    cost = []
    for entries in (50, 2000):
        desk = Desk(layout_of((16, FULL)), entries)
        for i in range(entries):
            desk.cache.admit(i, [i] * 16)
            desk.cache.extend(i, 16)
            desk.cache.commit(i, [i] * 16, 16)
            desk.cache.release(i, [i] * 16, 16)
        desk.cache.drain()
        best = 1.0
        for i in range(40):
            start = time.perf_counter()
            desk.cache.admit(10**6 + i, [])
            desk.cache.extend(10**6 + i, 1)
            best = min(best, time.perf_counter() - start)
        assert desk.cache.counters.evicted_blocks == 40
        cost.append(best)
    assert cost[1] < 6 * cost[0]
