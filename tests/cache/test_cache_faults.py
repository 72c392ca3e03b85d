"""Faults seen in other caches, at the level of blocks and tables. Numbers as in the list of faults; every scenario has
a positive check, so that a cache that does nothing cannot pass."""

from __future__ import annotations

import random

import pytest
from cache_paper import FULL, LAYOUTS, Desk, Driver, layout_of, window

from kvist.errors import PoolFull, StateError
from kvist.ids import NULL_BLOCK, SeqId
from kvist.spec.layer import Retention

ONE = layout_of((4, FULL))
HYBRID = layout_of((4, FULL), (8, window(8)))


def books(desk: Desk) -> tuple:
    cache = desk.cache
    return cache.free_blocks, cache.cached_blocks, cache.live_blocks, [cache.table(s) for s in cache.sequences()]


def test_f002_two_block_sizes_hit_to_the_token() -> None:
    desk = Desk(HYBRID, 64)
    prompt = list(range(29))
    assert [desk.serve(prompt) for _ in range(4)] == [0, 28, 28, 28]
    assert desk.serve(prompt[:12] + [77] * 5) == 12


def test_f005_nothing_matches_before_it_is_written() -> None:
    """A is admitted and given blocks, then cancelled: B finds nothing. After a commit it does."""
    for commit in (False, True):
        desk = Desk(ONE, 32)
        prompt = list(range(16))
        a = desk.start(prompt)
        desk.cache.extend(a, 16)
        assert desk.cache.match([*prompt, 1]).cached_tokens == 0
        if commit:
            desk.compute(a)
        else:
            desk.send()
        assert desk.cache.match([*prompt, 1]).cached_tokens == 16 * commit
        desk.finish(a)
        b = desk.start([*prompt, 1])
        assert desk.admission.cached_tokens == 16 * commit
        desk.compute(b)


def test_f005_drafts_do_not_match() -> None:
    desk = Desk(ONE, 32)
    a = desk.start(list(range(16)))
    desk.compute(a, 16, commit=False)
    desk.cache.commit(a, list(range(16)), 7)
    assert desk.cache.match(list(range(16))).cached_tokens == 4
    desk.finish(a)
    assert desk.cache.match(list(range(16))).cached_tokens == 7


@pytest.mark.parametrize("lifo", [False, True])
def test_f006_duplicates_of_the_same_step(lifo: bool) -> None:
    """A and B prefill the same prompt in one step; C takes every free block; A and B decode on, unharmed."""
    desk = Desk(ONE, 40, lifo=lifo)
    prompt = list(range(16))
    a, b = desk.start(prompt), desk.start(prompt)
    desk.compute(a), desk.compute(b)
    assert desk.cache.counters.duplicate_blocks == 4 and desk.cache.live_blocks == 8
    c = desk.start([50] * 80)
    desk.compute(c)
    assert not set(desk.cache.table(c)[0]) & {*desk.cache.table(a)[0], *desk.cache.table(b)[0]}
    for _ in range(20):
        for seq in (a, b):
            desk.tokens[seq].append(len(desk.tokens[seq]) % 7 + seq)
            desk.compute(seq)
            desk.read(seq)
    for seq in (a, b, c):
        desk.finish(seq)
    assert desk.cache.live_blocks == 0 and desk.cache.free_blocks + desk.cache.cached_blocks == 40


def test_f008_pool_of_six() -> None:
    """X cached in 4 blocks, 2 free; R = X + 3 new: it does not fit, waits, and never holds a block twice."""
    desk = Desk(ONE, 6)
    x = list(range(16))
    desk.serve(x)
    assert (desk.cache.cached_blocks, desk.cache.free_blocks) == (4, 2)
    r = desk.start([*x, *[9] * 12])
    assert desk.admission.cached_tokens == 16 and desk.cache.available_blocks == 2
    before = books(desk)
    with pytest.raises(PoolFull, match="3 blocks needed, 2 free or evictable"):
        desk.cache.extend(r, 28)
    assert books(desk) == before
    desk.compute(r, 24)  # what fits
    held = desk.cache.table(r)[0]
    assert len(set(held)) == 6
    desk.finish(r, publish=False)
    assert desk.cache.match([*x, 1]).cached_tokens == 16
    desk = Desk(ONE, 7)
    desk.serve(x), desk.serve([40] * 4)
    r = desk.start([*x, *[9] * 12])
    desk.compute(r)  # the third block comes from the other entry
    assert desk.cache.match([40] * 4).cached_tokens == 0 and desk.cache.counters.evicted_blocks == 1


def test_f008_a_hit_is_shortened_when_its_copy_cannot_be_had() -> None:
    desk = Desk(ONE, 5)
    desk.serve(list(range(18)))
    assert (desk.cache.free_blocks, desk.cache.cached_blocks) == (0, 5)
    r = desk.start([*range(18), 99])
    assert desk.admission.match.reason == "full" and desk.admission.cached_tokens == 16
    assert desk.admission.match.first_differing == 18
    got = desk.cache.admit(SeqId(50), [*range(18), 99], copies=False)
    assert (got.cached_tokens, got.match.reason) == (16, "limit")
    desk.compute(r)  # the tail gives up its block
    desk.read(r)


@pytest.mark.slow
def test_f008_ten_thousand_operations() -> None:
    driver = Driver(LAYOUTS["full"], 8, blocks=24)
    driver.run(10_000)
    assert driver.done["hit"] > 100 and driver.done["pool full"] > 100


def test_f009_a_stored_prefix_is_never_written() -> None:
    """Questions q1, q2, q3, q1 from one stored prefix: its slots are the same before and after each."""
    for layout in (ONE, HYBRID):
        desk = Desk(layout, 64)
        x = list(range(18))
        desk.serve(x)
        tree = desk.cache._tree
        stored = {b: dict(desk.paper.slots[b]) for b in range(64) if tree.owner[b] is not None}
        for question, cached in (([50, 51], 18), ([60, 61, 62], 18), ([70], 18), ([50, 51], 19)):
            seq = desk.start([*x, *question])
            assert desk.admission.cached_tokens == cached
            desk.compute(seq)
            for group, ids in zip(layout.groups, desk.cache.table(seq), strict=True):
                own = ids[16 // group.tokens_per_block :]
                assert not any(b in stored for b in own), "the open span is the sequence's own"
            desk.finish(seq)
            for block, slots in stored.items():
                if tree.owner[block] is not None:
                    assert all(desk.paper.slots[block][k] == v for k, v in slots.items())


@pytest.mark.parametrize("lifo", [False, True])
def test_f024_no_stale_rows_behind_a_window(lifo: bool) -> None:
    """A runs far beyond its window while B and C keep taking the blocks it let go."""
    desk = Desk(layout_of((4, window(8)), (4, window(8))), 26, lifo=lifo)
    a = desk.start([1, 2, 3])
    taken = 0
    for step in range(60):
        desk.tokens[a].append(step)
        desk.compute(a)
        other = desk.start([500 + step] * 9)
        taken += desk.compute(other)
        live = {b for s in desk.cache.sequences() for ids in desk.cache.table(s) for b in ids if b != NULL_BLOCK}
        rows = [b for g in (0, 1) for b in desk.paper.tables[a, g] if b != NULL_BLOCK]
        assert set(rows) <= live and desk.paper.tables[a, 0] == list(desk.cache.table(a)[0])
        assert not set(rows) & {b for ids in desk.cache.table(other) for b in ids}
        desk.read(a)
        desk.finish(other, publish=False)
    assert desk.cache.table(a)[0].count(NULL_BLOCK) > 10 and taken == 540
    assert desk.cache.held_blocks(a) == 4


def test_f025_rollback_below_the_window_is_refused() -> None:
    """Turn 1 is longer than W; then cut above, inside and below what is retained."""
    desk = Desk(layout_of((4, FULL), (4, window(8))), 64)
    a = desk.start(list(range(40)))
    desk.compute(a)
    before = books(desk)
    for end in (4, 12, 38):
        with pytest.raises(StateError, match=f"cannot be cut to {end}: the window of group 1"):
            desk.cache.truncate(a, end)
        assert books(desk) == before
    desk.cache.truncate(a, 39)
    desk.read(a)
    desk.finish(a)
    for shared, cached in ((39, 39), (20, 20), (4, 4)):  # the tree kept what the table let go
        b = desk.start(list(range(shared)) + [90, 91])
        assert desk.admission.cached_tokens == cached
        desk.compute(b)
        desk.finish(b, publish=False)
    desk.cache.truncate(c := desk.start([1, 2]), 0)
    desk.finish(c)


def test_f026_chunks_of_any_size_leave_the_same_rows() -> None:
    """P then S in chunks of 1, 3, L/2 and L: the same positions are held at the end, each in its place."""
    want = None
    for chunk in (1, 3, 8, 16):
        desk = Desk(layout_of((4, window(16, sinks=2)), (4, Retention(chunk_tokens=8))), 64)
        seq = desk.start(list(range(61)))
        for end in [*range(chunk, 61, chunk), 61]:
            desk.compute(seq, end)
            desk.read(seq)
        rows = [[b != NULL_BLOCK for b in ids] for ids in desk.cache.table(seq)]
        assert want in (None, rows)
        want = rows


@pytest.mark.parametrize("reuse", [False, True])
def test_f032_nothing_leaks(reuse: bool) -> None:
    """2,000 short requests with mixed outcomes: at idle nothing is live and free + cached = total, every round."""
    rng, desk = random.Random(4), Desk(HYBRID, 48, reuse=reuse, check=False)
    for _ in range(20):
        running: list[SeqId] = []
        for _ in range(100):
            seq = desk.start([rng.randrange(3) for _ in range(rng.randint(1, 20))])
            outcome = rng.randrange(5)
            if outcome and desk.cache.blocks_needed(seq, len(desk.tokens[seq])) <= desk.cache.available_blocks:
                desk.compute(seq)
            running.append(seq)
            if len(running) == 4 or outcome < 2:
                gone = running.pop(rng.randrange(len(running)))
                desk.finish(gone, publish=outcome != 3)
        for seq in running:
            desk.finish(seq)
        desk.send()
        desk.cache.check()
        assert desk.cache.live_blocks == 0 and desk.cache.free_blocks + desk.cache.cached_blocks == 48
    assert (desk.cache.cached_blocks > 0) == reuse


def test_f035_the_reference_is_on_the_block_of_the_node() -> None:
    """A caches X; B computes X on its own; C uses X. References count users of the node's own blocks."""
    desk = Desk(ONE, 16)
    x = list(range(12))
    desk.serve(x)
    b = desk.start([*x, 1], limit=0)
    desk.compute(b)
    c = desk.start([*x, 2])
    assert desk.admission.cached_tokens == 12
    desk.compute(c)
    pool = desk.cache._pool
    nodes = [n for n in pool.treed if n]
    assert len(nodes) == 3
    shared = desk.cache.table(c)[0][:3]
    assert [pool.refs[i] for i in shared] == [2, 2, 2], "the tree and c"
    assert [pool.refs[i] for i in desk.cache.table(b)[0]] == [1] * 4, "duplicates: b alone"
    free = desk.cache.free_blocks
    desk.finish(b, publish=False)
    assert desk.cache.free_blocks == free + 4
    d = desk.start([8] * 48)
    with pytest.raises(PoolFull):
        desk.cache.extend(d, 52)
    desk.compute(d)  # all but c's
    desk.read(c)


def test_f036_shared_blocks_are_counted_once() -> None:
    """256 requests of 16 prefix groups that diverge at every offset within a block: free + evictable + live = total."""
    for layout in (ONE, HYBRID):
        desk = Desk(layout, 300)
        rng = random.Random(6)
        for i in range(256):
            group, offset = i % 16, i // 16
            seq = desk.start([group] * (16 + offset) + [rng.randrange(100, 200) for _ in range(9)])
            if i >= 16:
                assert desk.admission.cached_tokens >= 16
            desk.compute(seq)
            assert desk.cache.free_blocks + desk.cache.cached_blocks + desk.cache.live_blocks == 300
            desk.finish(seq)
        assert desk.cache.available_blocks + desk.cache.live_blocks == 300
        desk.send()
        assert desk.cache.live_blocks == 0
        cached = desk.cache.cached_blocks
        assert desk.cache.reset() == cached and desk.cache.free_blocks == 300


@pytest.mark.parametrize("rest", [0, 1, 3])
@pytest.mark.parametrize("layout", [ONE, layout_of((8, FULL), (4, FULL))], ids=["one", "two"])
def test_f037_forks_share_full_blocks_and_copy_the_partial_one(rest: int, layout) -> None:
    desk = Desk(layout, 80)
    parent = desk.start(list(range(16 + rest)))
    desk.compute(parent)
    children = [desk.fork(parent) for _ in range(3)]
    whole = [ids[: 16 // g.tokens_per_block] for g, ids in zip(layout.groups, desk.cache.table(parent), strict=True)]
    for ids in whole:
        assert [desk.cache._pool.refs[b] for b in ids] == [5] * len(ids), "four tables and the tree"
    letter = desk.send()
    assert len(letter.copies) == (3 * len(layout.groups) if rest else 0)
    for i, seq in enumerate([parent, *children]):
        desk.read(seq)
        for step in range(9):
            desk.tokens[seq].append(100 * i + step)
            desk.compute(seq)
    desk.finish(children[1], publish=False)  # one is aborted
    for seq in (parent, children[0], children[2]):
        desk.tokens[seq].append(3)
        desk.compute(seq)
        desk.read(seq)
        desk.finish(seq)
    desk.send()
    assert desk.cache.live_blocks == 0
    assert desk.cache.match([*range(16 + rest), 300, 301, 302]).cached_tokens == 18 + rest


def test_f037_fork_without_room_changes_nothing() -> None:
    desk = Desk(ONE, 3)
    a = desk.start(list(range(9)))
    desk.compute(a)
    before = books(desk)
    with pytest.raises(PoolFull, match="1 blocks needed, 0 free"):
        desk.cache.fork(a, SeqId(77))
    assert books(desk) == before and desk.cache.sequences() == (a,)
    desk.cache.check()


def test_a_cut_into_shared_blocks_copies_before_the_next_write() -> None:
    desk = Desk(ONE, 16)
    a = desk.start(list(range(12)))
    desk.compute(a)
    old = desk.cache.table(a)[0]
    desk.cache.truncate(a, 6)
    assert desk.cache.table(a)[0] == old[:2] and desk.cache.counters.cow_blocks == 0
    assert (desk.cache.blocks_needed(a, 6), desk.cache.blocks_needed(a, 7), desk.cache.blocks_needed(a, 9)) == (0, 1, 2)
    desk.tokens[a] = [*range(6), 50, 51, 52]
    with pytest.raises(AssertionError, match="a shared block was written"):
        desk.cache.commit(a, desk.tokens[a], 7)
    desk.compute(a)
    new = desk.cache.table(a)[0]
    assert new[0] == old[0] and new[1] != old[1] and desk.cache.counters.cow_blocks == 1
    assert desk.cache.match([*range(12), 1]).cached_tokens == 12, "what was published stays"
    desk.read(a)


def test_resumed_under_the_same_id() -> None:
    """Preempted and admitted again: the first message starts from nothing, whatever the executor remembers."""
    desk = Desk(ONE, 16, reuse=False)
    a = desk.start(list(range(8)))
    desk.compute(a)
    desk.finish(a)
    desk.cache.admit(a, list(range(8)))
    letter = desk.send()
    assert [c.keep for c in letter.tables] == [0] and desk.paper.tables[a, 0] == []


def test_an_admission_taken_back_leaves_no_trace() -> None:
    """A gate admits, counts and refuses: nothing is copied, nothing stays pinned, everything is available again."""
    desk = Desk(ONE, 6)
    desk.serve(list(range(18)))
    desk.send()
    before = books(desk)
    a = desk.start([*range(18), 99])
    assert desk.admission.cached_tokens == 18 and desk.cache.available_blocks == 0
    desk.finish(a, publish=False)
    assert books(desk) == before and desk.send().copies == () and desk.cache.counters.copied_blocks == 0
    b = desk.start([77] * 24)  # the whole pool
    assert desk.compute(b) == 24


def test_counters_add_up() -> None:
    desk = Desk(ONE, 64)
    prompt = list(range(10))
    desk.serve(prompt)
    desk.serve(prompt)
    tally = desk.cache.counters
    assert (tally.queries, tally.hits, tally.query_tokens, tally.hit_tokens) == (2, 1, 20, 9)
    assert (tally.shared_blocks, tally.copied_blocks, tally.inserted_blocks) == (2, 1, 3)
    assert tally.stopped_empty == tally.stopped_limit == 1
    with pytest.raises(AttributeError):
        tally.hits = 5  # type: ignore[misc]
