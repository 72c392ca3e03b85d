"""What a tier turned out not to have is asked of the slower ones."""

import threading
import time

import pytest

pytest.importorskip("torch")

from tier_stubs import StubTier, holds, is_poison, load, mover, one, record  # noqa: E402

from kvist.transfer import Drop  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")


def two(mode=None, **more):
    """A fast tier in which record 1 of chain ``a`` fails, before a slow one that has all four."""
    ram, disk = StubTier("ram"), StubTier("disk", **more)
    ram.give("a", 4)
    disk.give("a", 4)
    if mode:
        ram.modes[record("a", 1)] = mode
    return ram, disk


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("mode", ["missing", "evicted", "damaged", "short", "foreign", "other origin", "other id"])
def test_one_record_comes_from_the_slower_tier(mode, remote):
    ram, disk = two(mode, remote=remote)
    m = mover([ram, disk])
    m.load(load(1, "a", range(4)))
    answer = one(m)
    assert answer.good == (True,) * 4 and answer.reason == ""
    assert all(holds(m, d, record("a", d)) for d in range(4))
    assert disk.get_batches == [(record("a", 1),)], "nothing else was asked of it"
    assert m.counters["disk_second_reads"] == 1 == m.counters["disk_read_records"]
    assert answer.bytes[0] == 3 * answer.bytes[1] > 0


@pytest.mark.parametrize("word", ["missing", "error", "timeout"])
def test_a_second_tier_that_gives_nothing_passes_on_to_a_third(word):
    """One that is off answers error: what is wanted of it only for lack of a better is asked of the next."""

    class Off(StubTier):
        def get_many_into(self, ids, buffers, *, timeout_s):
            return [(word, None)] * len(ids)

    ram, redis, s3 = StubTier("ram"), Off("redis", remote=True), StubTier("s3", remote=True)
    for tier in (ram, s3):
        tier.give("a", 4)
    ram.modes = {record("a", d): "missing" for d in (1, 3)}
    m = mover([ram, redis, s3])
    m._reading._records = 1
    m.load(load(1, "a", range(4)))
    answer = one(m)
    assert answer.good == (True,) * 4 and all(holds(m, d, record("a", d)) for d in range(4))
    del s3.records[record("a", 3)]
    m.load(load(2, "a", range(4, 8)))
    answer = one(m)
    assert answer.good == (True, True, True, False) and (answer.reason, answer.tier) == ("missing", 0)


def test_one_tier_has_one_time_for_a_load_however_it_is_asked(monkeypatch):
    """Eight batches of misses, each a question of its own to the slow one: all of them end when its time is over."""
    ram, disk = StubTier("ram"), StubTier("disk", get_s=0.1)
    ram.give("a", 16)
    disk.give("a", 16)
    ram.modes = {record("a", d): "missing" for d in range(16)}
    m = mover([ram, disk], timeout_s=0.3, blocks=16)
    m._reading._records = 2
    begin = time.monotonic()
    m.load(load(1, "a", range(16)))
    answer = one(m, 20)
    assert time.monotonic() - begin < 1.2 and 0 < sum(answer.good) < 8
    assert all(holds(m, d, record("a", d)) == good for d, good in enumerate(answer.good))


@pytest.mark.parametrize("how", ["closed", "hung"])
def test_nobody_is_asked_who_cannot_answer(how, monkeypatch):
    ram, disk, last = StubTier("ram"), StubTier("disk"), StubTier("last")
    for tier in (ram, disk, last):
        tier.give("a", 2)
    ram.modes[record("a", 1)] = "missing"
    m = mover([ram, disk, last])
    worker = m._reading.workers[1]
    if how == "closed":
        worker.closed = True
    else:
        monkeypatch.setattr(worker, "hung", lambda now: True)
    m.load(load(1, "a", range(2)))
    assert one(m).good == (True, True) and disk.get_batches == [] and len(last.get_batches) == 1
    worker.closed = False


@pytest.mark.parametrize("mode", ["exception", "timeout"])
def test_a_tier_that_is_ill_is_no_missing_record(mode):
    ram, disk = two(mode)
    m = mover([ram, disk], timeout_s=0.2)
    m.load(load(1, "a", range(4)))
    assert not all(one(m).good) and disk.get_batches == []


def test_the_reason_is_of_the_tier_that_was_said_to_have_it():
    ram, disk = two("damaged")
    del disk.records[record("a", 1)]
    m = mover([ram, disk])
    m.load(load(1, "a", range(4)))
    answer = one(m)
    assert (answer.good[1], answer.reason, answer.tier) == (False, "damaged", 0)
    assert is_poison(m, 1) and m.counters["disk_miss_missing"] == 1


def test_a_cancelled_load_asks_nobody_else():
    ram, disk = two("missing")
    ram.get_gate.clear()
    m = mover([ram, disk])
    m.load(load(1, "a", range(4)))
    m.cancel([1])
    ram.get_gate.set()
    assert one(m).good[1] is False and disk.get_batches == []


def test_a_load_begun_beside_a_drop_puts_nothing_back():
    """What a slower tier still gives of a tenant whose records are being removed is promoted nowhere."""

    class Late(StubTier):
        gate = threading.Event()

        def delete(self, **which):
            self.gate.wait()
            return super().delete(**which)

    ram, disk = StubTier("ram"), Late("disk")
    disk.give("a", 3)
    m = mover([ram, disk])
    m.drop(Drop(1, None))
    m.load(load(2, "a", range(3), [1] * 3))
    assert one(m).good == (True,) * 3
    m.flush(0.2)
    assert m._desk.drops and not ram.records
    disk.gate.set()
    assert m.flush(5) and not ram.records
