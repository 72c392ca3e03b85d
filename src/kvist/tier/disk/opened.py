"""An open folder: all the parts that a disk tier has of it, and reading from it. A tier may open its folder again."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvist.errors import StateError
from kvist.ids import RecordId
from kvist.tier.damage import Damage
from kvist.tier.disk import admin
from kvist.tier.disk.access import FAULTS, Access
from kvist.tier.disk.folder import Folder, open_folder
from kvist.tier.disk.get import Reader, Row, Want, find, may_be_id
from kvist.tier.disk.health import Health, reason_of
from kvist.tier.disk.io import Io
from kvist.tier.disk.owner import Owner
from kvist.tier.disk.places import Places, wal_pages
from kvist.tier.disk.put import Writer
from kvist.tier.disk.puts import Puts
from kvist.tier.disk.room import LEAST_BYTES, Gone
from kvist.tier.disk.scan import Ground
from kvist.tier.disk.slab import Slabs
from kvist.tier.disk.touches import Touches


@dataclass(frozen=True, slots=True)
class How:
    """What a tier was opened with."""

    path: Path
    io: Io
    capacity_bytes: int
    reserve_bytes: int
    sync: bool
    read_only: bool


class Opened:
    """The parts. ``puts`` and ``ground`` are None where the folder is only read; its ``reason`` says why."""

    def __init__(
        self, how: How, folder: Folder, health: Health, touches: Touches, damage: Damage, gone: Gone | None = None
    ) -> None:
        """Raises ``FAULTS``."""
        io = how.io
        self.folder, self.damage = folder, damage
        self.slabs = Slabs(folder, io)
        self._reader = Reader(self.slabs)
        self.ground: Ground | None = None
        self.writer: Writer | None = None
        self.puts: Puts | None = None
        whole_bytes = io.whole_bytes(folder.fd)
        pages = wal_pages(min(how.capacity_bytes, whole_bytes or how.capacity_bytes))
        try:
            if folder.writable:
                places = Places(
                    self.slabs, folder, io, capacity_bytes=how.capacity_bytes, reserve_bytes=how.reserve_bytes,
                    log_pages=pages,
                )  # fmt: skip
                owner = Owner(folder, io)
                self.ground = Ground(folder, io, self.slabs, places, owner)
                self.writer = Writer(self.slabs, places, owner, touches, sync=how.sync)
            self.access = Access(folder, io, self.ground, health, wal_pages=pages, gone=gone)
        except BaseException:
            self._let_go()
            raise
        if self.writer and self.ground:
            most = max(8, min(256, pages // 4))
            self.puts = Puts(self.writer, self.access, self.ground.places, health, most_records=most)

    @staticmethod
    def of(how: How, health: Health, touches: Touches, damage: Damage, gone: Gone | None = None) -> Opened:
        """Open a folder, to read only where nothing else can be had. Raises ``kvist.errors``.

        ``gone``: opened to remove this; on a full filesystem its bytes go first.
        """
        folder = open_folder(how.path, how.io, read_only=how.read_only)
        try:
            try:
                return Opened(how, folder, health, touches, damage, gone)
            except (OSError, sqlite3.OperationalError) as error:
                # What is there can still be read.
                full = how.io.free_bytes(folder.fd) < LEAST_BYTES
                reason = "no space is left on its filesystem" if full else reason_of(error)
                folder = replace(folder, writable=False, reason=reason)
                return Opened(how, folder, health, touches, damage)
        except FAULTS as error:
            os.close(folder.fd)
            raise StateError(
                f"the cache in {folder.path} cannot be opened: {reason_of(error)}",
                remedy="choose another cache folder, or none",
            ) from error

    def find(self, ids: Sequence[RecordId]) -> dict[RecordId, Row] | None:
        """Rows of records; None: the index cannot be asked."""
        nothing: dict[RecordId, Row] | None = None
        return self.access.ask(lambda c: find(c, [i for i in ids if may_be_id(i)]), nothing)

    def fill(self, wants: Sequence[Want], deadline_s: float, *, tell: bool = True, again: bool = True) -> None:
        """Read and verify. What is wrong is dropped, counted, and said in the log (``tell``)."""
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
        rows = self.find([w.row.id for w in doubtful]) or {}
        same = [w for w in doubtful if rows.get(w.row.id) == w.row]
        moved = [w for w in doubtful if w not in same]
        for w in moved:
            w.got = "missing"
        if same:
            self._drop(same, tell=tell)
        retry = [w for w in moved if w.row.id in rows]
        if retry and again:
            for w in retry:
                w.row = rows[w.row.id]
            self.fill(retry, deadline_s, tell=tell, again=False)

    def _drop(self, wants: Sequence[Want], *, tell: bool) -> None:
        """The index says that they lie where they do not. (An index that is only read may just be old.)"""
        if self.ground is not None:
            for w in wants:
                w.got = "damaged"
        dropped = self.access.change(lambda c, ground: admin.drop_damaged(c, ground, [w.row for w in wants]), 1.0)
        if tell:
            self.damage.found(dropped or 0)

    def close(self) -> bool:
        """Let go of files, once what runs has ended. False: that was done before."""
        if not self.access.end():
            return False
        self.access.close()
        self._let_go()
        os.close(self.folder.fd)
        return True

    def _let_go(self) -> None:
        self._reader.close()
        if self.writer:
            self.writer.close()
        self.slabs.close()
        if self.ground:
            self.ground.owner.close()
