"""A tier all of whose records are of other models or settings: nothing is found there, and why is counted."""

import logging

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
    return one(m).tiers


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
