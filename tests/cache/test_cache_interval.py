"""Loops and scans larger than the pool: the interval policy against least recently used and the offline optimum."""

from __future__ import annotations

from collections import Counter

import cache_paper
import pytest
from belady import Request, optimum
from cache_paper import FULL, LAYOUTS, Desk, Driver, layout_of
from cache_prompts import groups, scan, served, turns

from kvist.cache.cache import Cache
from kvist.cache.evict.interval import Interval
from kvist.cache.evict.lru import Lru
from kvist.cache.habits import START
from kvist.cache.kept import SLACK_ENTRIES, Kept
from kvist.cache.node import Node
from kvist.errors import BadValue

ONE = layout_of((4, FULL))


def rates(requests: list[Request], blocks: int) -> tuple[float, float, float]:
    """Token hit rates in per cent at blocks of 32: the optimum's, of least recently used, of the interval policy."""
    total = sum(len(prompt) for prompt, _ in requests) / 100
    lru, interval = (served(requests, 32, blocks, name) / total for name in ("lru", "interval"))
    return optimum(requests, 32, blocks) / total, lru, interval


@pytest.mark.parametrize("requests, blocks, share", [
    (groups("loop"), 120, 0.93), (groups("loop"), 100, 0.93), (turns("loop"), 200, 0.99), (turns("loop"), 120, 0.99),
    (scan(), 100, 0.8),
])  # fmt: skip
def test_loops_and_scans(requests: list[Request], blocks: int, share: float) -> None:
    """Nearly what can be had at all where least recently used has little or nothing."""
    best, lru, interval = rates(requests, blocks)
    assert interval >= share * best and interval >= lru + 8, (best, lru, interval)


def test_shuffled_groups() -> None:
    both = [rates(groups("shuffled", seed), 120) for seed in range(4)]
    best, lru, interval = (sum(rate) / 4 for rate in zip(*both, strict=True))
    assert best > interval > lru + 4, (best, lru, interval)


@pytest.mark.parametrize("requests", [groups("grouped"), turns("grouped")])
def test_what_least_recently_used_does_best_is_not_lost(requests: list[Request]) -> None:
    best, lru, interval = rates(requests, 120)
    assert interval == pytest.approx(lru) and abs(lru - best) < 1


def test_the_optimum_by_hand() -> None:
    """a, b, c, a, b, c: a block each and one to go on in. With room for one more, a and c can be had, not b."""
    a, b, c = ([i] * 4 for i in (1, 2, 3))
    asked: list[Request] = [(p + [9], []) for p in (a, b, c, a, b, c)]
    assert [optimum(asked, 4, blocks) for blocks in (2, 3, 4, 5)] == [0, 8, 12, 12]


def test_patience() -> None:
    with pytest.raises(BadValue, match="patience=0 .*at least 1"):
        Interval(0)
    node = Node(None, None, 0, b"", [], 1)  # type: ignore[arg-type]
    node.last_use, node.gap = 10, 4
    assert (
        Interval().priority(node, START) == Interval().spared(node, 18, START)
        or Interval().spared(node, 18, START) is None
    )
    assert Interval().spared(node, 17, START) == (1, -14) and Interval(3).spared(node, 18, START) == (1, -14)
    assert Interval().spared(node, 17, START) > Interval().priority(node, START), "behind all that are not spared"  # type: ignore[operator]
    node.gap = 0
    assert Interval().spared(node, 10, START) is None and Interval().priority(node, START) == (0, 10)
    assert Lru().spared(node, 10, START) is None


def test_what_was_not_used_again_goes_first() -> None:
    """The common prefix stays; of a run that a split cut in two, the part nobody asked for again goes."""
    desk = Desk(ONE, 12, policy=Interval())
    desk.serve([0] * 44)  # the pool is full once: from now on nobody is a first comer
    desk.serve([5] * 8)
    prefix = list(range(100, 116))
    desk.serve([*prefix, 1, 1, 1, 1])
    desk.serve([*prefix, 2, 2, 2, 2])
    for i in range(20):
        desk.serve([200 + i] * 8)
    assert desk.cache.match(prefix, limit=16).cached_tokens == 0, "one use, long ago: overdue"
    desk.serve([*prefix, 3, 3, 3, 3])
    for i in range(6):
        desk.serve([300 + i] * 8)
    assert desk.cache.match([*prefix, 3, 3, 3, 3]).cached_tokens >= 16, "known from before it was evicted"
    for i in range(60):
        desk.serve([400 + i] * 8)
    assert desk.cache.match(prefix, limit=16).cached_tokens == 0, "but not for ever"


def test_who_comes_first_stays_for_a_while() -> None:
    """Prompts nobody sent again push out each other, not those that filled the pool; those go in time, too."""
    left = {}
    for policy in (Interval(), Lru()):
        desk = Desk(ONE, 24, policy=policy)
        for i in range(12):
            desk.serve([i] * 8)
        for i in range(8):
            desk.serve([20 + i] * 8)
        left[policy.name] = sum(desk.cache.match([i] * 8).cached_tokens > 0 for i in range(12))
    assert left["lru"] == 4 and left["interval"] >= 10, left
    desk = Desk(ONE, 24, policy=Interval())
    for i in range(100):
        desk.serve([i] * 8)
    assert not any(desk.cache.match([i] * 8).cached_tokens for i in range(12))


def test_hints_do_not_pile_up() -> None:
    """Thousands of hits without an eviction: at most twice as many entries as the queue has, and some."""
    desk = Desk(ONE, 60, check=False, policy=Interval())
    for i in range(4000):
        desk.serve([i % 5] * 12)
    queue = desk.cache._tree.queue
    assert desk.cache.counters.evicted_blocks == 0 and len(queue._kept) <= 2 * len(queue) + SLACK_ENTRIES + 1
    desk.cache.reset()
    assert desk.cache.cached_blocks == 0


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_laws_hold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver of the laws, with tenants, windows and all; spared leaves really were taken."""
    taken: Counter[str] = Counter()
    plain = Kept.pop

    def pop(self: Kept, share) -> None:
        taken["popped"] += 1
        plain(self, share)

    monkeypatch.setattr(Kept, "pop", pop)
    monkeypatch.setattr(cache_paper, "Cache", lambda *a, **k: Cache(*a, policy=Interval(), **k))
    for seed in range(4):
        Driver(LAYOUTS[name], seed, blocks=(24, 48, 80)[seed % 3]).run(200)
    assert taken["popped"]


def test_f108_holds_here_too() -> None:
    """A leaf loses its last block first, whatever the policy."""
    desk = Desk(ONE, 3, policy=Interval())
    request = list(range(12))
    for i in range(50):
        desk.serve(request)
        seq = desk.start([1000 + i] * 3)
        desk.compute(seq)
        desk.finish(seq, publish=False)
        assert desk.cache.match(request).cached_tokens == 8
