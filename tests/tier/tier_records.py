"""Records for tests of tiers: chains of blocks whose bytes follow from their id."""

import hashlib

import numpy as np

from kvist.ids import RECORD_ID_BYTES, RecordId
from kvist.tier.base import Label, Record

ORIGIN = bytes(range(16))


def content(id: RecordId, data_bytes: int) -> memoryview:
    """Bytes that do not compress, always the same for an id."""
    seed = int.from_bytes(hashlib.blake2b(id, digest_size=8).digest(), "little")
    return memoryview(np.random.default_rng(seed).integers(0, 256, data_bytes, dtype=np.uint8)).cast("B")


def chain(
    name: str,
    n_records: int,
    *,
    data_bytes: int = 4096,
    tenant: str = "ada",
    origin: bytes = ORIGIN,
    below: Record | None = None,
) -> list[Record]:
    """``n_records`` in a row, under ``below`` if given. A name stands for its own chain."""
    parent = below.label.id if below else RecordId(b"")
    depth = below.label.depth + 1 if below else 0
    records = []
    for i in range(n_records):
        id = RecordId(hashlib.blake2b(f"{name}/{depth + i}".encode(), digest_size=RECORD_ID_BYTES).digest())
        tokens = np.arange(16, dtype="<i4").tobytes()
        records.append(Record(Label(id, parent, origin, depth + i, tenant, tokens), content(id, data_bytes)))
        parent = id
    return records


def ids_of(records: list[Record]) -> list[RecordId]:
    return [r.label.id for r in records]


def buffers_for(records: list[Record]) -> list[memoryview]:
    """Buffers full of a byte that is poison."""
    return [memoryview(bytearray(b"\xaa" * len(r.data))) for r in records]


def read(tier, records, timeout_s: float = 10.0):
    """(words, how many of them were hits with the right bytes and label)."""
    buffers = buffers_for(records)
    answers = tier.get_many_into(ids_of(records), buffers, timeout_s=timeout_s)
    assert len(answers) == len(records)
    good = 0
    for record, buffer, (got, label) in zip(records, buffers, answers, strict=True):
        if got == "hit":
            assert buffer == record.data, "wrong bytes were called a hit"
            assert label == record.label
            good += 1
        else:
            assert label is None
    return [got for got, _ in answers], good
