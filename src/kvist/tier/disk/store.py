"""The disk tier: records in slab files of one folder, which outlive the process and which several processes share."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kvist.errors import BadValue, KvistError
from kvist.ids import RecordId
from kvist.tier.base import Entry, Got, Label, Put, Record, Usage
from kvist.tier.damage import disk_damage
from kvist.tier.disk import admin
from kvist.tier.disk.get import Row, Want, may_be_id
from kvist.tier.disk.health import Health
from kvist.tier.disk.index import BUSY_S
from kvist.tier.disk.io import Io
from kvist.tier.disk.opened import How, Opened
from kvist.tier.disk.places import LEAST_CAPACITY_BYTES
from kvist.tier.disk.scan import Ground
from kvist.tier.disk.slab import Slabs
from kvist.tier.disk.touches import Touches


class DiskTier:
    """Opened with ``open``. Any thread may use it. Nothing raises for a fault of the disk."""

    name = "disk"

    def __init__(self, how: How) -> None:
        path = os.path.realpath(how.path)
        self._how = how
        self.health = Health(path)
        self._damage = disk_damage(path)
        self._touches = Touches()
        self._usage = Usage(0, 0, how.capacity_bytes)
        self._opening = threading.Lock()
        self._old: list[Opened] = []
        self._closed = False
        self._now = Opened.of(how, self.health, self._touches, self._damage)
        if how.read_only:
            self.health.fix("read-only", self._now.folder.reason)
        elif self._now.puts is None:
            self.health.failed(self._now.folder.reason)

    @classmethod
    def open(
        cls, folder: Path, *, capacity_bytes: int, reserve_bytes: int = 1 << 30, sync: bool = True,
        read_only: bool = False, io: Io | None = None,
    ) -> DiskTier:  # fmt: skip
        """Open a folder, making it if need be. ``reserve_bytes`` of its filesystem always stay free.

        A folder that cannot be written to now is read, and tried again after pauses. ``sync``: wait for the device
        before records are published; without it a power cut may cost the last ones (they are found out by their
        checksums). Raises ``kvist.errors`` for a path that cannot be a folder, a folder of a newer format, or a
        capacity below 1 MiB.
        """
        if capacity_bytes < LEAST_CAPACITY_BYTES:
            raise BadValue("capacity_bytes", capacity_bytes, f"at least {LEAST_CAPACITY_BYTES}")
        if reserve_bytes < 0:
            raise BadValue("reserve_bytes", reserve_bytes, "0 or more")
        return cls(How(Path(folder), io or Io(), capacity_bytes, reserve_bytes, sync, read_only))

    @property
    def _ground(self) -> Ground | None:
        return self._now.ground

    @property
    def _slabs(self) -> Slabs:
        return self._now.slabs

    def _writable(self) -> Opened:
        """The folder; opened again if it could only be read and it is time to see whether that has changed."""
        now = self._now
        if now.puts is not None or self._how.read_only or not self.health.may_try():
            return now
        with self._opening:
            if self._now is not now or self._closed:
                return self._now
            try:
                new = Opened.of(self._how, self.health, self._touches, self._damage)
            except KvistError as error:
                self.health.failed(error.what)
                return now
            if new.puts is None:
                self.health.failed(new.folder.reason)
                new.close()
                return now
            self._old.append(now)
            self._now = new
        return new

    def exists_many(self, ids: Sequence[RecordId]) -> list[bool]:
        """Whether each is there and whole, as far as the index knows."""
        rows = self._now.find(ids) or {}
        return [i in rows for i in ids]

    def get_many_into(
        self, ids: Sequence[RecordId], buffers: Sequence[memoryview], *, timeout_s: float
    ) -> list[tuple[Got, Label | None]]:
        """Read and verify each. Returns when nothing writes to any buffer any more."""
        deadline_s = time.monotonic() + timeout_s
        now = self._now
        with now.access.using() as is_open:
            if not is_open:
                return [("missing", None) for _ in ids]
            rows = now.find(ids)
            if rows is None:
                return [("error", None) for _ in ids]
            wants = [Want(rows[i], b) if i in rows else None for i, b in zip(ids, buffers, strict=True)]
            now.fill([w for w in wants if w], deadline_s)
            hits = list(dict.fromkeys(w.row.id for w in wants if w and w.got == "hit"))
            if hits and self._touches.add(hits, hits=1):
                self._flush(0.05)
        return [(w.got, w.label) if w else ("missing", None) for w in wants]

    def put_many(self, records: Sequence[Record], *, timeout_s: float) -> list[Put]:
        """Store records: reserve, write, wait for the device, publish; some at a time."""
        deadline_s = time.monotonic() + timeout_s
        now = self._writable()
        with now.access.using() as is_open:
            if is_open and now.puts:
                return now.puts.put(records, deadline_s)
        return ["off" for _ in records]

    def touch_many(self, ids: Sequence[RecordId]) -> None:
        """Remembered, and written down with the next transaction."""
        if self._touches.add([i for i in ids if may_be_id(i)], hits=0):
            self._flush(0.05)

    def _flush(self, timeout_s: float) -> None:
        taken: dict[RecordId, tuple[int, int]] = {}

        def go(c: sqlite3.Connection, _: Ground) -> bool:
            taken.update(self._touches.write(c))
            return True

        if not self._now.access.change(go, timeout_s):
            self._touches.restore(taken)

    def delete(self, *, ids: Sequence[RecordId] = (), tenant: str | None = None, origin: bytes | None = None) -> int:
        """Remove records and destroy their bytes before their slots are used again; -1: it could not be done."""
        if not ids and tenant is None and origin is None:
            return 0
        n = self._now.access.change(lambda c, ground: admin.delete(c, ground, ids, tenant, origin), BUSY_S)
        if n is None:
            return -1
        self._now.access.change(lambda c, ground: ground.places.wipe(c), BUSY_S)
        self._now.access.checkpoint()
        return n

    def list(self, *, origin: bytes | None = None, tenant: str | None = None) -> Iterator[Entry]:
        """Every record, shallow before deep. Their labels are read from the slabs, so this takes its time."""
        self._flush(0.05)
        for row, used, hits in self._rows(origin, tenant):
            now = self._now
            with now.access.using() as is_open:
                entry = admin.entry(now.slabs, row, used, hits) if is_open else None
            if entry:
                yield entry

    def _rows(self, origin: bytes | None, tenant: str | None) -> Sequence[tuple[Row, int, int]]:
        nothing: Sequence[tuple[Row, int, int]] = ()
        return self._now.access.ask(lambda c: admin.listed(c, origin, tenant), nothing)

    def strange(self, origin: bytes) -> bool:
        """Whether it has records, and none of this origin. Looks at all of them when so."""
        return self._now.access.ask(lambda c: admin.strange(c, origin), False)

    def usage(self) -> Usage:
        """Sums over slabs; as it was last known where the index cannot be asked."""
        nothing: tuple[int, int, int, int] | None = None
        facts = self._now.access.ask(admin.totals, nothing)
        if facts:
            records, used, evicted, damaged = facts
            self._usage = Usage(
                records, used, self._how.capacity_bytes, evicted_records=evicted, damaged_records=damaged,
                foreign_files=self._now.folder.foreign_files(),
            )  # fmt: skip
        return replace(self._usage, condition=self.health.condition, reason=self.health.reason)

    def verify(self, on_progress: Callable[[int, int], None] | None = None) -> admin.Report:
        """Read every record and drop what is damaged. ``on_progress``: bytes done, bytes in all."""
        rows = sorted((row for row, _, _ in self._rows(None, None)), key=lambda r: r.place)
        lost = self._ground.lost if self._ground else ()
        return admin.verify(rows, self._check, on_progress or (lambda done, total: None), lost)

    def _check(self, rows: Sequence[Row]) -> Sequence[Got]:
        buffers = [memoryview(bytearray(max(0, r.data_bytes) if r.makes_sense else 0)) for r in rows]
        wants = [Want(r, b) for r, b in zip(rows, buffers, strict=True)]
        now = self._now
        with now.access.using() as is_open:
            if is_open:
                now.fill(wants, float("inf"), tell=False)
        return [w.got for w in wants]

    def gc(self) -> int:
        """Take back what dead processes left, wipe what waits for it, remove empty slabs, give free slots' room back.

        Says how many bytes of the device came free; -1: it could not be done.
        """
        writer = self._now.writer
        active = writer.active if writer else tuple
        freed = self._now.access.change(lambda c, ground: admin.collect(c, ground, active()), BUSY_S)
        self._now.access.checkpoint()
        return -1 if freed is None else freed

    def close(self) -> None:
        """Write down what is only in memory and let go of files. What runs ends first."""
        self._flush(BUSY_S)
        with self._opening:
            self._closed = True
        if self._now.close():
            self.health.close()
        for old in self._old:
            old.close()
