"""A tier of dictionaries that tests may look into and change, and chains to put there."""

import hashlib
from dataclasses import replace

from kvist.ids import RecordId
from kvist.tier.base import Entry, Label, Record, Usage

ORIGIN = b"o" * 16


class Shelf:
    """Keeps whole records. ``calls`` has what was asked; ``short`` cuts the time: later records are timeouts."""

    name = "shelf"

    def __init__(self):
        self.held = {}
        self.calls = []
        self.timeout_at = None
        self.deleted = []

    def exists_many(self, ids):
        self.calls.append(("exists", list(ids)))
        return [id in self.held for id in ids]

    def get_many_into(self, ids, buffers, *, timeout_s):
        self.calls.append(("get", list(ids)))
        got = []
        for n, (id, buffer) in enumerate(zip(ids, buffers, strict=True)):
            if n == self.timeout_at:
                return got + [("timeout", None)] * (len(ids) - n)
            if id not in self.held:
                got.append(("missing", None))
                continue
            label, data = self.held[id]
            if len(data) != len(buffer):
                got.append(("foreign", None))
                continue
            buffer[:] = data
            got.append(("hit", label))
        return got

    def put_many(self, records, *, timeout_s):
        self.calls.append(("put", [record.label.id for record in records]))
        put = []
        for record in records:
            put.append("known" if record.label.id in self.held else "stored")
            self.held.setdefault(record.label.id, (record.label, bytes(record.data)))
        return put

    def touch_many(self, ids):
        self.calls.append(("touch", list(ids)))

    def delete(self, *, ids=(), tenant=None, origin=None):
        goes = [
            id
            for id, (label, _) in self.held.items()
            if (id in ids if ids else (tenant, origin) != (None, None))
            and tenant in (None, label.tenant)
            and origin in (None, label.origin)
        ]
        for id in goes:
            del self.held[id]
        self.deleted += goes
        return len(goes)

    def list(self, *, origin=None, tenant=None):
        for label, data in list(self.held.values()):
            if tenant in (None, label.tenant) and origin in (None, label.origin):
                yield Entry(label, len(data), len(data), 0, 0)

    def usage(self):
        return Usage(len(self.held), sum(len(data) for _, data in self.held.values()), None)

    def close(self):
        self.calls.append(("close", []))


def chain(n, *, tenant="", size=64, name=b"", origin=ORIGIN, place=b"\0\0"):
    """``n`` records, root first."""
    records, parent = [], RecordId(b"")
    for depth in range(n):
        id = RecordId(hashlib.blake2b(name + parent + bytes([depth]), digest_size=16).digest() + place)
        label = Label(id, parent, origin, depth, tenant, b"%16d" % depth)
        data = (hashlib.blake2b(id).digest() * (size // 64 + 1))[:size]
        records.append(Record(label, memoryview(data)))
        parent = id
    return records


def ids_of(records):
    return [record.label.id for record in records]


def got(tier, records, timeout_s=5):
    """(how, label, whether the bytes are right) of each."""
    buffers = [memoryview(bytearray(len(record.data))) for record in records]
    answers = tier.get_many_into(ids_of(records), buffers, timeout_s=timeout_s)
    return [
        (how, label, bytes(buffer) == bytes(record.data))
        for (how, label), buffer, record in zip(answers, buffers, records, strict=True)
    ]


def hits(records):
    return [("hit", record.label, True) for record in records]


def with_tenant(records, tenant):
    return [Record(replace(record.label, tenant=tenant), record.data) for record in records]
