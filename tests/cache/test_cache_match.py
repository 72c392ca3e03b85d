"""Where a prompt leaves the tree, why, and what the tree looks like afterwards."""

from __future__ import annotations

import random

import pytest
from cache_paper import FULL, Desk, layout_of, window

from kvist.cache.groups import GroupRule
from kvist.cache.node import common_bytes
from kvist.errors import BadValue, StateError
from kvist.ids import GroupId, SeqId
from kvist.spec.format import KVFormat
from kvist.spec.layer import Retention
from kvist.spec.layout import CacheLayout

ONE = layout_of((4, FULL))
HYBRID = layout_of((4, FULL), (8, window(9)))


def shape(desk: Desk) -> list[tuple[int, int, bool, int]]:
    """(start, end, open, children) of every node, by position and order."""
    out, stack = [], [c for r in desk.cache._tree.roots.values() for c in r.children.values()]
    for node in stack:
        out.append((node.start, node.end, node.open, len(node.children)))
        stack += node.children.values()
    return sorted(out)


def test_reasons() -> None:
    desk = Desk(ONE, 64)
    match = desk.cache.match
    assert match([1, 2, 3]).reason == "empty"
    desk.serve(list(range(10)))
    got = match(list(range(10)))
    assert (got.cached_tokens, got.reason, got.first_differing) == (9, "limit", 10)
    assert (got.shared_blocks, got.copied_blocks) == (2, 1)
    got = match(list(range(10)), limit=10)
    assert (got.cached_tokens, got.reason) == (10, "end")
    got = match([*range(10), 99, 98])
    assert (got.cached_tokens, got.reason, got.first_differing) == (10, "end", 10)
    got = match([0, 1, 2, 3, 4, 5, 99, 7, 8])
    assert (got.cached_tokens, got.reason, got.first_differing) == (6, "diverged", 6)
    got = match(list(range(10)), limit=5)
    assert (got.cached_tokens, got.reason, got.first_differing) == (5, "limit", 10)
    assert match([50, 51]).reason == "diverged"
    assert match(list(range(10)), salt=b"x").reason == "empty"
    assert match([]).cached_tokens == 0
    before = desk.cache._tree.tick
    assert desk.cache.counters.queries == 1 and before == desk.cache._tree.tick, "match leaves no trace"


def test_reuse_off_says_so() -> None:
    desk = Desk(ONE, 16, reuse=False)
    assert desk.serve(list(range(10))) == desk.serve(list(range(10))) == 0
    assert desk.cache.match(list(range(10))).reason == "off"
    assert desk.cache.cached_blocks == 0


def test_nodes_split_at_spans_and_tails_are_superseded() -> None:
    desk = Desk(ONE, 64)
    desk.serve(list(range(10)))
    assert shape(desk) == [(0, 8, False, 1), (8, 10, True, 0)]
    desk.serve(list(range(11)))
    assert shape(desk) == [(0, 8, False, 1), (8, 11, True, 0)], "a longer tail replaces a shorter one"
    desk.serve(list(range(9)))
    assert shape(desk) == [(0, 8, False, 1), (8, 11, True, 0)], "a shorter one adds nothing"
    desk.serve(list(range(14)))
    assert shape(desk) == [(0, 12, False, 1), (12, 14, True, 0)], "a full span swallows the tail, the leaf grows"
    desk.serve([0, 1, 2, 3, 4, 5, 6, 99])
    assert shape(desk) == [(0, 4, False, 2), (4, 8, False, 0), (4, 12, False, 1), (12, 14, True, 0)]
    assert desk.cache.counters.superseded_tails == 2
    desk.serve([0, 1, 2, 3, 4, 5, 77])
    assert (4, 7, True, 0) in shape(desk), "tails of one node live side by side"
    assert desk.cache.match([0, 1, 2, 3, 4, 5, 77, 78]).cached_tokens == 7


def test_longest_common_run_wins_whatever_the_crowd() -> None:
    """400 children that begin with the same tokens: the nearest in sorted order has the longest run."""
    rng = random.Random(9)
    desk = Desk(layout_of((16, FULL)), 2000, check=False)
    prompts = [[7, 7] + [rng.randrange(3) for _ in range(rng.randint(3, 30))] for _ in range(400)]
    for prompt in prompts:
        desk.serve(prompt)
    desk.cache.check()
    for _ in range(400):
        query = [7, 7] + [rng.randrange(3) for _ in range(40)]
        best = max(next((i for i, (a, b) in enumerate(zip(p, query, strict=False)) if a != b), len(p)) for p in prompts)
        assert desk.cache.match(query).cached_tokens == best


@pytest.mark.parametrize("layout", [ONE, HYBRID, layout_of((16, FULL), (4, FULL))], ids=["one", "hybrid", "two"])
def test_f004_every_divergence(layout: CacheLayout) -> None:
    """Store A; look up A, A + x and A[:j] + y for every j: matched + to compute = all, no index missing or repeated."""
    a = list(range(100, 141))
    for j in range(len(a) + 1):
        desk = Desk(layout, 128)
        desk.serve(a)
        query = a[:j] + [1, 2, 3]
        seq = desk.start(query)
        cached = desk.admission.cached_tokens
        assert cached == j or desk.admission.match.reason == "window"
        assert cached == desk.cache.computed(seq)
        assert cached + desk.compute(seq) == len(query)  # reads and writes are checked slot by slot
        desk.read(seq)
    desk = Desk(layout, 128)
    desk.serve(a)
    assert desk.serve(a) == len(a) - 1 and desk.serve([*a, 5]) == len(a)


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("off", [-1, 0, 1])
def test_f003_a_full_hit_still_computes_a_token(k: int, off: int) -> None:
    desk = Desk(ONE, 64)
    prompt = list(range(4 * k + off))
    assert desk.serve(prompt) == 0
    seq = desk.start(prompt)
    assert desk.admission.cached_tokens == len(prompt) - 1
    before = desk.paper.writes
    assert desk.compute(seq) == 1 and desk.paper.writes == before + 1, "one slot written, none past the end"
    assert len(desk.cache.table(seq)[0]) == -(-len(prompt) // 4)


def test_f003_a_single_token() -> None:
    desk = Desk(ONE, 8)
    assert desk.serve([5]) == desk.serve([5]) == 0
    assert desk.cache.match([5], limit=1).cached_tokens == 1


def test_window_hits_step_back_to_what_is_there() -> None:
    """A tombstone in the window group cuts the hit; computing it again fills the hole; then the hit is whole."""
    desk = Desk(HYBRID, 32)
    prompt = list(range(64))
    desk.serve(prompt)
    tree = desk.cache._tree
    node = next(iter(next(iter(tree.roots.values())).children.values()))
    tree.tombstone(node, tree.rules[1], [4])
    desk.cache.check()
    assert desk.cache.match(prompt).cached_tokens == 63, "not needed there"
    got = desk.cache.match([*prompt[:44], 1])
    assert (got.cached_tokens, got.reason, got.first_differing) == (32, "window", 44)
    seq = desk.start([*prompt[:44], 1])
    desk.compute(seq)
    assert desk.cache.counters.filled_blocks == 1
    assert desk.cache.match([*prompt[:44], 2]).cached_tokens == 44
    desk.finish(seq)


def test_group_arithmetic_against_the_slow_answer() -> None:
    for retention in (window(1), window(5), window(8), window(9), Retention(chunk_tokens=6), Retention(chunk_tokens=8)):
        for tokens in (4, 8):
            rule = GroupRule(GroupId(0), tokens, 1, retention, True, 0)
            for block in range(6):
                slow = next(n for n in range(200) if retention.first_needed(n) // tokens > block)
                assert rule.release_at(block) == slow


def test_held_blocks_are_what_the_layout_promises() -> None:
    """After every commit a sequence holds exactly ``layout.blocks_for``: the planner's figure."""
    for layout in (
        ONE, HYBRID, layout_of((4, window(5, sinks=3))), layout_of((4, FULL), (8, window(7, sinks=9))),
        layout_of((4, Retention(chunk_tokens=12)), (8, FULL)),
    ):  # fmt: skip
        desk = Desk(layout, 256)
        seq = desk.start(list(range(90)))
        for end in range(1, 91):
            desk.compute(seq, end)
            assert desk.cache.held_blocks(seq) == layout.blocks_for(end)
        for step in (1, 3, 8, 30, 90):
            seq = desk.start([step] * 90)
            for end in [*range(step, 90, step), 90]:
                desk.cache.extend(seq, end)
                assert desk.cache.held_blocks(seq) <= layout.peak_blocks_for(90, step)
                desk.cache.commit(seq, desk.tokens[seq], end)
            desk.finish(seq)


def test_common_bytes() -> None:
    rng = random.Random(2)
    for _ in range(300):
        n, same = rng.randint(0, 900), rng.randint(0, 900)
        a = rng.randbytes(4 * n)
        b = bytearray(a)
        if same < n:
            b[4 * same + rng.randrange(4)] ^= 1
        assert common_bytes(a, 0, b, 0) == 4 * min(same, n)
        assert common_bytes(b"1234" + a, 4, a[: 4 * (n // 2)], 0) == 4 * (n // 2)


def test_errors_teach() -> None:
    desk = Desk(ONE, 4)
    seq = desk.start([1, 2, 3])
    cache = desk.cache
    for call, words in (
        (lambda: cache.admit(seq, [1]), "admitted already; release it first"),
        (lambda: cache.fork(seq, seq), "admitted already"),
        (lambda: cache.extend(SeqId(9), 1), "sequence 9 is not admitted"),
        (lambda: cache.commit(seq, [1, 2, 3], 3), "cannot commit 3 tokens: 0 are committed, 0 covered, 3 given"),
        (lambda: cache.truncate(seq, 2), "covers 0 tokens and cannot be cut to 2"),
        (lambda: Desk(CacheLayout((), 64, KVFormat(), state_bytes=640), 4), "640 bytes of recurrent state"),
        (lambda: Desk(CacheLayout((), 64, KVFormat()), 4), "no groups"),
    ):
        with pytest.raises(StateError, match=words):
            call()
    with pytest.raises(BadValue, match="extras"):
        cache.admit(SeqId(7), [1], extras=(b"short",))
    assert cache.sequences() == (seq,)
    cache.check()
