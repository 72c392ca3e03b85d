"""Real tiers behind slow copies that show when memory changes under them, and all that such a tier has."""

import time
from types import SimpleNamespace

from kvist.tier.base import Record


class TornOver:
    """A real tier; what is copied to and from it is copied in halves, ``delay_s()`` apart, as by ``TornTier``.

    ``putting``: tokens of the records that a call has in its hands now. ``reading``: calls of reads that are out.
    """

    def __init__(self, inner, *, delay_s):
        self.inner, self.delay_s = inner, delay_s
        self.putting, self.reading = frozenset(), 0

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def get_many_into(self, ids, buffers, *, timeout_s):
        self.reading += 1
        wholes = [bytearray(len(buffer)) for buffer in buffers]
        got = self.inner.get_many_into(ids, [memoryview(whole) for whole in wholes], timeout_s=timeout_s)
        hits = [(buffer, whole) for (word, _), buffer, whole in zip(got, buffers, wholes, strict=True) if word == "hit"]
        for buffer, whole in hits:
            buffer[: len(buffer) // 2] = whole[: len(whole) // 2]
        time.sleep(self.delay_s())
        for buffer, whole in hits:
            buffer[len(buffer) // 2 :] = whole[len(whole) // 2 :]
        self.reading -= 1
        return got

    def put_many(self, records, *, timeout_s):
        self.putting = frozenset(r.label.tokens for r in records)
        firsts = [bytes(r.data[: len(r.data) // 2]) for r in records]
        time.sleep(self.delay_s())
        wholes = [first + bytes(r.data[len(first) :]) for r, first in zip(records, firsts, strict=True)]
        answers = self.inner.put_many(
            [Record(r.label, memoryview(whole)) for r, whole in zip(records, wholes, strict=True)], timeout_s=timeout_s
        )
        self.putting = frozenset()
        return answers


def read_out(tier, block_bytes):
    """Label and bytes of every record of a tier: each is listed once, can be read, and is counted."""
    entries = list(tier.list())
    buffers = [memoryview(bytearray(block_bytes)) for _ in entries]
    ids = [entry.label.id for entry in entries]
    got = tier.get_many_into(ids, buffers, timeout_s=30)
    assert len(set(ids)) == len(ids) and got == [("hit", entry.label) for entry in entries]
    usage = tier.usage()
    assert (usage.records, usage.damaged_records, usage.condition) == (len(ids), 0, "ok")
    assert usage.used_bytes <= usage.capacity_bytes
    records = {id: (entry.label, bytes(data)) for id, entry, data in zip(ids, entries, buffers, strict=True)}
    return SimpleNamespace(records=records)
