"""What a tier turned out not to have is asked of the slower ones."""

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
    ram, disk = StubTier("ram"), StubTier("disk")
    disk.give("a", 3)
    ram.put_gate.clear()
    m = mover([ram, disk])
    m.drop(Drop(1, None))
    m.load(load(2, "a", range(3), [1] * 3))
    ram.put_gate.set()
    while m._desk.any_open:
        m.wait(0.1)
    m.flush(5)
    assert not ram.records and ram.put_batches == []
