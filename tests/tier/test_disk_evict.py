"""What goes when the tier is full: the longest unused, leaves first, never what the chain being written stands on."""

import random

import pytest
from crash_bench import MIB, chain, check_books, get, ids_of, opened, physical, put, record, rid


def count(tier, name, n):
    return sum(tier.exists_many([rid(f"{name}{i}") for i in range(n)]))


def test_the_longest_unused_goes_first_and_the_order_outlives_the_process(tmp_path):
    tier = opened(tmp_path / "c", MIB)
    for name in "abcd":
        put(tier, chain(name, 18))
    get(tier, chain("a", 18))
    tier.touch_many(ids_of(chain("b", 18)))
    tier.close()
    tier = opened(tmp_path / "c", MIB)
    room = (MIB - tier.usage().used_bytes) // 8192
    assert room < 60
    put(tier, chain("e", 18))
    assert [count(tier, n, 18) for n in "abe"] == [18, 18, 18] and count(tier, "c", 18) < 18
    left = tier.exists_many(ids_of(chain("c", 18)))
    assert left == sorted(left, reverse=True), "from the end of the chain"
    tier.close()


def test_uses_of_a_descendant_keep_its_ancestors(tmp_path):
    """Also when only the last record of a chain was ever used again, and its ancestors are the oldest of all."""
    tier = opened(tmp_path / "c", MIB)
    put(tier, chain("a", 18))
    for name in "bcd":
        put(tier, chain(name, 18))
        get(tier, chain("a", 18)[-1:])
    for name in "efghij":
        assert put(tier, chain(name, 18)) == ["stored"] * 18
        tier.touch_many(ids_of(chain("a", 18)[-1:]))
        assert count(tier, "a", 18) == 18
    for name in "klmnop":
        put(tier, chain(name, 18))
    assert count(tier, "a", 18) == 0, "and it ages like all others"
    tier.close()


@pytest.mark.parametrize("seed", range(6))
def test_no_ancestor_goes_before_its_descendants(tmp_path, seed):
    """Random trees, sizes, uses, partial chains, restarts: held after every step, with the books and the bounds."""
    draw, folder = random.Random(seed), tmp_path / "c"
    tree = {}
    for i in range(150):
        parent = draw.choice([None, *list(tree)[-12:]]) if tree else None
        depth = tree[parent].label.depth + 1 if parent else 0
        tree[f"n{i}"] = record(f"n{i}", parent, depth, size=draw.choice([4096, 4096, 9000]) if seed % 2 else 4096)
    by_id = {r.label.id: r for r in tree.values()}

    def path(r):
        up = [r]
        while up[-1].label.parent:
            up.append(by_id[up[-1].label.parent])
        return up[::-1]

    tier = opened(folder, MIB)
    rooted = set()
    for step in range(120):
        r = draw.choice(list(tree.values()))
        whole = path(r)
        act = draw.randrange(10)
        if act < 6:
            part = whole if draw.random() < 0.7 else whole[len(whole) // 2 :]
            for p, answer in zip(part, put(tier, part), strict=True):
                if answer == "stored":
                    rooted.discard(p.label.id)
                    if not p.label.parent or tier.exists_many([p.label.parent])[0]:
                        rooted.add(p.label.id)
        elif act < 8:
            assert get(tier, draw.choice([whole, whole[-1:]]))[1]
        elif act == 8:
            tier.touch_many(ids_of(draw.choice([whole, whole[-1:], whole[:1]])))
        elif step % 3 == 0:
            tier.close()
            tier = opened(folder, MIB)
        present = {i for i, there in zip(by_id, tier.exists_many(list(by_id)), strict=True) if there}
        lost = [i for i in present & rooted if by_id[i].label.parent and by_id[i].label.parent not in present]
        assert not lost, f"step {step}"
        assert physical(folder) <= MIB
        facts, usage = check_books(folder), tier.usage()
        assert facts == {"records": usage.records, "used_bytes": usage.used_bytes}
    assert tier.usage().evicted_records > 15
    tier.close()


@pytest.mark.parametrize("batch", [1, 7, 64, 1000])
def test_a_chain_longer_than_the_capacity_keeps_its_beginning(tmp_path, batch):
    """Whatever the calls it comes in: the end is refused, nothing of it is evicted, again and again."""
    tier = opened(tmp_path / "c", MIB)
    records = chain("a", 150)
    for _ in range(3):
        answers = [a for at in range(0, 150, batch) for a in put(tier, records[at : at + batch])]
        stored = sum(a != "full" for a in answers)
        assert answers[stored:] == ["full"] * (150 - stored) and 60 < stored < 120
        assert tier.exists_many(ids_of(records)) == [True] * stored + [False] * (150 - stored)
        assert tier.usage().evicted_records == 0
    tier.close()


@pytest.mark.parametrize("batch", [8, 64])
def test_two_long_prompts_alternate(tmp_path, batch):
    """F053: budget 1.5 prompts. After each request that prompt is covered to 80 % and more; few bytes are written."""
    n = 200
    # What the index is given of so small a capacity is no part of the budget.
    tier = opened(tmp_path / "c", int(1.5 * n * (8192 + 640)) + 2 * MIB // 5)
    written = useful = 0
    for turn, name in enumerate(["p", "p", "q", "p", "q", "p", "q", "q", "p"]):
        records = chain(name, n)
        there = tier.exists_many(ids_of(records))
        prefix = there.index(False) if False in there else n
        useful += sum(g == "hit" for g in get(tier, records[:prefix])[0])
        answers = [a for at in range(prefix, n, batch) for a in put(tier, records[at : at + batch])]
        written += sum(a == "stored" for a in answers)
        assert count(tier, name, n) >= 0.8 * n, (turn, name)
        other = tier.exists_many(ids_of(chain("q" if name == "p" else "p", n)))
        assert other == sorted(other, reverse=True)
    assert written <= 2 * useful, (written, useful)
    tier.close()


def test_a_tail_without_its_ancestors_evicts_nobody(tmp_path):
    tier = opened(tmp_path / "c", MIB)
    put(tier, chain("a", 18))
    assert put(tier, chain("lost", 18, start=9)) == ["stored"] * 9, "free room is free"
    put(tier, chain("b", 70))
    before = tier.usage().evicted_records
    assert set(put(tier, chain("c", 40, start=20))) == {"full"} and tier.usage().evicted_records == before
    assert put(tier, chain("c", 20)) == ["stored"] * 20 and put(tier, chain("c", 40, start=20)) == ["stored"] * 20
    tier.close()


def test_another_size_takes_the_room_over(tmp_path):
    """Slots of a size that nobody asks for are given back, not kept for ever; and back again."""
    folder = tmp_path / "c"
    tier = opened(folder, 2 * MIB)
    for turn in range(3):
        assert put(tier, chain(f"small{turn}", 170))[-1] == "stored"
        assert physical(folder) <= 2 * MIB
        big = chain(f"big{turn}", 20, size=60_000)
        assert put(tier, big) == ["stored"] * 20 and get(tier, big) == (["hit"] * 20, True)
        assert physical(folder) <= 2 * MIB and tier.usage().used_bytes > MIB
    tier.close()
    check_books(folder)


def test_a_smaller_capacity_at_the_next_start(tmp_path):
    folder = tmp_path / "c"
    tier = opened(folder, 4 * MIB)
    put(tier, chain("a", 200) + chain("b", 100))
    tier.close()
    tier = opened(folder, MIB)
    assert physical(folder) <= MIB and 40 < tier.usage().records < 100
    assert count(tier, "a", 200) == 0 or count(tier, "b", 100) == 100
    b = chain("b", count(tier, "b", 100))
    assert get(tier, b) == (["hit"] * len(b), True)
    tier.close()
    check_books(folder)


def test_pending_touches_are_bounded_and_merge(tmp_path):
    from kvist.tier.disk import touches

    t = touches.Touches()
    flush = [t.add([rid(f"x{i}")], hits=1) for i in range(touches.FLUSH_AT)]
    assert flush.count(True) == 1 and flush[-1]
    for i in range(touches.MOST + 10):
        t.add([rid(f"y{i}")], hits=0)
    assert len(t._seen) <= touches.MOST + 1
