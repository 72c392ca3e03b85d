"""The disk tier: records in slab files of one folder, which outlive the process and which several processes share."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from kvist.errors import BadValue, KvistError
from kvist.ids import RecordId
from kvist.tier.base import Entry, Got, Label, Put, Record, Usage
from kvist.tier.damage import disk_damage
from kvist.tier.disk import admin
from kvist.tier.disk.get import Row, Want, may_be_id
from kvist.tier.disk.health import Health, reason_of
from kvist.tier.disk.index import BUSY_S, Busy
from kvist.tier.disk.io import Io
from kvist.tier.disk.opened import How, Opened
from kvist.tier.disk.places import LEAST_CAPACITY_BYTES
from kvist.tier.disk.reclaim import reclaim
from kvist.tier.disk.room import Gone, free_up
from kvist.tier.disk.scan import Ground
from kvist.tier.disk.slab import Slabs
from kvist.tier.disk.touches import Touches
from kvist.units import format_bytes

T = TypeVar("T")


class DiskTier:
    """Opened with ``open``. Any thread may use it. Nothing raises for a fault of the disk."""

    name = "disk"

    def __init__(self, how: How) -> None:
        path = os.path.realpath(how.path)
        self._how = how
        self.health = Health(path)
        self.trouble = ""
        """Why the last removal could not be done; empty: it was."""
        self.is_full = False
        """Whether that was for want of room on the filesystem."""
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
        return self._opened_again(now, None)

    def _opened_again(self, now: Opened, gone: Gone | None) -> Opened:
        with self._opening:
            if self._now is not now or self._closed:
                return self._now
            try:
                new = Opened.of(self._how, self.health, self._touches, self._damage, gone)
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
        """Remove records and destroy their bytes before their slots are used again.

        -1: it could not be done; ``trouble`` says why.
        """
        if not ids and tenant is None and origin is None:
            return 0
        return self._remove(Gone(ids, tenant, origin))

    def clear(self) -> int:
        """Remove all records; -1: it could not be done."""
        return self._remove(Gone(everything=True))

    def _remove(self, gone: Gone) -> int:
        def delete(c: sqlite3.Connection, ground: Ground) -> int:
            reclaim(c, ground.places, ground.owner, self._active())  # what could not be taken back is no record
            return gone.delete(c, ground)

        n = self._freeing(delete, gone)
        if n is None:
            return -1 if self._closed or self._now.folder.slabs() else 0  # nothing is there to be removed
        self._now.access.change(lambda c, ground: ground.places.wipe(c), BUSY_S)
        self._now.access.checkpoint()
        if n:
            self.health.hopeful()
        return n

    def _freeing(self, change: Callable[[sqlite3.Connection, Ground], T], gone: Gone) -> T | None:
        """A change that frees room, done also where there is none: what is to go is destroyed first."""
        now, failed = self._now, list[BaseException]()
        if now.ground is None and not self._how.read_only:
            now = self._opened_again(now, gone)

        def room_first(c: sqlite3.Connection, ground: Ground) -> T:
            free_up(c, ground, gone)
            return change(c, ground)

        done = now.access.change(change, BUSY_S, failed)
        if done is None and failed and now.access.wants_room(failed[-1]):
            done = now.access.change(room_first, BUSY_S, failed)
        self.is_full = done is None and bool(failed) and now.access.wants_room(failed[-1])
        self.trouble = "" if done is not None else self._why(failed)
        return done

    def _why(self, failed: Sequence[BaseException]) -> str:
        if not failed:
            return self.health.reason or "it is closed"
        if isinstance(failed[-1], Busy):
            return "it is busy: others write to it"
        why = reason_of(failed[-1])
        if self.is_full:
            free = self._how.io.free_bytes(self._now.folder.fd)
            why = f"its filesystem is full: {format_bytes(free)} are free, too little to note what is gone"
        self.health.failed(why)
        return why

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

        def collect(c: sqlite3.Connection, ground: Ground) -> int:
            return admin.collect(c, ground, self._active())

        freed = self._freeing(collect, Gone())
        self._now.access.checkpoint()
        return -1 if freed is None else freed

    def _active(self) -> Sequence[RecordId]:
        writer = self._now.writer
        return writer.active() if writer else ()

    def close(self) -> None:
        """Write down what is only in memory and let go of files. What runs ends first."""
        self._flush(BUSY_S)
        with self._opening:
            self._closed = True
        if self._now.close():
            self.health.close()
        for old in self._old:
            old.close()
