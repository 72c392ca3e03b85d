"""The mover at work: saves, finds, loads, promotion, drops, and what it counts."""

import threading
import time

import pytest

torch = pytest.importorskip("torch")

from tier_stubs import (  # noqa: E402
    BLOCK_BYTES,
    ORIGIN,
    StubTier,
    chain,
    content,
    fill,
    holds,
    is_poison,
    load,
    mover,
    one,
    pool_of,
    record,
    save,
    settle,
)

from kvist.errors import BadValue, StateError  # noqa: E402
from kvist.transfer import Drop, Find, Kept, Save  # noqa: E402


def ids(name, n):
    return tuple(record(name, d) for d in range(n))


def test_what_was_saved_is_found_and_loaded():
    fast, slow = StubTier("ram"), StubTier("disk")
    m = mover([fast, slow])
    save(m, 1, "a", range(4), tenant="t")
    assert one(m) == Kept(1, stored=4, known=0, lost=0)
    for tier in (fast, slow):
        assert [label.depth for label, _ in tier.records.values()] == [0, 1, 2, 3]
        label, data = tier.records[record("a", 2)]
        assert (label.parent, label.origin, label.tenant) == (record("a", 1), ORIGIN, "t")
        assert data == content(record("a", 2)).tobytes()
    m.find(Find(2, ids("a", 6)))
    found = one(m)
    assert (found.tiers, found.queued_bytes) == ((0, 0, 0, 0, -1, -1), (0, 0))
    m.load(load(3, "a", [8, 9, 10, 11], [0, 0, 1, 1]))
    loaded = one(m)
    assert (loaded.good, loaded.reason, loaded.tier) == ((True,) * 4, "", -1)
    assert loaded.bytes == (2 * BLOCK_BYTES, 2 * BLOCK_BYTES) and loaded.seconds > 0
    assert all(holds(m, 8 + d, record("a", d)) for d in range(4))
    assert m.close()


def test_bytes_are_taken_at_the_call():
    tier = StubTier(put_s=0.02)
    m = mover([tier])
    save(m, 1, "a", range(3))
    pool_of(m).fill_(7)
    assert one(m).stored == 3
    assert all(tier.records[id][1] == content(id).tobytes() for id in ids("a", 3))


def test_known_in_all_that_took_it_is_known():
    fast, slow = StubTier("ram"), StubTier("disk")
    slow.give("a", 2)
    fast.give("a", 1)
    m = mover([fast, slow])
    save(m, 1, "a", range(3))
    assert one(m) == Kept(1, stored=2, known=1, lost=0)
    fast.put_answer = slow.put_answer = lambda label: "full" if label.depth else "off"
    save(m, 2, "b", range(3))
    assert one(m) == Kept(2, stored=0, known=0, lost=3, reason="off", lost_at=(0, 1, 2))
    assert m.counters["ram_lost_full"] == 2 and m.counters["ram_lost_off"] == 1


def test_a_tier_that_takes_no_saves_is_only_read():
    cold = StubTier("cold", takes_saves=False)
    m = mover([cold])
    save(m, 1, "a", range(2))
    assert one(m) == Kept(1, 0, 0, 2, "off", (0, 1))
    assert not cold.put_batches


def test_a_full_ring_loses_the_rest_of_a_save_and_nothing_waits():
    tier = StubTier()
    tier.put_gate.clear()
    m = mover([tier], blocks=20, staging_bytes=6 * BLOCK_BYTES)
    start = time.monotonic()
    save(m, 1, "a", range(4))
    save(m, 2, "b", range(4, 10))
    save(m, 3, "c", range(10, 12))
    assert time.monotonic() - start < 2
    assert one(m) == Kept(3, 0, 0, 2, "queue full", (0, 1))
    assert m.counters["stub_queued_write_bytes"] == 6 * BLOCK_BYTES
    tier.put_gate.set()
    kept = sorted(settle(m, 2)[2], key=lambda k: k.id)
    assert kept == [Kept(1, 4, 0, 0), Kept(2, 2, 0, 4, "queue full", (2, 3, 4, 5))]
    assert set(tier.records) == {*ids("a", 4), *ids("b", 2)}, "of a chain the beginning is kept"
    assert m.counters["stub_queued_write_bytes"] == 0 and m.counters["stub_lost_queue_full"] == 6
    save(m, 4, "d", range(3))
    assert one(m).stored == 3


def test_a_stuck_tier_takes_no_room_from_another():
    stuck, fine = StubTier("stuck"), StubTier("fine")
    stuck.put_gate.clear()
    m = mover([fine, stuck], blocks=20, staging_bytes=8 * BLOCK_BYTES)
    for i in range(5):
        save(m, i, f"chain {i}", range(3))
        end = time.monotonic() + 5
        while len(fine.records) < 3 * (i + 1) and time.monotonic() < end:
            time.sleep(0.005)
    assert len(fine.records) == 15
    stuck.put_gate.set()
    kept = settle(m, 5)[2]
    assert all(k.stored == 3 for k in kept) and len(stuck.records) == 4


def test_saves_of_one_chain_after_another_go_in_one_call():
    tier = StubTier()
    tier.put_gate.clear()
    m = mover([tier], staging_bytes=64 * BLOCK_BYTES)
    save(m, 0, "c0", range(2))
    while not tier.put_batches:
        time.sleep(0.001)
    for i in range(1, 6):
        save(m, i, f"c{i}", range(2))
    tier.put_gate.set()
    settle(m, 6)
    assert len(tier.put_batches) <= 2 and sum(len(b) for b in tier.put_batches) == 12


def test_a_few_blocks_wait_for_more_unless_somebody_waits_for_them():
    tier = StubTier()
    m = mover([tier], linger_s=60)
    for i in range(3):
        save(m, i, f"c{i}", range(2))
    time.sleep(0.05)
    assert not tier.put_batches
    save(m, 3, "c3", range(2))
    assert [k.stored for k in settle(m, 4)[2]] == [2] * 4 and len(tier.put_batches) == 1, "eight are enough"
    save(m, 4, "c4", range(2))
    assert m.flush(5) and len(tier.put_batches) == 2
    save(m, 5, "c5", range(2))
    time.sleep(0.05)
    assert len(tier.put_batches) == 2, "once flushed, they wait again"
    m.close()
    assert m.answers()[2] == (Kept(4, 2, 0, 0), Kept(5, 0, 0, 2, "closed", (0, 1)))
    m = mover([tier], linger_s=0.2)
    start = time.monotonic()
    save(m, 6, "c6", range(2))
    assert one(m).stored == 2 and time.monotonic() - start > 0.15


def test_what_a_slower_tier_brought_goes_to_the_faster_ones():
    ram, disk, cold = StubTier("ram"), StubTier("disk"), StubTier("cold")
    disk.give("a", 3, tenant="t")
    m = mover([ram, disk, cold])
    m.load(load(1, "a", [1, 2, 3], [1, 1, 1]))
    assert one(m).good == (True,) * 3 and m.flush(5)
    assert [label.tenant for label, _ in ram.records.values()] == ["t"] * 3
    assert all(ram.records[id][1] == content(id).tobytes() for id in ids("a", 3))
    assert not cold.records and not cold.put_batches
    assert m.counters["ram_promoted_records"] == 3 and m.counters["ram_stored_records"] == 0
    until = time.monotonic() + 5
    while not cold.touched and time.monotonic() < until:  # nobody waits for it but this test
        time.sleep(0.01)
    m.close()
    assert tuple(cold.touched) == ids("a", 3) and not ram.touched


def test_nothing_is_promoted_when_asked_not_to():
    ram, disk = StubTier("ram"), StubTier("disk")
    disk.give("a", 3)
    m = mover([ram, disk], promote=False)
    m.load(load(1, "a", [1, 2, 3], [1, 1, 1]))
    assert one(m).good == (True,) * 3 and m.flush(5) and not ram.records


def test_close_while_busy_answers_everything_and_ends_every_thread():
    tier = StubTier(get_s=0.05, put_s=0.05, find_s=0.05)
    tier.give("a", 8)
    m = mover([tier])
    before = {t.name for t in threading.enumerate()}
    m.load(load(1, "a", range(4)))
    m.load(load(2, "a", range(4, 8)))
    m.find(Find(3, ids("a", 2)))
    save(m, 4, "b", range(8, 12))
    save(m, 5, "c", range(8, 12))
    assert any(t.name.startswith("kvist-read-stub") and t.daemon for t in threading.enumerate())
    assert m.close(5)
    found, loaded, kept, _ = m.answers()
    assert len(found) == 1 and {a.id for a in loaded} == {1, 2} and {k.id for k in kept} == {4, 5}
    assert {t.name for t in threading.enumerate()} <= before
    with pytest.raises(StateError, match="closed"):
        m.save(Save(9, "", fill(m, "x", [0])))
    assert m.close() and m.answers() == ((), (), (), ())


def test_empty_questions_are_answered():
    m = mover([StubTier()])
    m.find(Find(1, ()))
    m.load(load(2, "a", []))
    m.save(Save(3, "", ()))
    found, loaded, kept, _ = settle(m, 3)
    assert (found[0].tiers, loaded[0].good, kept[0]) == ((), (), Kept(3, 0, 0, 0))
    none = mover([])
    none.find(Find(1, ids("a", 2)))
    none.drop(Drop(2, None))
    found, _, _, dropped = settle(none, 2)
    assert found[0].tiers == (-1, -1) and dropped[0].records == ()


def test_views_and_names():
    class Sealed(StubTier):
        def view(self, tenant):
            self.views.add(tenant)
            return self

    tier, twin = Sealed("x"), StubTier("x")
    tier.views = set()
    m = mover([tier, twin])
    save(m, 1, "a", range(2), tenant="t")
    m.find(Find(2, ids("a", 2), "u"))
    settle(m, 2)
    m.load(load(3, "a", [3, 4], tenant="v"))
    one(m)
    assert tier.views == {"t", "u", "v"}
    assert {"x_read_records", "x2_read_records"} <= set(m.counters)
    assert [u.records for u in m.usages()] == [2, 2]


@pytest.mark.parametrize(
    "options",
    [
        {"origin": b"short"},
        {"timeout_s": 0},
        {"timeout_s": float("nan")},
        {"find_timeout_s": -1},
        {"linger_s": -1},
        {"staging_bytes": 9},
    ],
)
def test_bad_options_are_refused(options):
    with pytest.raises(BadValue, match=next(iter(options)).split("=")[0]):
        mover([StubTier()], **options)


def test_blocks_of_a_load_are_poisoned_before_it_writes():
    tier = StubTier()
    tier.give("a", 2)
    tier.get_gate.clear()
    m = mover([tier])
    pool_of(m)[5] = 3
    m.load(load(1, "a", [4, 5]))
    assert is_poison(m, 5)
    tier.get_gate.set()
    assert one(m).good == (True, True)


def test_a_wait_ends_with_the_first_answer_or_at_once_when_none_can_come():
    m = mover([StubTier(find_s=0.05)])
    start = time.monotonic()
    m.wait(5)
    assert time.monotonic() - start < 2
    m.find(Find(1, tuple(s.record for s in chain("a", [0]))))
    m.wait(5)
    assert 0.04 < time.monotonic() - start < 4 and len(m.answers()[0]) == 1
    tier = StubTier()
    tier.find_gate.clear()
    m = mover([tier])
    m.find(Find(1, (record("a", 0),)))
    start = time.monotonic()
    m.wait(0.1)
    assert 0.09 < time.monotonic() - start < 4 and m.answers()[0] == ()
    tier.find_gate.set()
