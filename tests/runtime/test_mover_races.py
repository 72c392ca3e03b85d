"""Random orders and slow copies: every question is answered once, and nobody writes where an answer was given."""

import random
import time

import pytest

torch = pytest.importorskip("torch")

from tier_stubs import (  # noqa: E402
    BLOCK_BYTES,
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
)

from kvist.errors import CapacityError  # noqa: E402
from kvist.transfer import Drop, Find, Save  # noqa: E402

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

BLOCKS = 24
MODES = ("exception", "short", "missing", "damaged", "evicted", "foreign", "other origin", "timeout", None, None, None)


class Owner:
    """Hands out blocks as a pool would, and looks at every answer: is it due, and is it true?"""

    def __init__(self, m, seed):
        self.m = m
        self.random = random.Random(seed)
        self.free = list(range(BLOCKS))
        self.loads = {}
        self.open = [set(), set(), set(), set()]
        self.answered = 0
        self.marked = {}
        self.next_id = 0

    def ask(self, kind):
        self.next_id += 1
        self.open[kind].add(self.next_id)
        return self.next_id

    def blocks(self, n):
        picked = [self.free.pop(self.random.randrange(len(self.free))) for _ in range(min(n, len(self.free)))]
        for b in picked:
            self.check_mark(b)
        return picked

    def load(self, name, tiers):
        blocks = self.blocks(self.random.randint(1, 5))
        ask = load(self.ask(1), name, blocks, [self.random.randrange(tiers) for _ in blocks])
        self.loads[ask.id] = ask
        self.m.load(ask)

    def save(self, name, tenant):
        blocks = self.blocks(self.random.randint(1, 5))
        self.m.save(Save(self.ask(2), tenant, fill(self.m, name, blocks)))
        self.give_back(blocks)

    def give_back(self, blocks):
        """Mark a block with bytes of its next owner's: whoever still writes to it is seen."""
        for b in blocks:
            self.marked[b] = self.random.randrange(200)
            pool_of(self.m)[b] = self.marked[b]
        self.free += blocks

    def check_mark(self, b):
        if b in self.marked:
            assert bool((pool_of(self.m)[b] == self.marked.pop(b)).all()), f"block {b} was written after its answer"

    def take(self):
        for kind, answers in enumerate(self.m.answers()):
            for answer in answers:
                self.open[kind].remove(answer.id)
                self.answered += 1
                if kind == 1:
                    ask = self.loads.pop(answer.id)
                    for id, block, good in zip(ask.records, ask.blocks, answer.good, strict=True):
                        assert holds(self.m, block, id) if good else is_poison(self.m, block)
                    assert bool(answer.reason) == (not all(answer.good))
                    self.give_back(list(ask.blocks))

    def finish(self, seconds=20):
        end = time.monotonic() + seconds
        while any(self.open):
            assert time.monotonic() < end, f"never answered: {self.open}"
            self.m.wait(0.1)
            self.take()
        assert self.m.flush(5)
        for b in list(self.free):
            self.check_mark(b)
        assert sorted(self.free) == list(range(BLOCKS))
        assert self.m.counters and all(v == 0 for k, v in self.m.counters.items() if "queued" in k)
        assert self.m.close() and self.m.answers() == ((), (), (), ())
        assert self.answered == self.next_id


@pytest.mark.parametrize("seed", range(12))
def test_every_question_is_answered_once_whatever_the_order(seed):
    draw = random.Random(seed)
    tiers = [
        StubTier("ram", get_s=0.0, find_s=0.0),
        StubTier("disk", get_s=draw.choice((0, 0.002)), put_s=draw.choice((0, 0.002)), find_s=0.001),
        StubTier("cold", get_s=0.003, find_s=0.003, remote=True, takes_saves=draw.random() < 0.5),
    ]
    m = mover(tiers, BLOCKS, timeout_s=0.05, find_timeout_s=0.05, staging_bytes=12 * BLOCK_BYTES)
    m._reading._records = draw.choice((1, 2, 64))
    owner = Owner(m, seed)
    for i in range(6):
        draw.choice(tiers).give(f"c{i}", 5)
    for _ in range(120):
        name, what = f"c{draw.randrange(8)}", draw.random()
        if what < 0.3 and owner.free:
            owner.load(name, 3)
        elif what < 0.5 and owner.free:
            owner.save(name, draw.choice("tu"))
        elif what < 0.65:
            m.find(Find(owner.ask(0), tuple(record(name, d) for d in range(5))))
        elif what < 0.7:
            m.drop(Drop(owner.ask(3), draw.choice(("t", "u", None))))
        elif what < 0.85:
            m.cancel([draw.randint(1, owner.next_id + 1) for _ in range(3)])
        elif what < 0.9:
            draw.choice(tiers).modes[record(name, draw.randrange(5))] = draw.choice(MODES)
        else:
            m.wait(draw.choice((0, 0.002)))
        owner.take()
    owner.finish()


def test_a_hundred_copies_cancelled_at_any_stage_write_nowhere_after_their_answer():
    """F033: copies of 20 to 200 ms in both directions, cancelled while queued, running or done; hangs among them."""
    draw = random.Random(33)
    tiers = [StubTier("disk"), StubTier("far", remote=True)]
    for tier in tiers:
        for i in range(8):
            tier.give(f"c{i}", 5)
    m = mover(tiers, BLOCKS, timeout_s=0.3, staging_bytes=100 * BLOCK_BYTES)
    m._reading._records = 2
    owner, cancelled = Owner(m, 33), 0
    for i in range(100):
        for tier in tiers:
            tier.get_s = tier.put_s = draw.choice((0.004, 0.01, 0.04))
        (tiers[1].get_gate.clear if i % 30 == 10 else tiers[1].get_gate.set)()
        while len(owner.free) < 10:
            m.wait(0.02)
            owner.take()
        owner.save(f"s{i}", "t")
        owner.load(f"c{draw.randrange(8)}", 2)
        time.sleep(draw.choice((0, 0.002, 0.01, 0.03, 0.08)))
        cancelled += owner.next_id in owner.loads
        m.cancel([owner.next_id])
        owner.take()
    tiers[1].get_gate.set()
    for tier in tiers:
        tier.get_s = tier.put_s = 0.0
    owner.finish()
    saved = [(id, data) for tier in tiers for id, (_, data) in tier.records.items()]
    assert cancelled > 40, "the cancels came too late to matter"
    assert len(saved) > 150 and all(data == content(id).tobytes() for id, data in saved)


def test_slow_copies_in_both_directions_bring_no_foreign_bytes():
    """F043, F044: 64 chains with bytes of their own through a small pool; blocks change hands while copies run."""
    tier, ram = StubTier("disk", get_s=0.001, put_s=0.001), StubTier("ram")
    m = mover([ram, tier], BLOCKS, timeout_s=5)
    owner, draw = Owner(m, 44), random.Random(44)
    good = 0
    for _ in range(4):
        for i in range(64):
            name = f"prompt {i}"
            time.sleep(0.003)
            if len(owner.free) < 6:
                m.wait(1)
            owner.take()
            if draw.random() < 0.5:
                owner.save(name, "")
            elif owner.free:
                owner.load(name, 2)
            owner.take()
    owner.finish()
    for t in (tier, ram):
        good += len(t.records)
        assert all(data == content(id).tobytes() for id, (_, data) in t.records.items())
    assert good > 100 and m.counters["disk_read_records"] > 40


def test_a_chain_is_put_with_ancestors_first():
    tier = StubTier(put_s=0.0005)
    m = mover([tier], BLOCKS)
    m.save(Save(1, "", fill(m, "a", range(12))))
    m.save(Save(2, "", chain("a", range(20))[12:]))
    assert m.flush(5)
    flat = [id for batch in tier.put_batches for id in batch]
    assert flat == [record("a", d) for d in range(20)]


def test_no_memory_for_a_read_is_an_answer(monkeypatch):
    tier = StubTier()
    tier.give("a", 2)
    m = mover([tier])

    def none():
        raise CapacityError("the system gives no memory")

    monkeypatch.setattr(m._reading, "_rows", none)
    m.load(load(1, "a", [0, 1]))
    answer = one(m)
    assert (answer.good, answer.reason) == ((False, False), "error")
    monkeypatch.undo()
    m.load(load(2, "a", [0, 1]))
    assert one(m).good == (True, True)
