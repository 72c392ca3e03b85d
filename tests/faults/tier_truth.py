"""Slow copies that show when memory changes under them, poison for what was let go, and what records must hold."""

import time

import numpy as np
from tier_stubs import StubTier
from tiny_engine import ORIGIN, VOCAB, ask, engine, run

from kvist.cache.chain import key_of
from kvist.ids import record_id
from kvist.tier.base import Label

POISON = 0xFF
"""Every number of it is a NaN."""


class TornTier(StubTier):
    """Every call copies the first half of each record, waits ``delay_s()``, and copies the second half.

    Memory that changes hands before a copy has ended is stored, or written to, in two pieces. ``putting``: tokens of
    the records that a call has in its hands now.
    """

    def __init__(self, name="disk", *, delay_s):
        super().__init__(name)
        self.delay_s = delay_s
        self.putting = frozenset()

    def get_many_into(self, ids, buffers, *, timeout_s):
        self.get_batches.append(tuple(ids))
        held = [self.records.get(id) for id in ids]
        for part in (0, 1):
            for record, buffer in zip(held, buffers, strict=True):
                if record is not None:
                    half = len(buffer) // 2
                    where = slice(half * part, len(buffer) if part else half)
                    buffer[where] = record[1][where]
            if not part:
                time.sleep(self.delay_s())
        return [("missing", None) if record is None else ("hit", record[0]) for record in held]

    def put_many(self, records, *, timeout_s):
        self.putting = frozenset(r.label.tokens for r in records)
        firsts = [bytes(r.data[: len(r.data) // 2]) for r in records]
        time.sleep(self.delay_s())
        out = []
        for record, first in zip(records, firsts, strict=True):
            data = first + bytes(record.data[len(first) :])
            with self._lock:
                out.append("known" if record.label.id in self.records else "stored")
                self.records.setdefault(record.label.id, (record.label, data))
        self.putting = frozenset()
        return out


class Poison:
    """Fills what is let go: staging slots at once, free blocks of the pool after each step (``look``).

    A block that stayed free, yet holds something else, was written to by somebody who had no right to.
    """

    def __init__(self, eng):
        self._cache, self._pool = eng.scheduler.cache, eng.executor.store.pool
        self._free, self._lent = set(), set()
        self.blocks = self.slots = 0
        execute = eng.executor.execute

        def lending(plan):
            self._lent.update(plan.fresh)
            self._lent.update(block for load in plan.loads for block in load.blocks)
            return execute(plan)

        eng.executor.execute = lending
        staging = eng.executor._mover._writing._staging
        release = staging.release

        def poisoned(slot):
            last = release(slot)
            if last:
                staging.rows[slot] = POISON
                self.slots += 1
            return last

        staging.release = poisoned

    def look(self):
        pool = self._cache._pool
        leaving = {saved.block for order in self._cache._offload._leaving for saved in order.blocks}
        free = {b for b in range(pool.total) if not pool.refs[b]} - leaving
        stayed = sorted(free & self._free - self._lent)
        assert bool((self._pool[stayed] == POISON).all()), "a free block was written to"
        fresh = sorted(free - set(stayed))
        self._pool[fresh] = POISON
        self.blocks += len(fresh)
        self._free = free
        self._lent.clear()


def check_at_rest(eng):
    """Nothing is open, borrowed or on its way: scheduler, cache and mover."""
    scheduler, mover = eng.scheduler, eng.executor._mover
    cache = scheduler.cache
    cache.check()
    assert cache.live_blocks == 0 and cache.free_blocks + cache.cached_blocks == cache.total_blocks
    assert eng.idle and not scheduler.restores.loading and not scheduler.carry.asked
    assert not scheduler.restores._questions and not scheduler.restores._by_find and not scheduler.restores._asked
    desk, staging = mover._desk, mover._writing._staging
    assert not (desk.finds or desk.loads or desk.saves or desk.drops)
    assert staging.free_slots == staging.slots and all(lane.held_slots == 0 for lane in desk.lanes)
    assert not [name for name, value in mover.counters.items() if "queued" in name and value]


def settle(eng):
    """Let everything end that is on its way."""
    while not eng.idle:
        eng.step()
    assert eng.executor._mover.flush(30)
    for _ in range(3):  # answers to saves come with a step, and a step that somebody needs
        eng.executor._mover.wait(0.01)
        run(eng, [])
    eng.scheduler.cache.check()


def chains(tier, group=0):
    """The tokens of every stored chain of one group that no other goes on from, and how many records hang in the air.

    Made from the labels alone: nobody knows which requests there were.
    """
    labels: dict[bytes, Label] = {id: label for id, (label, _) in tier.records.items() if id[16] == group}
    parents, out, loose = {label.parent for label in labels.values()}, [], 0
    for id, label in labels.items():
        if id in parents:
            continue
        line = [label]
        while line[-1].parent in labels:
            line.append(labels[line[-1].parent])
        if line[-1].parent:
            loose += 1
        else:
            out.append(tuple(np.frombuffer(b"".join(p.tokens for p in reversed(line)), np.int32).tolist()))
    return out, loose


def check_all_records(tier, family, *, group=0, alike=np.array_equal, hanging=False, **options):
    """Every record of every group holds what computing its tokens gives: how many there are, how many were compared.

    ``alike(stored, computed)``: uint8 [bytes] each. ``hanging``: records may have lost their ancestors (where saves of
    a slow tier are lost, or a full one evicts): those cannot be compared. Windows let go of blocks that the judge
    computed, so that of their groups not all can be compared.
    """
    whole, loose = chains(tier, group)
    assert hanging or not loose, f"{loose} records whose ancestors are not there"
    judge = engine(family, blocks=max(100, 4 * len(tier.records)), budget=256, **options)
    run(judge, [ask(f"chain {i}", (*tokens, tokens[0]), 1) for i, tokens in enumerate(whole)])
    compared = 0
    for id, computed in computed_records(judge):
        if id in tier.records:
            stored = np.frombuffer(tier.records[id][1], np.uint8)[: len(computed)]
            assert alike(stored, computed), f"record {id.hex()} of depth {tier.records[id][0].depth} holds other bytes"
            compared += 1
    return len(tier.records), compared


def computed_records(eng):
    """Id and bytes of every whole block in an engine's tree."""
    tree, layout = eng.scheduler.cache._tree, eng.scheduler.layout
    nodes = [n for root in tree.roots.values() for n in root.children.values()]
    while nodes:
        node = nodes.pop()
        nodes += node.children.values()
        for rule in () if node.open else tree.rules:
            used = layout.groups[rule.id].used_bytes
            for i, block in enumerate(node.blocks[rule.id]):
                if block >= 0:
                    yield (
                        record_id(key_of(node, i, rule.tokens, ORIGIN), rule.id),
                        eng.executor.store.pool[block][:used].numpy(),
                    )


def marked(mark, n_tokens, rng):
    """A prompt that shares no two tokens in a row with one of another ``mark``: it stands at every other place."""
    return tuple(mark if at % 2 == 0 else rng.randrange(70, VOCAB) for at in range(n_tokens))
