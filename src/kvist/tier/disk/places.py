"""Which slots there are, which are free, and how much more room the folder may take. All inside a transaction.

A slot is *used* (a record's), *free and held* (it has room on the device) or *free and punched* (its room was given
back). What the slabs hold and what the index takes, or will take with that many slots, never exceeds the capacity.
Nor may the slabs take what the index will yet need of the filesystem: without an index no record can be published.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Final

from kvist.tier.disk.folder import INDEX_PARTS, RESERVE_HINT, Folder, slab_name
from kvist.tier.disk.health import NO_ROOM
from kvist.tier.disk.io import Io
from kvist.tier.disk.slab import Place, Slabs
from kvist.units import format_bytes

ROW_BYTES: Final = 640
"""What a slot costs in the index: its row, four more trees, half-filled pages."""

SLAB_BYTES: Final = 4 << 30
STEP_BYTES: Final = 64 << 20
STEP_SLOTS: Final = 256
LEAST_CAPACITY_BYTES: Final = 1 << 20


def wal_pages(capacity_bytes: int) -> int:
    """After how many pages the index's log is folded back: bounded by what there is room for, 4 MB at most."""
    return max(32, min(1000, capacity_bytes // (64 * 4096)))


def least_capacity(slot_bytes: int) -> int:
    """With less than this a tier keeps not one record that takes so much: the index needs room too."""
    least = LEAST_CAPACITY_BYTES
    while (more := slot_bytes + ROW_BYTES + _base_bytes(wal_pages(least))) > least:
        least = more
    return least


def _base_bytes(log_pages: int) -> int:
    """What an index without records takes."""
    return (24 + 2 * log_pages) * 4096


def runs(places: Iterable[Place], longest: int = 1 << 30) -> Iterator[tuple[Place, int]]:
    """Neighbours together: (first place, how many)."""
    first, n = None, 0
    for place in places:
        if first is not None and place == Place(first.slab, first.slot + n) and n < longest:
            n += 1
            continue
        if first is not None:
            yield first, n
        first, n = place, 1
    if first is not None:
        yield first, n


class Places:
    """The ledger of slots. Everything takes the transaction's connection."""

    def __init__(
        self, slabs: Slabs, folder: Folder, io: Io, *, capacity_bytes: int, reserve_bytes: int, log_pages: int
    ) -> None:
        """``log_pages``: after so many the index's log is folded back."""
        self._slabs, self._folder, self._io = slabs, folder, io
        self._capacity_bytes, self._reserve_bytes = capacity_bytes, reserve_bytes
        self._base_bytes = _base_bytes(log_pages)
        self.short_of_space = False
        """Whether the filesystem, not the capacity, kept the slabs from growing last time."""

    def held_bytes(self, c: sqlite3.Connection) -> int:
        """What the slabs take of the device."""
        return int(c.execute("select total(slot_bytes * (slots - punched)) from slab").fetchone()[0])

    def room(self, c: sqlite3.Connection) -> int:
        """How many bytes the slabs may still grow by; negative: they are too large."""
        now, most = self._index_bytes(c)
        return self._capacity_bytes - self.held_bytes(c) - max(now, most)

    def too_small(self, slot_bytes: int) -> str:
        """Why the capacity is too small for a single record that takes so much; empty: it is not."""
        least = least_capacity(slot_bytes)
        if self._capacity_bytes >= least:
            return ""
        size, record = format_bytes(self._capacity_bytes), format_bytes(slot_bytes)
        what = f"its size of {size} has no room for a record of {record} beside the index, so it keeps nothing"
        return f"{what}: give it {least:,} bytes at least"

    def _index_bytes(self, c: sqlite3.Connection) -> tuple[int, int]:
        """What the index takes, and what it will take with the slots that there are."""
        slots = int(c.execute("select total(slots) from slab").fetchone()[0])
        return self._folder.sizes((*INDEX_PARTS, *self._folder.damaged())), self._base_bytes + ROW_BYTES * slots

    def _spare(self, c: sqlite3.Connection, slot_bytes: int) -> int:
        """How many more slots the filesystem has room for: the reserve and the index's growth are left to it."""
        now, most = self._index_bytes(c)
        free = self._io.free_bytes(self._folder.fd) - self._reserve_bytes - max(0, most - now)
        return max(0, free) // (slot_bytes + ROW_BYTES)

    @property
    def shortage(self) -> str:
        """What bounds the slabs where the filesystem does, and what a person can change."""
        if not self._reserve_bytes:
            return "the filesystem has no more space to spare"
        reserve = format_bytes(self._reserve_bytes)
        return f"the filesystem has no more space to spare, for {reserve} of it stay free: {RESERVE_HINT}"

    def free(self, c: sqlite3.Connection, slot_bytes: int, n: int, *, held: int = 1) -> list[Place]:
        """Up to ``n`` free slots of a size, neighbours first to last."""
        found: list[Place] = []
        for (slab,) in c.execute(
            "select id from slab where slot_bytes = ? and slots > used order by id", (slot_bytes,)
        ).fetchall():
            rows = c.execute(
                "select slot from free where slab = ? and held = ? and wipe = 0 order by slot limit ?",
                (slab, held, n - len(found)),
            )
            found += [Place(slab, slot) for (slot,) in rows]
            if len(found) >= n:
                break
        return found

    def let_go(self, c: sqlite3.Connection, places: Iterable[Place], *, wipe: bool = False) -> None:
        """Slots whose rows are gone are free (those that a slab really has)."""
        c.executemany(
            "insert or ignore into free select ?1, ?2, 1, ?3"
            " where exists (select 1 from slab where id = ?1 and slots > ?2)",
            [(p.slab, p.slot, int(wipe)) for p in places],
        )

    def grow(self, c: sqlite3.Connection, slot_bytes: int, n: int) -> None:
        """Have ``n`` more held free slots of a size, or as many as may be; a step at a time. Raises ``OSError``."""
        allowed = max(0, self.room(c)) // (slot_bytes + ROW_BYTES)
        spare = self._spare(c, slot_bytes)
        self.short_of_space = spare < min(n, allowed)
        allowed = min(allowed, spare)
        if allowed <= 0:
            return
        try:
            held = self._hold_again(c, slot_bytes, min(n, allowed))
            n -= held
            allowed = min(allowed - held, max(0, self.room(c)) // (slot_bytes + ROW_BYTES))
            if n > 0 and allowed > 0:
                step = min(max(n, min(STEP_SLOTS, STEP_BYTES // slot_bytes)), allowed)
                self._extend(c, slot_bytes, step)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self.short_of_space = True

    def _hold_again(self, c: sqlite3.Connection, slot_bytes: int, n: int) -> int:
        places = self.free(c, slot_bytes, n, held=0)
        for first, count in runs(places):
            try:
                self._slabs.grow(first.slab, slot_bytes, first.slot, count)
            except OSError:
                self._slabs.punch(first, slot_bytes, count)
                raise
            self._mark(c, first, count, held=1)
        return len(places)

    def _extend(self, c: sqlite3.Connection, slot_bytes: int, n: int) -> None:
        most = max(1, SLAB_BYTES // slot_bytes)
        row = c.execute(
            "select id, slots from slab where slot_bytes = ? and slots < ? order by id desc limit 1", (slot_bytes, most)
        ).fetchone()
        slab, slots = row or (self._new_slab(c, slot_bytes), 0)
        n = min(n, most - slots)
        try:
            self._slabs.grow(slab, slot_bytes, slots, n)
            if not slots:
                self._io.fsync(self._folder.fd)
        except OSError:
            # A range may have been had in part: nobody has a slot there.
            self._slabs.truncate(slab, slot_bytes, slots)
            raise
        c.execute("update slab set slots = slots + ? where id = ?", (n, slab))
        self.let_go(c, (Place(slab, slots + i) for i in range(n)))

    def _new_slab(self, c: sqlite3.Connection, slot_bytes: int) -> int:
        while True:
            slab = c.execute("insert into slab(slot_bytes, slots) values(?, 0) returning id", (slot_bytes,)).fetchone()[
                0
            ]
            if not self._folder.inode(slab_name(slot_bytes, slab)):
                return int(slab)
            c.execute("delete from slab where id = ?", (slab,))  # something else has this name: the next number

    def give_back(self, c: sqlite3.Connection, need_bytes: int, *, keep_slot_bytes: int = 0) -> int:
        """Punch held free slots (not of the size to keep) until ``need_bytes`` are had. Says how many were."""
        given = 0
        sizes = c.execute(
            "select id, slot_bytes from slab where slots > used + punched and slot_bytes != ? order by id desc",
            (keep_slot_bytes,),
        ).fetchall()
        for slab, slot_bytes in sizes:
            want = -(-(need_bytes - given) // slot_bytes)
            if want <= 0:
                break
            rows = c.execute(
                "select slot from free where slab = ? and held = 1 and wipe = 0 order by slot desc limit ?",
                (slab, want),
            ).fetchall()
            for first, count in runs(sorted(Place(slab, slot) for (slot,) in rows)):
                if not self._slabs.punch(first, slot_bytes, count):
                    return given
                self._mark(c, first, count, held=0)
                given += count * slot_bytes
        return given

    def _mark(self, c: sqlite3.Connection, first: Place, count: int, *, held: int) -> None:
        c.execute(
            "update free set held = ?, wipe = 0 where slab = ? and slot >= ? and slot < ?",
            (held, first.slab, first.slot, first.slot + count),
        )

    def wipe(self, c: sqlite3.Connection) -> int:
        """Destroy the bytes of slots that wait for it. Raises ``OSError``; what was not done waits on."""
        rows = c.execute(
            "select free.slab, free.slot, slab.slot_bytes from free join slab on slab.id = free.slab"
            " where free.wipe = 1 order by free.slab, free.slot"
        ).fetchall()
        sizes = {slab: slot_bytes for slab, _, slot_bytes in rows}
        for first, count in runs(Place(slab, slot) for slab, slot, _ in rows):
            slot_bytes = sizes[first.slab]
            punched = self._slabs.punch(first, slot_bytes, count)
            for i in range(0 if punched else count):
                self._slabs.blank(Place(first.slab, first.slot + i), slot_bytes)
            self._mark(c, first, count, held=int(not punched))
        for slab, slot_bytes in sizes.items():
            self._slabs.sync(slab, slot_bytes)
        return len(rows)
