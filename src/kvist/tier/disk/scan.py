"""Making index and slabs agree: after a crash, after the index was lost, after files were cut or taken away."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from kvist.tier.disk.folder import Folder, slab_name
from kvist.tier.disk.get import BAD_VALUE
from kvist.tier.disk.health import LOG
from kvist.tier.disk.index import BUSY_S, READY, Index
from kvist.tier.disk.io import Io
from kvist.tier.disk.owner import Owner
from kvist.tier.disk.places import Places
from kvist.tier.disk.reclaim import evict, next_tick, reclaim
from kvist.tier.disk.slab import PAGE, Arena, Place, Slabs, padded
from kvist.tier.envelope import MAX_HEADER_BYTES, Damaged, Foreign, Header, read_header

_SIZE_AT: Final = slice(12, 16)
"""Where a header says how long it is."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Records that the index knew and whose slab was removed (or replaced), or ``cut`` shorter."""

    file: str
    records: int
    cut: bool

    def __str__(self) -> str:
        what = "is cut short" if self.cut else "is gone"
        return f"{self.file} {what}, and with it {self.records:,} record{'s' * (self.records != 1)}"


@dataclass(frozen=True, slots=True)
class Ground:
    """What the parts of an open tier share. ``lost``: what was found to have gone since it was opened."""

    folder: Folder
    io: Io
    slabs: Slabs
    places: Places
    owner: Owner
    lost: list[Lost] = field(default_factory=list)


def headers(slabs: Slabs, slab: int, slot_bytes: int, slots: int) -> Iterator[tuple[int, Header]]:
    """The slots of a slab that begin with a sound header that belongs there. Raises ``OSError``."""
    arena = Arena()
    for slot in range(slots):
        view = arena.take(PAGE)
        slabs.read(Place(slab, slot), slot_bytes, [view])
        size = int.from_bytes(view[_SIZE_AT], "little")
        if PAGE < size <= min(MAX_HEADER_BYTES, slot_bytes):
            view = arena.take(padded(size))
            slabs.read(Place(slab, slot), slot_bytes, [view])
        try:
            header = read_header(view)
        except (Foreign, Damaged, *BAD_VALUE):
            continue
        if padded(header.header_bytes) + padded(header.stored_bytes) == slot_bytes:
            yield slot, header


def adopt(c: sqlite3.Connection, ground: Ground, slab: int, slot_bytes: int) -> int:
    """Take a slab that the index does not know; says how many records it has. Their order of use is lost.

    Only headers are read: a record whose bytes were torn is found out when it is read. Raises ``OSError``.
    """
    slots = ground.slabs.slots(slab, slot_bytes)
    c.execute("insert into slab(id, slot_bytes, slots) values(?, ?, ?)", (slab, slot_bytes, slots))
    tick, taken = next_tick(c), set()
    for slot, header in headers(ground.slabs, slab, slot_bytes, slots):
        label = header.label
        done = c.execute(
            "insert or ignore into record values(?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            (
                label.id, label.parent, label.origin, label.tenant.encode(), label.depth, padded(header.header_bytes),
                header.data_bytes, slab, slot, READY, None, tick, tick, 0,
            ),
        )  # fmt: skip
        if done.rowcount == 1:
            taken.add(slot)
    ground.places.let_go(c, (Place(slab, slot) for slot in range(slots) if slot not in taken))
    return len(taken)


def agree(c: sqlite3.Connection, ground: Ground) -> list[Lost]:
    """Make the index say what the files are: no slot lost, none twice, every count exact. Raises ``OSError``.

    Records whose bytes are in no file any more count as damaged. Says which those are, for when this is committed.
    """
    files, lost = ground.folder.slabs(), []
    for slab, slot_bytes, slots in c.execute("select id, slot_bytes, slots from slab").fetchall():
        name = slab_name(slot_bytes, slab)
        is_there = files.get(slab) == (name, slot_bytes)
        there = ground.slabs.slots(slab, slot_bytes) if is_there else 0
        if gone := _ready_from(c, slab, there):
            lost.append(Lost(name, gone, cut=is_there))
        if not is_there:
            c.execute("delete from slab where id = ?", (slab,))
            continue
        if there > slots or ground.folder.sizes((name,)) % slot_bytes:
            ground.slabs.truncate(slab, slot_bytes, min(there, slots))
        if there < slots:
            c.execute("update slab set slots = ? where id = ?", (there, slab))
    for table in ("record", "free"):
        c.execute(
            f"delete from {table} where not exists"
            f" (select 1 from slab where id = {table}.slab and {table}.slot between 0 and slots - 1)"
        )
    c.execute(
        "delete from free where exists (select 1 from record where record.slab = free.slab and record.slot = free.slot)"
    )
    _count(c)
    uncounted = "select id, slots from slab where slots != used + (select count(*) from free where free.slab = slab.id)"
    for slab, slots in c.execute(uncounted).fetchall():
        known = {s for (s,) in c.execute("select slot from record where slab = ?1 union all"
                                         " select slot from free where slab = ?1", (slab,))}  # fmt: skip
        ground.places.let_go(c, (Place(slab, s) for s in range(slots) if s not in known))
    c.execute("update state set damaged = damaged + ?", (sum(one.records for one in lost),))
    return lost


def _ready_from(c: sqlite3.Connection, slab: int, slot: int) -> int:
    """How many records that can be read lie in a slab from a slot on."""
    ask = "select count(*) from record where slab = ? and slot >= ? and state = ?"
    return int(c.execute(ask, (slab, slot, READY)).fetchone()[0])


def told(lost: list[Lost], ground: Ground) -> None:
    """Say what has gone, a line for each file, and remember it."""
    for one in lost:
        LOG.warning("disk tier %s: %s", ground.folder.path, one)
    ground.lost.extend(lost)


def _count(c: sqlite3.Connection) -> None:
    c.execute(
        "update slab set used = (select count(*) from record where record.slab = slab.id),"
        f" ready = (select count(*) from record where record.slab = slab.id and state = {READY}),"
        " punched = (select count(*) from free where free.slab = slab.id and held = 0)"
    )


def settle(index: Index, ground: Ground) -> None:
    """What is done whenever a folder is opened. Raises ``OSError``, ``sqlite3.Error``, ``Busy``."""
    with index.write(BUSY_S) as c:
        lost = agree(c, ground)
        reclaim(c, ground.places, ground.owner)
        ground.places.wipe(c)
        known = {slab for (slab,) in c.execute("select id from slab")}
    told(lost, ground)
    for slab, (name, slot_bytes) in sorted(ground.folder.slabs().items()):
        if slab in known or slot_bytes % PAGE or not slot_bytes:
            continue
        try:
            with index.write(BUSY_S) as c:
                records = adopt(c, ground, slab, slot_bytes)
        except OSError as error:
            LOG.warning("disk tier %s: %s cannot be read (%s)", ground.folder.path, name, error)
            continue
        if records:
            LOG.warning("disk tier %s: found %d records in %s again", ground.folder.path, records, name)
    shrink(index, ground.places)
    for token in ground.folder.owners():
        ground.owner.is_dead(token.encode())


def shrink(index: Index, places: Places) -> None:
    """Give back what is above the capacity: free slots first, then the records used longest ago."""
    for _ in range(4):
        with index.write(BUSY_S) as c:
            need = -places.room(c)
            if need <= 0 or need <= places.give_back(c, need):
                return
            evict(c, places, slots=-places.room(c), slot_bytes=1, before=next_tick(c))


def remove_empty(c: sqlite3.Connection, ground: Ground) -> int:
    """Remove slabs without records and cut free slots off the ends of others. Says how many bytes came free."""
    before = ground.places.held_bytes(c)
    for slab, slot_bytes, slots in c.execute("select id, slot_bytes, slots from slab").fetchall():
        (last,) = c.execute("select max(slot) from record where slab = ?", (slab,)).fetchone()
        keep = 0 if last is None else last + 1
        if keep == slots and slots:
            continue
        c.execute("delete from free where slab = ? and slot >= ?", (slab, keep))
        if keep:
            c.execute("update slab set slots = ? where id = ?", (keep, slab))
            ground.slabs.truncate(slab, slot_bytes, keep)
        else:
            c.execute("delete from slab where id = ?", (slab,))
            ground.slabs.remove(slab, slot_bytes)
    ground.places.give_back(c, 1 << 62)
    return before - ground.places.held_bytes(c)
