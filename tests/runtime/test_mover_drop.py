"""Drops: in order with saves, told by tier, and nothing comes back after one. Flushes: all that was before."""

import threading
import time

import pytest

pytest.importorskip("torch")

from tier_stubs import ORIGIN, StubTier, load, mover, one, record, save, settle  # noqa: E402

from kvist.transfer import Drop, Kept  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


def ids(name, n):
    return tuple(record(name, d) for d in range(n))


def test_a_drop_comes_after_the_saves_before_it_and_discards_what_waits():
    tier = StubTier()
    tier.put_gate.clear()
    tier.give("old", 2, tenant="t")
    m = mover([tier])
    save(m, 1, "a", range(2), tenant="t")
    while not tier.put_batches:
        time.sleep(0.001)
    save(m, 2, "b", range(2), tenant="t")
    save(m, 3, "c", range(2), tenant="u")
    m.drop(Drop(4, "t"))
    save(m, 5, "d", range(2), tenant="t")
    assert one(m) == Kept(2, 0, 0, 2, "dropped", (0, 1))
    tier.put_gate.set()
    _, _, kept, dropped = settle(m, 4)
    assert {k.id: k.stored for k in kept} == {1: 2, 3: 2, 5: 2}
    assert [(d.id, d.records, d.reason) for d in dropped] == [(4, (4,), "")]
    assert set(tier.records) == {*ids("c", 2), *ids("d", 2)}
    assert tier.deletes == [("t", ORIGIN)]


@pytest.mark.parametrize("whose", ["t", "payer", None])
def test_a_drop_while_a_load_runs_leaves_no_copy_behind(whose):
    """F054: what the load still reads is not put into a faster tier after the drop."""
    ram, disk = StubTier("ram"), StubTier("disk")
    disk.give("a", 2, tenant="payer")
    disk.get_gate.clear()
    m = mover([ram, disk])
    m.load(load(1, "a", [1, 2], [1, 1], tenant="t"))
    while not disk.get_batches:
        time.sleep(0.001)
    m.drop(Drop(2, whose))
    assert one(m).id == 2
    disk.get_gate.set()
    assert one(m).good[0] and m.flush(5)
    assert not ram.records


def test_a_drop_that_cannot_be_done_says_where_and_why():
    good, ill = StubTier("good"), StubTier("ill")
    good.give("a", 2)
    ill.condition = "off"
    m = mover([good, ill])
    m.drop(Drop(1, None))
    answer = one(m)
    assert (answer.records, answer.reason) == ((2, -1), "ill: the stub says so")

    ill.condition, ill.delete = "ok", lambda **_: -1
    m.drop(Drop(5, None))
    answer = one(m)
    assert answer.records == (0, -1) and answer.reason.startswith("ill: ")

    def broken(**_):
        raise RuntimeError("no way")

    good.delete = broken
    m.drop(Drop(2, None))
    answer = one(m)
    assert answer.records == (-1, -1) and "no way" in answer.reason


def test_flush_waits_for_what_is_queued_or_says_it_is_not_done():
    tier = StubTier()
    tier.put_gate.clear()
    m = mover([tier])
    save(m, 1, "a", range(5))
    assert not m.flush(0.01)
    tier.put_gate.set()
    assert m.flush(5) and len(tier.records) == 5
    assert m.answers()[2] == (Kept(1, 5, 0, 0),)


def test_flush_does_not_wait_for_what_comes_after_it():
    """So that a server under load can be flushed, from another thread."""
    tier = StubTier(put_s=0.005)
    m = mover([tier], linger_s=0)
    save(m, 0, "first", range(4))
    done = []
    flusher = threading.Thread(target=lambda: done.append(m.flush(20)))
    flusher.start()
    for i in range(1, 400):
        save(m, i, f"c{i}", range(2))
        m.wait(0.01)
        m.answers()
        if done:
            break
    flusher.join()
    assert done == [True] and i < 300 and tier.records.keys() >= set(ids("first", 4))
    assert m.close()


def test_flush_waits_for_a_drop():
    tier, gate = StubTier(), threading.Event()
    real = tier.delete
    tier.delete = lambda **asked: gate.wait() and real(**asked)
    m = mover([tier])
    m.drop(Drop(1, None))
    assert not m.flush(0.05)
    gate.set()
    assert m.flush(5) and len(m.answers()[3]) == 1
