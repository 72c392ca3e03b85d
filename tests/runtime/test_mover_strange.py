"""A tier all of whose records are of other models or settings: nothing is found there, and why is counted."""

import logging
import time

import pytest

pytest.importorskip("torch")

from tier_stubs import ORIGIN, StubTier, mover, one, record, save, settle  # noqa: E402

from kvist.runtime.mover import lane as lanes  # noqa: E402
from kvist.transfer import Find  # noqa: E402


class Told(StubTier):
    """It knows of whom its records are."""

    asked = 0

    def strange(self, origin):
        self.asked += 1
        return bool(self.records) and all(label.origin != origin for label, _ in self.records.values())


def ask(m, id, name="a"):
    m.find(Find(id, (record(name, 0),)))
    tiers = one(m).tiers
    while m._looking.workers[0].queue:
        time.sleep(0.01)
    time.sleep(0.1)  # it is counted once the find has gone on
    return tiers


def test_it_is_counted_and_said_once(caplog, monkeypatch):
    monkeypatch.setattr(lanes, "LOOK_S", 0.0)
    tier = Told()
    tier.give("a", 2, origin=b"x" * 16)
    tier.records = {b"z" * 18: next(iter(tier.records.values()))}
    m = mover([tier])
    with caplog.at_level(logging.WARNING, "kvist.tier"):
        assert ask(m, 1) == ask(m, 2) == (-1,)
    assert m.counters["stub_strange_lookups"] == 2
    assert [r.message for r in caplog.records if "none of this model" in r.message] != []
    assert len(caplog.records) == 1
    save(m, 3, "b", [1])
    settle(m)
    assert ask(m, 4) == (-1,) and m.counters["stub_strange_lookups"] == 2, "it has some of ours now"


def test_an_empty_tier_and_one_with_records_of_ours_are_not_strange():
    empty, ours = Told("empty"), Told("ours")
    ours.give("c", 1, origin=ORIGIN)
    m = mover([empty, ours])
    assert ask(m, 1) == (-1,)
    assert m.counters["empty_strange_lookups"] == 0 == m.counters["ours_strange_lookups"]
    assert empty.asked == 1 == ours.asked
    assert ask(m, 2) == (-1,) and empty.asked == 1, "not for every question"


def test_a_tier_that_raises_is_blamed_and_goes_on():
    class Broken(StubTier):
        def strange(self, origin):
            raise RuntimeError("a bug in the tier")

    m = mover([Broken()])
    assert ask(m, 1) == (-1,) and m.counters["stub_strange_lookups"] == 0


def test_who_looks_for_strangers_keeps_nobody_from_the_next_tier():
    class Counting(StubTier):
        def strange(self, origin):
            time.sleep(0.6)
            return True

    disk, s3 = Counting("disk"), StubTier("s3", remote=True)
    s3.give("a", 4)
    m = mover([disk, s3], find_timeout_s=0.3)
    m.find(Find(1, tuple(record("a", d) for d in range(4))))
    assert one(m).tiers == (1,) * 4 and m.counters["disk_lookup_timeouts"] == 0


def test_a_tier_that_has_given_something_is_not_looked_at_again(monkeypatch):
    monkeypatch.setattr(lanes, "LOOK_S", 0.0)
    tier = Told()
    tier.give("c", 1)
    m = mover([tier])
    assert ask(m, 1, "c") == (0,) and ask(m, 2) == (-1,)
    assert tier.asked == 0
