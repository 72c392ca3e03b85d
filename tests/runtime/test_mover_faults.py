"""Tiers that fail, lie, stall and hang: the valid prefix stays, and no block is written after its answer."""

import threading
import time

import pytest

pytest.importorskip("torch")

from tier_stubs import (  # noqa: E402
    BLOCK_BYTES,
    StubTier,
    holds,
    is_poison,
    load,
    mover,
    one,
    record,
    save,
    settle,
)

from kvist.transfer import Drop, Find, Kept, Load  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

N = 5
REASONS = {
    "exception": "error",
    "short": "damaged",
    "damaged": "damaged",
    "missing": "missing",
    "evicted": "missing",
    "foreign": "foreign",
    "other origin": "foreign",
    "other id": "foreign",
    "timeout": "timeout",
}


def ids(name, n):
    return tuple(record(name, d) for d in range(n))


def small_reads(m, records=1):
    """So few records in a call."""
    m._reading._records = records
    return m


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("j", [0, 2, N - 1])
@pytest.mark.parametrize("mode", REASONS)
def test_a_load_that_fails_at_record_j_keeps_what_is_before(mode, j, remote):
    """F050: every way to fail, at the first, a middle and the last record, into poisoned blocks."""
    tier = StubTier(remote=remote)
    tier.give("a", N)
    m = small_reads(mover([tier], timeout_s=0.3 if mode == "timeout" else 5))
    m.find(Find(1, ids("a", N)))
    assert one(m).tiers == (0,) * N
    tier.modes[record("a", j)] = mode
    start = time.monotonic()
    m.load(load(2, "a", range(3, 3 + N)))
    answer = one(m)
    assert time.monotonic() - start < 4
    assert answer.good == tuple(d < j for d in range(N))
    assert (answer.reason, answer.tier) == (REASONS[mode], 0)
    for d in range(N):
        assert holds(m, 3 + d, record("a", d)) if d < j else is_poison(m, 3 + d)
    counters = m.counters
    assert counters[f"stub_miss_{REASONS[mode]}"] >= 1
    assert sum(v for k, v in counters.items() if k.startswith("stub_miss_")) == N - j
    assert counters["stub_read_records"] == j == counters["stub_read_bytes"] // BLOCK_BYTES
    tier.modes.clear()
    m.load(load(3, "b", [0]))
    assert one(m).reason == "missing", "the mover goes on"


@pytest.mark.parametrize("mode", REASONS)
def test_so_too_when_many_records_are_asked_for_in_one_call(mode):
    tier = StubTier()
    tier.give("a", N)
    tier.modes[record("a", 2)] = mode
    m = mover([tier], timeout_s=0.3 if mode == "timeout" else 5)
    m.load(load(2, "a", range(N)))
    answer = one(m)
    assert answer.good[2] is False and (mode == "exception" or answer.good[:2] == (True, True))
    assert answer.reason == REASONS[mode]
    assert all(holds(m, d, record("a", d)) if answer.good[d] else is_poison(m, d) for d in range(N))


def test_after_a_failure_only_its_own_group_and_what_comes_later_is_left_out():
    """A chain of two groups: what lies before the failure is still wanted of the other group."""
    tier = StubTier()
    m = small_reads(mover([tier]))
    chain = [record("a", d, group) for group in (0, 1) for d in range(3)]
    tier.give("a", 3)
    for id in chain[3:]:
        label, _ = tier.records[id[:16] + bytes(2)]
        tier.records[id] = (type(label)(id, b"", label.origin, label.depth, "", b""), bytes(BLOCK_BYTES))
    tier.modes[chain[1]] = "damaged"
    m.load(Load(1, tuple(chain), tuple(range(6)), (0,) * 6))
    answer = one(m)
    assert answer.good == (True, False, False, True, True, True) and answer.reason == "damaged"
    assert m.counters["stub_miss_skipped"] == 1 and chain[2] not in {id for b in tier.get_batches for id in b}
    tier.modes[chain[1]] = "exception"
    m.load(Load(2, tuple(chain), tuple(range(6)), (0,) * 6))
    assert one(m).good == (True,) + (False,) * 5, "a tier that is ill is not asked on"


def test_a_failure_in_one_tier_leaves_the_other_tiers_part():
    ram, disk = StubTier("ram"), StubTier("disk", get_s=0.02)
    disk.give("a", 4)
    ram.give("a", 4)
    disk.modes[record("a", 1)] = "damaged"
    m = small_reads(mover([ram, disk]))
    m.load(load(1, "a", range(4), [1, 1, 0, 0]))
    answer = one(m)
    assert answer.good[:2] == (True, False) and (answer.reason, answer.tier) == ("damaged", 1)


def test_a_tier_that_answers_nonsense_is_an_error():
    class Broken(StubTier):
        def exists_many(self, ids):
            return [True]

        def get_many_into(self, ids, buffers, *, timeout_s):
            return [("splendid", None)] * len(ids)

        def put_many(self, records, *, timeout_s):
            return ["stored"]

        def touch_many(self, ids):
            raise RuntimeError

    m = mover([StubTier("fine"), Broken()])
    m.find(Find(1, ids("a", 2)))
    assert one(m).tiers == (-1, -1)
    m.load(load(2, "a", [0, 1], [1, 1]))
    answer = one(m)
    assert (answer.good, answer.reason, answer.tier) == ((False, False), "error", 1)
    save(m, 3, "a", [0, 1])
    assert one(m) == Kept(3, 2, 0, 0), "the other tier has it"
    m.load(load(4, "a", [0, 1]))
    assert one(m).good == (True, True)
    assert m.counters["stub_lost_error"] == 2 and m.counters["stub_lookup_errors"] == 1


def test_a_hung_read_into_the_pool_is_waited_for():
    """F033: the first hang has the pool's memory in its hands: the load is not answered before it lets go."""
    tier = StubTier()
    tier.give("a", 3)
    tier.get_gate.clear()
    m = mover([tier], timeout_s=0.1)
    m.load(load(1, "a", [0, 1, 2]))
    time.sleep(0.6)
    m.cancel([1])
    m.wait(0.1)
    assert m.answers() == ((), (), (), ()), "a thread can still write to these blocks"
    m.load(load(2, "a", [4, 5]))
    answer = one(m, 4)
    assert (answer.id, answer.reason) == (2, "timeout"), "nothing else waits for it"
    m.find(Find(3, ids("a", 3)))
    assert one(m, 4).tiers == (-1, -1, -1), "a tier that cannot be read has nothing"
    assert not m.close(0.1), "a thread is still in the tier's call"
    tier.get_gate.set()
    answer = one(m)
    assert answer.id == 1 and answer.good == (True, True, True)
    assert m.close()


def test_after_a_hang_reads_are_left_behind():
    """F033: from then on the answer comes in time, and what the hung read still brings goes nowhere."""
    tier = StubTier()
    tier.give("a", 3)
    m = mover([tier], timeout_s=0.3)
    tier.get_gate.clear()
    m.load(load(1, "a", [0, 1, 2]))
    time.sleep(0.7)
    m.answers()
    tier.get_gate.set()
    assert one(m).good == (True,) * 3
    m.load(load(2, "a", [3, 4, 5]))
    assert one(m).good == (True,) * 3 and m.counters["stub_bounced_records"] == 3
    assert all(holds(m, 3 + d, record("a", d)) for d in range(3))
    tier.get_gate.clear()
    start = time.monotonic()
    m.load(load(3, "a", [6, 7, 8]))
    answer = one(m)
    assert 0.5 < time.monotonic() - start < 4 and answer.good == (False,) * 3 and answer.reason == "timeout"
    tier.get_gate.set()
    time.sleep(0.1)
    assert all(is_poison(m, b) for b in (6, 7, 8))
    m.load(load(4, "a", [6, 7, 8]))
    assert one(m).good == (True,) * 3, "it is used again when it is back"


def test_a_cancelled_read_of_a_remote_tier_is_answered_at_once():
    tier = StubTier(remote=True)
    tier.give("a", 3)
    tier.get_gate.clear()
    m = mover([tier])
    m.load(load(1, "a", [0, 1, 2]))
    while not tier.get_batches:
        time.sleep(0.001)
    m.cancel([1])
    (answer,) = m.answers()[1]
    assert (answer.good, answer.reason) == ((False,) * 3, "cancelled")
    tier.get_gate.set()
    time.sleep(0.05)
    assert all(is_poison(m, b) for b in range(3)) and m.answers() == ((), (), (), ())


def test_a_wait_ends_when_a_read_has_hung_long_enough():
    tier = StubTier(remote=True)
    tier.give("a", 1)
    tier.get_gate.clear()
    m = mover([tier], timeout_s=0.1)
    m.load(load(1, "a", [0]))
    start = time.monotonic()
    m.wait(20)
    assert 0.3 < time.monotonic() - start < 10 and m.answers()[1][0].reason == "timeout"
    tier.get_gate.set()


def test_cancel_before_it_begins_and_between_two_reads():
    tier = StubTier()
    tier.give("a", 6)
    tier.give("b", 2)
    tier.get_gate.clear()
    tier.find_gate.clear()
    m = small_reads(mover([tier]), 2)
    m.load(load(1, "a", range(6)))
    m.load(load(2, "b", [8, 9]))
    m.find(Find(3, ids("a", 2)))
    m.find(Find(4, ids("a", 2)))
    while not tier.get_batches:
        time.sleep(0.001)
    m.cancel([2, 3, 4, 77])
    found, loaded, _, _ = m.answers()
    assert {f.id for f in found} == {3, 4} and all(f.tiers == (-1, -1) for f in found)
    assert [(a.id, a.good, a.reason) for a in loaded] == [(2, (False, False), "cancelled")]
    m.cancel([1])
    assert m.answers()[1] == ()
    tier.get_gate.set()
    tier.find_gate.set()
    answer = one(m)
    assert (answer.good, answer.reason) == ((True, True, False, False, False, False), "cancelled")
    assert len(tier.get_batches) == 1 and all(is_poison(m, b) for b in (2, 3, 4, 5, 8, 9))


def test_a_slow_lookup_delays_nobody_beyond_its_time():
    fast, slow, last = StubTier("fast"), StubTier("slow"), StubTier("last")
    fast.give("a", 1)
    last.give("a", 3)
    slow.find_gate.clear()
    m = mover([fast, slow, last], find_timeout_s=0.3)
    m.find(Find(1, ids("a", 3)))
    start = time.monotonic()
    assert one(m).tiers == (0, -1, -1) and time.monotonic() - start < 4
    time.sleep(0.4)
    m.find(Find(2, ids("a", 3)))
    assert one(m).tiers == (0, 2, 2), "the hung tier is passed over"
    assert m.counters["slow_lookup_timeouts"] == 1
    slow.find_gate.set()


def test_a_hung_write_costs_its_own_blocks_only_and_their_memory_waits():
    tier = StubTier()
    tier.put_gate.clear()
    m = mover([tier], timeout_s=0.1)
    save(m, 1, "a", range(2))
    while not tier.put_batches:
        time.sleep(0.001)
    save(m, 2, "b", range(2, 4))
    m.drop(Drop(3, "nobody"))
    _, _, kept, dropped = settle(m, 3)
    assert [(k.id, k.lost, k.reason) for k in kept] == [(1, 2, "timeout"), (2, 2, "timeout")]
    assert (dropped[0].records, dropped[0].reason) == ((-1,), "stub: timeout")
    assert m.counters["stub_queued_write_bytes"] == 2 * BLOCK_BYTES, "the call still reads from those two"
    save(m, 4, "c", range(2))
    assert one(m) == Kept(4, 0, 0, 2, "timeout", (0, 1))
    tier.put_gate.set()
    assert m.flush(5) and m.counters["stub_queued_write_bytes"] == 0
    save(m, 5, "d", range(2))
    assert one(m).stored == 2
    assert m.answers() == ((), (), (), ())


def test_no_threads_before_work():
    before = threading.active_count()
    m = mover([StubTier(), StubTier("b")])
    assert threading.active_count() == before and m.close()
