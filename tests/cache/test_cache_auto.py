"""The policy that learns: near the optimum where runs come back in turns, as good as can be where chance decides,
and nowhere far below least recently used."""

from __future__ import annotations

from collections import Counter

import cache_paper
import pytest
from belady import Request, best_online, optimum
from cache_paper import FULL, LAYOUTS, Desk, Driver, layout_of
from cache_prompts import PREFIX, drift, endings, groups, popular, scan, served, turns

from kvist.cache.cache import Cache
from kvist.cache.evict.auto import Auto
from kvist.cache.evict.base import Habits
from kvist.cache.ghosts import Ghost
from kvist.cache.habits import MOST_POOLS, RECENT_WAITS, START, Observer, known_bytes
from kvist.cache.node import Node
from kvist.cache.queue import EvictQueue
from kvist.cache.turnover import TIMES, Turnover
from kvist.errors import BadValue

ONE = layout_of((4, FULL))
BURSTS = Habits(in_turn=False, fresh_first=(False, False), usual_gap=64)


def rate(requests: list[Request], cached: float) -> float:
    return 100 * cached / sum(len(prompt) for prompt, _ in requests)


def node_of(
    last_use: int, gap: int = 0, *, behind: bool = False, start: int = 0, tokens: int = 8, reach: int = 0
) -> Node:
    node = Node(None, None, start, bytes(4 * tokens), [], 1)  # type: ignore[arg-type]
    node.last_use, node.gap, node.behind, node.reach = last_use, gap, behind, reach
    return node


@pytest.mark.parametrize("requests, blocks", [
    (turns("loop"), 200), (turns("loop"), 120), (turns("loop", conversations=24, rounds=8), 400),
    (groups("loop", each=32), 120), (groups("loop", each=32), 100), (groups("loop", prefixes=32, each=32), 300),
])  # fmt: skip
def test_turns_and_loops_are_within_two_points_of_the_optimum(requests: list[Request], blocks: int) -> None:
    best, got, lru = (
        optimum(requests, 32, blocks),
        served(requests, 32, blocks, "auto"),
        served(requests, 32, blocks, "lru"),
    )
    assert rate(requests, best - got) < 2 and rate(requests, got - lru) > 10


@pytest.mark.parametrize("prefixes, blocks", [(8, 120), (8, 100), (32, 420), (32, 300)])
def test_drawn_prefixes_are_within_two_points_of_what_can_be_expected(prefixes: int, blocks: int) -> None:
    short = []
    for seed in range(3):
        requests = groups("drawn", seed, prefixes, 32)
        best = best_online(requests, PREFIX, 32, blocks)
        assert best < optimum(requests, 32, blocks)
        short.append(rate(requests, best - served(requests, 32, blocks, "auto")))
    assert sum(short) / len(short) < 2, short


@pytest.mark.parametrize("make, blocks", [
    (lambda seed: turns("shuffled", seed), 200), (lambda seed: turns("shuffled", seed), 120),
    (lambda seed: turns("shuffled", seed, conversations=24), 200), (lambda seed: turns("grouped", seed), 120),
    (lambda seed: groups("grouped", seed), 120), (lambda seed: groups("shuffled", seed), 100), (scan, 100),
    (popular, 120), (popular, 300), (drift, 120), (drift, 60),
])  # fmt: skip
def test_never_more_than_a_point_below_least_recently_used(make, blocks: int) -> None:
    short = []
    for seed in range(3):
        requests = make(seed)
        short.append(rate(requests, served(requests, 32, blocks, "lru") - served(requests, 32, blocks, "auto")))
    assert sum(short) / len(short) < 1, short


@pytest.mark.parametrize("blocks", [200, 140, 80])
def test_turns_that_fit_and_end_are_not_kept(blocks: int) -> None:
    """What open conversations need is there in 110 blocks: with more, those that ended go by recency, as in ``lru``."""
    short = []
    for seed in range(3):
        requests = endings(seed)
        short.append(rate(requests, served(requests, 32, blocks, "lru") - served(requests, 32, blocks, "auto")))
    assert sum(short) / len(short) < (1 if blocks > 110 else -30), short


def test_the_best_online_by_hand() -> None:
    """Two prefixes of two blocks, then one of their own: 3 of 4 blocks can hold prefixes, of 2, then of 4 seen."""
    a, b = [1] * 8, [2] * 8
    asked: list[Request] = [(p + [i] * 4, []) for i, p in enumerate((a, a, b, a), 10)]
    assert best_online(asked, 8, 4, 4) == 8 + 0 + 8 * 3 / 4
    assert best_online(asked, 8, 4, 5) == 16


def test_priorities() -> None:
    with pytest.raises(BadValue, match="patience=0 .*at least 1"):
        Auto(0)
    policy, used, new, next_turn = Auto(), node_of(10, 4), node_of(10), node_of(10, behind=True)
    assert policy.priority(used, START) == (0, 18) and policy.priority(new, START) == (0, 10)
    assert policy.spared(used, 17, START) == (1, -14) and policy.spared(used, 18, START) is None
    assert policy.spared(new, 10, START) is None
    assert policy.priority(used, BURSTS) == policy.priority(new, BURSTS) == (0, 74), "recency alone"
    assert policy.spared(used, 11, BURSTS) is None
    turns_go_on = Habits(in_turn=True, fresh_first=(True, False), usual_gap=64)
    assert policy.priority(next_turn, turns_go_on) == (0, 42) and policy.priority(new, turns_go_on) == (0, 10)
    assert policy.priority(next_turn, turns_go_on._replace(usual_gap=0)) == (0, 12), "nothing known: soon"


def test_regular_waits() -> None:
    """Equal waits are regular; wild ones are not, however many short ones there are between; and back again."""
    observer, now = Observer(4, 8), 0
    for i in range(20):
        observer.admit([node_of(now, 30, reach=8)], 8, None, now + 31, 8 * i)
    assert observer.habits() == Habits(in_turn=True, fresh_first=(False, True), usual_gap=128)
    for wait in (100, 5, 300, 60, 7, 150, 20, 400) * 2:
        observer.admit([node_of(now, 30, reach=8)], 8, None, now + wait, 160)
        observer.admit([node_of(now, 1, reach=8)], 8, None, now + 1, 160)
    assert not observer.habits().in_turn and observer.habits().usual_gap >= 256
    for _ in range(40):
        observer.admit([node_of(now, 30, reach=8)], 8, None, now + 30, 160)
    assert observer.habits().in_turn


def test_turns_count_while_recency_would_lose_them() -> None:
    """A run comes back every 30 ticks, and meanwhile so many blocks were written of a pool of 100."""
    observer, written, now = Observer(4, 100), 0, 0

    def back(blocks: int) -> bool:
        nonlocal written, now
        written, now = written + blocks, now + 30
        observer.admit([node_of(now - 30, 30, reach=8)], 8, None, now, written)
        return observer.habits().in_turn

    assert back(40), "nothing is known yet"
    assert [back(40) for _ in range(RECENT_WAITS)][-1] is False
    assert not back(94) and back(96), "a greater need counts at once"
    assert back(94) and all(back(94) for _ in range(40)), "enough is less than short"
    assert not back(40)
    assert back(10**6)
    held = [back(40) for _ in range(3 * RECENT_WAITS)]
    assert 5 < held.index(False) < RECENT_WAITS * MOST_POOLS, "one wild wait is forgotten soon"


def test_blocks_used_since_a_tick() -> None:
    """Written ones in full; one used over and over once; the beginning of a node by its part; far back about right."""
    turnover = Turnover()
    hot = node_of(0, tokens=8)
    hot.blocks = [[1, 2]]  # type: ignore[list-item]
    turnover.use([], 0, 0, 0, 0)
    assert turnover.since(0) == 0
    for now in range(10, 110, 10):
        turnover.use([hot], 8, now, now, 50)
        hot.last_use = now
    assert turnover.since(50) == turnover.since(59) == pytest.approx(50 + 2), "five times a fifth of two"
    cold = node_of(0, tokens=8)
    cold.blocks, cold.holes = [[1, 2], [0, 3]], 1  # type: ignore[list-item]
    before = turnover.since(50)
    turnover.use([cold], 4, 100, 120, 50)
    turnover.use([], 0, 100, 130, 50)
    assert turnover.since(50) == pytest.approx(before + 0.4 + 1.5), "the hot one's last use, half of three"
    for now in range(140, 140 + 5 * TIMES):
        turnover.use([], 0, now, now, 50)
    assert 0 <= turnover.since(5000) - (140 + 5 * TIMES - 1 - 5000) <= 16
    assert len(turnover._ticks) <= TIMES


def test_new_runs_that_come_back() -> None:
    """Counted apart: those that share nothing and those behind something cached, in the tree or evicted."""
    observer = Observer(4, 100)
    for _ in range(10):
        observer.admit([], 0, None, 1, 4)
    assert observer.habits().fresh_first == (True, False)
    for _ in range(6):
        observer.admit([node_of(1)], 8, None, 5, 4)
    assert observer.habits().fresh_first == (False, True)
    for _ in range(6):
        observer.admit([node_of(1, behind=True)], 8, None, 5, 4)
    assert observer.habits().fresh_first == (False, False)
    for _ in range(30):
        observer.admit([node_of(1, 4, reach=8)], 8, None, 5, 4)
    before = observer._again[True]
    assert observer.habits().fresh_first == (False, True)
    observer.admit([node_of(1, 4, tokens=20, reach=8)], 16, None, 5, 4)
    assert observer._again[True] > before, "the next turn in a node that began as a first prompt"
    for _ in range(30):
        observer.admit([], 0, Ghost(1, 0, 0, True), 5, 4)
    assert observer.habits().fresh_first == (False, False)
    observer.admit([node_of(1, 4, reach=4)], 8, None, 5, 4)
    assert observer.admissions == 84


def test_known_bytes() -> None:
    """Up to where uses went, in whole spans; everything behind a run nobody used, be it evicted before or not."""
    assert known_bytes(node_of(1), 40, None, 4) == 40
    assert known_bytes(node_of(1, reach=8), 40, None, 4) == 0
    assert known_bytes(node_of(1, reach=13), 40, None, 4) == 16, "4 of 5 tokens"
    assert known_bytes(node_of(1), 40, Ghost(1, 16, 3, False), 4) == 32
    assert known_bytes(node_of(1), 40, Ghost(1, 8, 3, False), 4) == 40, "the ghost ends in front"
    assert known_bytes(node_of(1), 40, Ghost(1, 99, 3, False), 4) == 40


def test_what_is_behind_a_used_prefix_is_a_node_of_its_own() -> None:
    """Questions behind a prefix that nobody repeats: it stays whole, they go first. Turns that go on: one long node."""
    desk = Desk(ONE, 40, policy=Auto())
    prefix = list(range(100, 124))
    for i in range(40):
        desk.serve([*prefix, *[i] * 20])
    assert desk.cache.match(prefix, limit=24).cached_tokens == 24
    desk = Desk(ONE, 400, policy=Auto())
    tokens: list[int] = []
    for i in range(20):
        tokens += [i] * 8
        desk.serve(tokens)
    assert desk.cache._tree.nodes <= 4


def test_the_queue_is_put_in_order_anew_at_a_bounded_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Habits that flip all the time: entries sorted again per admission stay below a constant."""
    asked: Counter[str] = Counter()
    plain = Auto.priority

    def priority(self, node, habits):
        asked["all"] += 1
        return plain(self, node, habits)

    desk = Desk(ONE, 2000, check=False, policy=Auto())
    for i in range(600):
        desk.serve([i] * 8)
    monkeypatch.setattr(Auto, "priority", priority)
    monkeypatch.setattr(Observer, "habits", lambda self: BURSTS if self.admissions % 2 else START)
    for i in range(400):
        desk.serve([i] * 8)
    assert 0 < asked["all"] < 60 * 400, asked
    assert desk.cache.counters.evicted_blocks == 0


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_laws_hold(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver of the laws, with tenants, windows and all; habits changed on the way."""
    changed: Counter[str] = Counter()
    plain = EvictQueue._settle

    def settle(self: EvictQueue) -> None:
        before = self._kept.habits
        plain(self)
        changed["habits"] += before != self._kept.habits

    monkeypatch.setattr(EvictQueue, "_settle", settle)
    monkeypatch.setattr(cache_paper, "Cache", lambda *a, **k: Cache(*a, policy=Auto(), **k))
    for seed in range(4):
        Driver(LAYOUTS[name], seed, blocks=(24, 48, 80)[seed % 3]).run(200)
    assert changed["habits"]
