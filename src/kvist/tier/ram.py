"""Records in the host's memory: for devices with memory of their own, and as a packed second chance.

Leaf-first LRU: a record is used with all its ancestors here, and of records used together the deepest goes first, so
an ancestor never goes before its descendant. A put that could only be served by evicting its own ancestors is
``full``: a chain longer than the place keeps its beginning and does not chase its own tail.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kvist.errors import BadValue
from kvist.ids import RecordId
from kvist.tier.base import Entry, Got, Label, Put, Record, Usage
from kvist.tier.envelope import FLAG_PACKED, Damaged, Header, check_stored, digest_of
from kvist.tier.pack import Packer

Bytes = npt.NDArray[np.uint8]

REFUSALS: Final = 8192
"""How many refused ids are remembered, so that what comes after them evicts nothing on their behalf."""


@dataclass(slots=True)
class _Slot:
    """One record. ``data`` never changes, so that it can be read while the record is evicted."""

    header: Header
    data: Bytes
    used: int = 0
    hits: int = 0

    @property
    def bytes(self) -> int:
        """What it takes: header and stored bytes."""
        return self.header.header_bytes + self.header.stored_bytes


class RamTier:
    """At most ``capacity_bytes`` of records, headers counted. With ``packer``, compressed where that gains."""

    def __init__(self, capacity_bytes: int, *, packer: Packer | None = None, name: str = "ram") -> None:
        if capacity_bytes < 1:
            raise BadValue("capacity_bytes", capacity_bytes, "at least 1 byte")
        self.name = name
        self._capacity_bytes = capacity_bytes
        self._packer = packer
        self._lock = threading.Lock()
        self._slots: OrderedDict[RecordId, _Slot] = OrderedDict()
        """In the order in which they go: least recently used first, the deepest of those used together first."""
        self._refused: OrderedDict[RecordId, None] = OrderedDict()
        self._used_bytes = 0
        self._tick = 0
        self._evicted = 0
        self._damaged = 0

    def exists_many(self, ids: Sequence[RecordId]) -> list[bool]:
        """Whether each is here."""
        with self._lock:
            return [id in self._slots for id in ids]

    def get_many_into(
        self, ids: Sequence[RecordId], buffers: Sequence[memoryview], *, timeout_s: float
    ) -> list[tuple[Got, Label | None]]:
        """Copy each record into its buffer and check what was copied."""
        until = time.monotonic() + timeout_s
        out: list[tuple[Got, Label | None]] = []
        for id, buffer in zip(ids, buffers, strict=True):
            late = time.monotonic() > until
            out.append(("timeout", None) if late else self._get(id, buffer))
        hits = [id for id, (got, _) in zip(ids, out, strict=True) if got == "hit"]
        with self._lock:
            self._use(hits)
            for id in hits:
                if slot := self._slots.get(id):
                    slot.hits += 1
        return out

    def put_many(self, records: Sequence[Record], *, timeout_s: float) -> list[Put]:
        """Copy records in, evicting others. What comes after a record that was refused is refused as well."""
        until = time.monotonic() + timeout_s
        ids = [r.label.id for r in records]
        with self._lock:
            above = [r.label.parent for r in records]
            self._use([*ids, *above])
            keep = {*ids, *self._chain(above)}
        out: list[Put] = ["timeout" if time.monotonic() > until else self._put(r, keep) for r in records]
        with self._lock:
            self._use(ids)
        return out

    def touch_many(self, ids: Sequence[RecordId]) -> None:
        """Count records, and with them their ancestors, as used now."""
        with self._lock:
            self._use(ids)

    def delete(self, *, ids: Sequence[RecordId] = (), tenant: str | None = None, origin: bytes | None = None) -> int:
        """Remove records by id, and those of a tenant, an origin or both."""
        with self._lock:
            doomed = {id for id in ids if id in self._slots}
            if tenant is not None or origin is not None:
                doomed |= {id for id, s in self._slots.items() if _belongs(s.header.label, tenant, origin)}
            for id in doomed:
                self._drop(id)
        return len(doomed)

    def list(self, *, origin: bytes | None = None, tenant: str | None = None) -> Iterator[Entry]:
        """Every record as of now, parents before children."""
        with self._lock:
            slots = [s for s in self._slots.values() if _belongs(s.header.label, tenant, origin)]
            entries = [Entry(s.header.label, s.header.data_bytes, s.header.stored_bytes, s.used, s.hits) for s in slots]
        return iter(sorted(entries, key=lambda e: e.label.depth))

    def usage(self) -> Usage:
        """Records and the bytes they take."""
        with self._lock:
            return Usage(
                records=len(self._slots),
                used_bytes=self._used_bytes,
                capacity_bytes=self._capacity_bytes,
                evicted_records=self._evicted,
                damaged_records=self._damaged,
            )

    def close(self) -> None:
        """Memory cannot outlive the process: what was stored goes."""
        with self._lock:
            self._slots.clear()
            self._used_bytes = 0

    def _get(self, id: RecordId, buffer: memoryview) -> tuple[Got, Label | None]:
        with self._lock:
            slot = self._slots.get(id)
        if slot is None:
            return "missing", None
        header = slot.header
        if header.data_bytes != len(buffer):
            return "foreign", None
        try:
            if header.flags & FLAG_PACKED:
                check_stored(header, id, slot.data.data)
                assert self._packer is not None
                self._packer.unpack_into(slot.data.data, buffer)
            else:
                np.copyto(np.frombuffer(buffer, np.uint8), slot.data)
                check_stored(header, id, buffer)
        except Damaged:
            with self._lock:
                if self._slots.get(id) is slot:
                    self._drop(id)
                self._damaged += 1
            return "damaged", None
        return "hit", header.label

    def _put(self, record: Record, keep: set[RecordId]) -> Put:
        label = record.label
        with self._lock:
            if label.id in self._slots:
                return "known"
            if label.parent in self._refused:
                return self._refuse(label.id)
        try:
            slot = self._slot(record)
        except MemoryError:
            return "full"
        with self._lock:
            if label.id in self._slots:
                return "known"
            if not self._make_room(slot.bytes, keep):
                return self._refuse(label.id)
            self._slots[label.id] = slot
            self._used_bytes += slot.bytes
            self._refused.pop(label.id, None)
        return "stored"

    def _refuse(self, id: RecordId) -> Put:
        self._refused[id] = None
        self._refused.move_to_end(id)
        if len(self._refused) > REFUSALS:
            self._refused.popitem(last=False)
        return "full"

    def _slot(self, record: Record) -> _Slot:
        source: Any = np.frombuffer(record.data, np.uint8)
        packed = self._packer.pack(record.data) if self._packer else None
        if packed is not None:
            data, flags = np.frombuffer(packed, np.uint8), FLAG_PACKED
        else:
            data, flags = np.empty(len(source), np.uint8), 0
            np.copyto(data, source)
        digest = digest_of(record.label.id, data.data)
        return _Slot(Header(record.label, len(record.data), len(data), digest, flags), data)

    def _make_room(self, n_bytes: int, keep: set[RecordId]) -> bool:
        """Evict until ``n_bytes`` fit. False, and nothing more goes, when a record of ``keep`` would be the next."""
        if n_bytes > self._capacity_bytes:
            return False
        while self._used_bytes + n_bytes > self._capacity_bytes:
            first = next(iter(self._slots))
            if first in keep:
                return False
            self._drop(first)
            self._evicted += 1
        return True

    def _drop(self, id: RecordId) -> None:
        self._used_bytes -= self._slots.pop(id).bytes

    def _chain(self, ids: Sequence[RecordId]) -> Sequence[RecordId]:
        """Those of ``ids`` that are here, with all their ancestors that are: the deepest first."""
        found: dict[RecordId, int] = {}
        for id in ids:
            at = id
            while at not in found and (slot := self._slots.get(at)) is not None:
                found[at] = slot.header.label.depth
                at = slot.header.label.parent
        return sorted(found, key=lambda i: -found[i])

    def _use(self, ids: Sequence[RecordId]) -> None:
        self._tick += 1
        for id in self._chain(ids):
            self._slots[id].used = self._tick
            self._slots.move_to_end(id)


def _belongs(label: Label, tenant: str | None, origin: bytes | None) -> bool:
    return (tenant is None or label.tenant == tenant) and (origin is None or label.origin == origin)
