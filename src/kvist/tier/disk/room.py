"""Removing records where the filesystem is full: their bytes go first, so that the index can say that they are gone.

The index needs room to be opened and to be changed, also for a change that frees some. So what a removal would give
back anyway is given back before it: the holes of free slots, and of the records that are to go. Whoever reads one of
those meanwhile finds it damaged, never wrong.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from kvist.ids import RecordId
from kvist.tier.disk import admin
from kvist.tier.disk.folder import Folder, slab_name
from kvist.tier.disk.get import Row, find
from kvist.tier.disk.health import NO_ROOM
from kvist.tier.disk.index import BUSY_S, Index, alone, is_busy, is_full, is_io
from kvist.tier.disk.io import Io
from kvist.tier.disk.places import runs
from kvist.tier.disk.scan import Ground

LEAST_BYTES: Final = 1 << 17
"""With less than this free, opening an index fails in ways that do not say why."""


@dataclass(frozen=True, slots=True)
class Gone:
    """Which records are to go: by id, all of a tenant, of an origin or of both, or ``everything``."""

    ids: Sequence[RecordId] = ()
    tenant: str | None = None
    origin: bytes | None = None
    everything: bool = False

    def delete(self, c: sqlite3.Connection, ground: Ground) -> int:
        """Take them out of the index; says how many there were."""
        if not self.everything:
            return admin.delete(c, ground, self.ids, self.tenant, self.origin)
        origins = c.execute("select distinct origin from record").fetchall()
        return sum(admin.delete(c, ground, (), None, origin) for (origin,) in origins)

    def rows(self, c: sqlite3.Connection) -> list[Row]:
        """Those of them that can be read."""
        rows = list(find(c, self.ids).values())
        if self.everything or self.tenant is not None or self.origin is not None:
            rows += [row for row, _, _ in admin.listed(c, self.origin, self.tenant)]
        return sorted(rows, key=lambda row: row.place)


def wants_room(error: BaseException, folder: Folder, io: Io) -> bool:
    """Whether something failed because the filesystem is full. (SQLite does not always say so.)"""
    if isinstance(error, sqlite3.Error):
        try:
            return is_full(error) or (is_io(error) and io.free_bytes(folder.fd) < LEAST_BYTES)
        except OSError:
            return False
    return isinstance(error, OSError) and error.errno in NO_ROOM


def free_up(c: sqlite3.Connection, ground: Ground, gone: Gone) -> None:
    """Give back what a removal would: first without a word in the index. Raises ``OSError`` and ``sqlite3.Error``."""
    for name in ground.folder.put_aside():
        ground.io.unlink(name, ground.folder.fd)
    rows = [row for row in gone.rows(c) if row.makes_sense]
    sizes = {row.place: row.slot_bytes for row in rows}
    for first, count in runs(row.place for row in rows):
        if ground.folder.is_file(slab_name(sizes[first], first.slab)):
            ground.slabs.punch(first, sizes[first], count)
    with suppress(FileNotFoundError):  # a slab that has gone takes no room
        ground.places.wipe(c)
        ground.places.give_back(c, 1 << 62)


def free_up_unopened(ground: Ground, gone: Gone, *, wal_pages: int) -> None:
    """The same where the index cannot be opened as usual. The gate is held. Raises ``FAULTS``."""
    try:
        with _as_far_as_it_goes(ground), alone(ground.folder) as c:
            free_up(c, ground, gone)
            ground.io.commit(c)
    except sqlite3.Error as error:
        if not is_busy(error):
            raise
        # Others have it open: then what they share it with is there already.
        index = Index(ground.folder, ground.io, wal_pages=wal_pages)
        try:
            with _as_far_as_it_goes(ground), index.write(BUSY_S) as c:
                free_up(c, ground, gone)
        finally:
            index.close()


@contextmanager
def _as_far_as_it_goes(ground: Ground) -> Iterator[None]:
    """Whether there is room now shows when the index is opened again."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        if not wants_room(error, ground.folder, ground.io):
            raise
