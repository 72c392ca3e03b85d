"""The disk tier: records in slab files of one folder, which outlive the process and which several processes share."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kvist.errors import BadValue, StateError
from kvist.ids import RecordId
from kvist.tier.base import Entry, Got, Label, Put, Record, Usage
from kvist.tier.disk import admin
from kvist.tier.disk.access import FAULTS, Access
from kvist.tier.disk.folder import Folder, open_folder
from kvist.tier.disk.get import Reader, Row, Want, find, may_be_id
from kvist.tier.disk.health import Health, reason_of
from kvist.tier.disk.index import BUSY_S
from kvist.tier.disk.io import Io
from kvist.tier.disk.owner import Owner
from kvist.tier.disk.places import LEAST_CAPACITY_BYTES, Places, wal_pages
from kvist.tier.disk.put import Writer
from kvist.tier.disk.puts import Puts
from kvist.tier.disk.scan import Ground
from kvist.tier.disk.slab import Slabs
from kvist.tier.disk.touches import Touches


class DiskTier:
    """Opened with ``open``. Any thread may use it. Nothing raises for a fault of the disk."""

    name = "disk"

    def __init__(self, folder: Folder, io: Io, *, capacity_bytes: int, reserve_bytes: int, sync: bool) -> None:
        self._folder, self._io, self._capacity_bytes = folder, io, capacity_bytes
        self.health = Health(str(folder.path))
        self._slabs = Slabs(folder, io)
        places = Places(self._slabs, folder, io, capacity_bytes=capacity_bytes, reserve_bytes=reserve_bytes)
        self._reader, self._touches = Reader(self._slabs), Touches()
        self._usage = Usage(0, 0, capacity_bytes)
        self._ground: Ground | None = None
        self._writer: Writer | None = None
        if folder.writable:
            owner = Owner(folder, io)
            self._ground = Ground(folder, io, self._slabs, places, owner)
            self._writer = Writer(self._slabs, places, owner, self._touches, sync=sync)
        else:
            self.health.fix("read-only", folder.reason)
        try:
            self._access = Access(folder, io, self._ground, self.health, wal_pages=wal_pages(capacity_bytes))
        except BaseException:
            self._let_go()
            raise
        self._puts = None
        if self._writer and self._ground:
            most = max(8, min(256, wal_pages(capacity_bytes) // 4))
            self._puts = Puts(self._writer, self._access, self._ground.places, self.health, most_records=most)

    @classmethod
    def open(
        cls, folder: Path, *, capacity_bytes: int, reserve_bytes: int = 1 << 30, sync: bool = True,
        read_only: bool = False, io: Io | None = None,
    ) -> DiskTier:  # fmt: skip
        """Open a folder, making it if need be. ``reserve_bytes`` of its filesystem always stay free.

        ``sync``: wait for the device before records are published; without it a power cut may cost the last ones
        (they are found out by their checksums). Raises ``kvist.errors`` for a path that cannot be a folder, a folder of
        a newer format, or a capacity below 1 MiB.
        """
        if capacity_bytes < LEAST_CAPACITY_BYTES:
            raise BadValue("capacity_bytes", capacity_bytes, f"at least {LEAST_CAPACITY_BYTES}")
        if reserve_bytes < 0:
            raise BadValue("reserve_bytes", reserve_bytes, "0 or more")
        io = io or Io()
        opened = open_folder(Path(folder), io, read_only=read_only)
        try:
            try:
                return cls(opened, io, capacity_bytes=capacity_bytes, reserve_bytes=reserve_bytes, sync=sync)
            except (OSError, sqlite3.OperationalError) as error:
                # What is there can still be read.
                opened = replace(opened, writable=False, reason=reason_of(error))
                return cls(opened, io, capacity_bytes=capacity_bytes, reserve_bytes=reserve_bytes, sync=sync)
        except FAULTS as error:
            os.close(opened.fd)
            raise StateError(
                f"the cache in {opened.path} cannot be opened: {reason_of(error)}",
                remedy="choose another cache folder, or none",
            ) from error

    def exists_many(self, ids: Sequence[RecordId]) -> list[bool]:
        """Whether each is there and whole, as far as the index knows."""
        rows = self._find(ids) or {}
        return [i in rows for i in ids]

    def _find(self, ids: Sequence[RecordId]) -> dict[RecordId, Row] | None:
        nothing: dict[RecordId, Row] | None = None
        return self._access.ask(lambda c: find(c, [i for i in ids if may_be_id(i)]), nothing)

    def get_many_into(
        self, ids: Sequence[RecordId], buffers: Sequence[memoryview], *, timeout_s: float
    ) -> list[tuple[Got, Label | None]]:
        """Read and verify each. Returns when nothing writes to any buffer any more."""
        deadline_s = time.monotonic() + timeout_s
        with self._access.using() as is_open:
            if not is_open:
                return [("missing", None) for _ in ids]
            rows = self._find(ids)
            if rows is None:
                return [("error", None) for _ in ids]
            wants = [Want(rows[i], b) if i in rows else None for i, b in zip(ids, buffers, strict=True)]
            self._fill([w for w in wants if w], deadline_s)
            hits = list(dict.fromkeys(w.row.id for w in wants if w and w.got == "hit"))
            if hits and self._touches.add(hits, hits=1):
                self._flush(0.05)
        return [(w.got, w.label) if w else ("missing", None) for w in wants]

    def _fill(self, wants: Sequence[Want], deadline_s: float, *, again: bool = True) -> None:
        good = []
        for w in wants:
            w.got = "foreign" if w.row.makes_sense else "damaged"
            if w.got == "foreign" and w.row.data_bytes == w.buffer.nbytes:
                w.buffer, w.got = w.buffer.cast("B"), "missing"
                good.append(w)
        self._reader.read(good, deadline_s)
        doubtful = [w for w in wants if w.got in ("missing", "damaged")]
        if not doubtful:
            return
        # The record may have gone, or gone elsewhere, while it was read: then it is not damaged.
        rows = self._find([w.row.id for w in doubtful]) or {}
        same = [w for w in doubtful if rows.get(w.row.id) == w.row]
        moved = [w for w in doubtful if w not in same]
        for w in moved:
            w.got = "missing"
        if same:
            self._access.change(
                lambda c, ground: admin.drop_damaged(c, ground, [(w.row, w.got == "damaged") for w in same]), 1.0
            )
        retry = [w for w in moved if w.row.id in rows]
        if retry and again:
            for w in retry:
                w.row = rows[w.row.id]
            self._fill(retry, deadline_s, again=False)

    def put_many(self, records: Sequence[Record], *, timeout_s: float) -> list[Put]:
        """Store records: reserve, write, wait for the device, publish; some at a time."""
        deadline_s = time.monotonic() + timeout_s
        with self._access.using() as is_open:
            if is_open and self._puts:
                return self._puts.put(records, deadline_s)
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

        if not self._access.change(go, timeout_s):
            self._touches.restore(taken)

    def delete(self, *, ids: Sequence[RecordId] = (), tenant: str | None = None, origin: bytes | None = None) -> int:
        """Remove records and destroy their bytes before their slots are used again; -1: it could not be done."""
        if not ids and tenant is None and origin is None:
            return 0
        n = self._access.change(lambda c, ground: admin.delete(c, ground, ids, tenant, origin), BUSY_S)
        if n is None:
            return -1
        self._access.change(lambda c, ground: ground.places.wipe(c), BUSY_S)
        self._access.checkpoint()
        return n

    def list(self, *, origin: bytes | None = None, tenant: str | None = None) -> Iterator[Entry]:
        """Every record, shallow before deep. Their labels are read from the slabs, so this takes its time."""
        self._flush(0.05)
        for row, used, hits in self._rows(origin, tenant):
            with self._access.using() as is_open:
                entry = admin.entry(self._slabs, row, used, hits) if is_open else None
            if entry:
                yield entry

    def _rows(self, origin: bytes | None, tenant: str | None) -> Sequence[tuple[Row, int, int]]:
        nothing: Sequence[tuple[Row, int, int]] = ()
        return self._access.ask(lambda c: admin.listed(c, origin, tenant), nothing)

    def usage(self) -> Usage:
        """Sums over slabs; as it was last known where the index cannot be asked."""
        nothing: tuple[int, int, int, int] | None = None
        facts = self._access.ask(admin.totals, nothing)
        if facts:
            records, used, evicted, damaged = facts
            self._usage = Usage(
                records, used, self._capacity_bytes, evicted_records=evicted, damaged_records=damaged,
                foreign_files=self._folder.foreign_files(),
            )  # fmt: skip
        return replace(self._usage, condition=self.health.condition, reason=self.health.reason)

    def verify(self, on_progress: Callable[[int, int], None] | None = None) -> admin.Report:
        """Read every record and drop what is damaged. ``on_progress``: bytes done, bytes in all."""
        rows = sorted((row for row, _, _ in self._rows(None, None)), key=lambda r: r.place)
        return admin.verify(rows, self._check, on_progress or (lambda done, total: None))

    def _check(self, rows: Sequence[Row]) -> Sequence[Got]:
        buffers = [memoryview(bytearray(max(0, r.data_bytes) if r.makes_sense else 0)) for r in rows]
        wants = [Want(r, b) for r, b in zip(rows, buffers, strict=True)]
        with self._access.using() as is_open:
            if is_open:
                self._fill(wants, float("inf"))
        return [w.got for w in wants]

    def gc(self) -> int:
        """Take back what dead processes left, wipe what waits for it, remove empty slabs, give free slots' room back.

        Says how many bytes of the device came free; -1: it could not be done.
        """
        active = self._writer.active if self._writer else tuple
        freed = self._access.change(lambda c, ground: admin.collect(c, ground, active()), BUSY_S)
        self._access.checkpoint()
        return -1 if freed is None else freed

    def close(self) -> None:
        """Write down what is only in memory and let go of files. What runs ends first."""
        self._flush(BUSY_S)
        if not self._access.end():
            return
        self._access.close()
        self._let_go()
        self.health.close()
        os.close(self._folder.fd)

    def _let_go(self) -> None:
        self._reader.close()
        if self._writer:
            self._writer.close()
        self._slabs.close()
        if self._ground:
            self._ground.owner.close()
