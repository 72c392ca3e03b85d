"""Reading records: rows of the index, then runs of neighbouring slots, several in flight; each record is verified."""

from __future__ import annotations

import errno
import sqlite3
import struct
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from kvist.ids import RECORD_ID_BYTES, RecordId
from kvist.tier.base import Got, Label
from kvist.tier.disk.index import READY
from kvist.tier.disk.places import runs
from kvist.tier.disk.reclaim import marks
from kvist.tier.disk.slab import PAGE, Arena, Place, Slabs, is_aligned, padded
from kvist.tier.envelope import MAX_HEADER_BYTES, Damaged, Foreign, Header, check_stored, read_header

ASK_AT_ONCE: Final = 500
RUN_BYTES: Final = 4 << 20
READ_THREADS: Final = 4
BAD_VALUE: Final = (ValueError, TypeError, OverflowError, struct.error)


class Stale(Exception):
    """The slot holds another record by now."""


@dataclass(frozen=True, slots=True)
class Row:
    """Where a record lies, according to the index. ``stamp`` tells one stay of a record from the next."""

    id: RecordId
    place: Place
    slot_bytes: int
    head_bytes: int
    data_bytes: int
    origin: bytes
    stamp: int

    @property
    def makes_sense(self) -> bool:
        """Whether the numbers can be true: an index can decay too."""
        return (
            all(type(n) is int for n in (self.place.slot, self.slot_bytes, self.head_bytes, self.data_bytes))
            and PAGE <= self.head_bytes <= MAX_HEADER_BYTES + PAGE
            and self.head_bytes % PAGE == 0
            and 0 <= self.place.slot < 1 << 40
            and 0 <= self.data_bytes < 1 << 40
            and self.slot_bytes == self.head_bytes + padded(self.data_bytes)
        )


@dataclass(slots=True, eq=False)
class Want:
    """One record to read: its row and where its bytes go. ``got`` is the answer once it is known."""

    row: Row
    buffer: memoryview
    got: Got = "missing"
    label: Label | None = None


def find(c: sqlite3.Connection, ids: Sequence[RecordId]) -> dict[RecordId, Row]:
    """The rows of those records that may be read."""
    found: dict[RecordId, Row] = {}
    for at in range(0, len(ids), ASK_AT_ONCE):
        part = ids[at : at + ASK_AT_ONCE]
        rows = c.execute(
            "select record.id, slab, slot, slot_bytes, head_bytes, data_bytes, origin, stamp"
            f" from record left join slab on slab.id = slab where record.id in ({marks(len(part))}) and state = ?",
            (*part, READY),
        )
        for id, slab, slot, slot_bytes, *rest in rows:
            found[RecordId(id)] = Row(RecordId(id), Place(slab, slot), slot_bytes, *rest)
    return found


def verify(row: Row, head: memoryview, data: memoryview) -> Header:
    """Raises ``Stale``, ``Foreign`` or ``Damaged`` unless these are the bytes that were put under the row's id."""
    header = read_header(head)
    if header.label.id != row.id:
        raise Stale("another record lies here")
    if header.flags or header.data_bytes != header.stored_bytes:
        raise Foreign("a record that this kvist cannot unpack")
    if header.data_bytes != row.data_bytes or header.label.origin != row.origin:
        raise Damaged("the index says otherwise")
    check_stored(header, row.id, data)
    return header


class Reader:
    """Fills buffers from slabs."""

    def __init__(self, slabs: Slabs) -> None:
        self._slabs, self._arena = slabs, Arena()
        self._pool = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="kvist-disk-read")

    def read(self, wants: Sequence[Want], deadline_s: float) -> None:
        """Answer all of them. Returns when no thread writes to any buffer any more."""
        groups = list(self._groups(wants))
        if len(groups) == 1:
            self._run(groups[0], deadline_s)
            return
        for done in [self._pool.submit(self._run, g, deadline_s) for g in groups]:
            done.result()

    def _groups(self, wants: Sequence[Want]) -> Iterator[list[Want]]:
        by_place = sorted(wants, key=lambda w: w.row.place)
        at = 0
        while at < len(by_place):
            longest = max(1, RUN_BYTES // by_place[at].row.slot_bytes)
            _, n = next(runs((w.row.place for w in by_place[at:]), longest))
            yield by_place[at : at + n]
            at += n

    def _run(self, group: list[Want], deadline_s: float) -> None:
        if time.monotonic() > deadline_s:
            for want in group:
                want.got = "timeout"
            return
        try:
            self._read(group)
        except OSError as error:
            if error.errno == errno.ENOENT:
                for want in group:  # the slab is gone, and with it its records
                    want.got = "damaged"
                return
            if len(group) == 1:
                group[0].got = "error"
                return
            for want in group:
                self._run([want], deadline_s)

    def _read(self, group: list[Want]) -> None:
        """One system call for neighbours: heads into our memory, data straight into the callers' where it can be."""
        direct = [is_aligned(w.buffer) for w in group]
        size = sum(
            w.row.head_bytes + (0 if d else padded(w.row.data_bytes)) for w, d in zip(group, direct, strict=True)
        )
        memory, at = self._arena.take(size), 0
        parts: list[memoryview] = []
        for want, straight in zip(group, direct, strict=True):
            for own in (want.row.head_bytes, 0 if straight else padded(want.row.data_bytes)):
                if own:
                    parts.append(memory[at : at + own])
                    at += own
            if straight and len(want.buffer):
                parts.append(want.buffer)
        had = self._slabs.read(group[0].row.place, group[0].row.slot_bytes, parts)
        at = end = 0
        for want, straight in zip(group, direct, strict=True):
            row = want.row
            head, at = memory[at : at + row.head_bytes], at + row.head_bytes
            data, end = want.buffer, end + row.slot_bytes
            if not straight:
                data, at = memory[at : at + row.data_bytes], at + padded(row.data_bytes)
            if had < end:
                want.got = "damaged"
                continue
            self._judge(want, head, data)
            if want.got == "hit" and not straight:
                want.buffer[:] = data

    @staticmethod
    def _judge(want: Want, head: memoryview, data: memoryview) -> None:
        try:
            want.label = verify(want.row, head, data).label
            want.got = "hit"
        except Stale:
            want.got = "missing"
        except (Foreign, Damaged, *BAD_VALUE):
            want.got = "damaged"

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


def may_be_id(id: RecordId) -> bool:
    """Whether this can be a record's id at all."""
    return isinstance(id, bytes) and len(id) == RECORD_ID_BYTES
