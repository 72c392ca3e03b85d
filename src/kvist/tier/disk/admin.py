"""What people ask of the disk tier: lists, sums, a check of everything, deleting, tidying."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvist.ids import RecordId
from kvist.tier.base import Entry, Got
from kvist.tier.disk.folder import slab_name
from kvist.tier.disk.get import BAD_VALUE, Row
from kvist.tier.disk.index import DOOMED, READY
from kvist.tier.disk.reclaim import marks, reclaim
from kvist.tier.disk.scan import Ground, Lost, agree, remove_empty, told
from kvist.tier.disk.slab import Arena, Place, Slabs
from kvist.tier.envelope import Damaged, Foreign, read_header

_COLUMNS: Final = "record.id, slab, slot, slot_bytes, head_bytes, data_bytes, origin, stamp"
CHECK_BYTES: Final = 32 << 20
ASK_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class Report:
    """What ``verify`` found. ``missing``: records that went while it ran. ``damaged_in``: how many by slab file.

    ``lost`` are not among ``records``: what had gone with its slab when the tier was opened, or since.
    """

    records: int
    bytes: int
    damaged: int
    missing: int
    unreadable: int
    damaged_in: Mapping[str, int]
    lost: Sequence[Lost]


def _row(values: tuple[object, ...]) -> Row:
    id, slab, slot, *rest = values
    return Row(RecordId(id), Place(slab, slot), *rest)  # type: ignore[arg-type]


def _where(origin: bytes | None, tenant: str | None) -> tuple[str, list[bytes]]:
    terms, values = ["1"], []
    if origin is not None:
        terms.append("origin = ?")
        values.append(origin)
    if tenant is not None:
        terms.append("tenant = ?")
        values.append(tenant.encode())
    return " and ".join(terms), values


def listed(c: sqlite3.Connection, origin: bytes | None, tenant: str | None) -> list[tuple[Row, int, int]]:
    """Rows of records with their last use and hits, shallow before deep."""
    where, values = _where(origin, tenant)
    rows = c.execute(
        f"select {_COLUMNS}, record.used, hits from record join slab on slab.id = slab"
        f" where state = {READY} and {where} order by depth, record.used",
        values,
    )
    return [(_row(values[:8]), values[8], values[9]) for values in rows]


def entry(slabs: Slabs, row: Row, used: int, hits: int) -> Entry | None:
    """A record's line: its label is read from its slot. None: it is not there any more, or cannot be read."""
    if not row.makes_sense:
        return None
    head = Arena().take(row.head_bytes)
    try:
        slabs.read(row.place, row.slot_bytes, [head])
        label = read_header(head).label
    except (Damaged, Foreign, OSError, *BAD_VALUE):
        return None
    return Entry(label, row.data_bytes, row.slot_bytes, used, hits) if label.id == row.id else None


def strange(c: sqlite3.Connection, origin: bytes) -> bool:
    """Whether there are records, and none of them of this origin."""
    of_it = "select 1 from record where state = ? and origin = ?"
    any_there = c.execute("select 1 from record where state = ? limit 1", (READY,)).fetchone()
    return any_there is not None and c.execute(f"{of_it} limit 1", (READY, origin)).fetchone() is None


def totals(c: sqlite3.Connection) -> tuple[int, int, int, int]:
    """Records, bytes of slots in use, evicted and damaged records."""
    records, used = c.execute("select total(ready), total(used * slot_bytes) from slab").fetchone()
    evicted, damaged = c.execute("select evicted, damaged from state").fetchone()
    return int(records), int(used), int(evicted), int(damaged)


def drop_damaged(c: sqlite3.Connection, ground: Ground, rows: Iterable[Row]) -> int:
    """Drop records that were found wrong; says how many were still there."""
    dropped = 0
    for row in rows:
        gone = c.execute(
            "delete from record where id = ? and stamp = ? and state = ?", (row.id, row.stamp, READY)
        ).rowcount
        if gone:
            ground.places.let_go(c, [row.place])
            dropped += 1
    c.execute("update state set damaged = damaged + ?", (dropped,))
    return dropped


def delete(
    c: sqlite3.Connection, ground: Ground, ids: Sequence[RecordId], tenant: str | None, origin: bytes | None
) -> int:
    """Take records out of the index; their slots wait to be wiped.

    What evicted records of a tenant or origin left in free slots cannot be told apart: all free slots are wiped then.
    """
    rows: list[tuple[RecordId, int, int, int]] = []
    if tenant is not None or origin is not None:
        where, values = _where(origin, tenant)
        rows += c.execute(f"select id, slab, slot, state from record where {where}", values).fetchall()
    for at in range(0, len(ids), ASK_AT_ONCE):
        part = ids[at : at + ASK_AT_ONCE]
        rows += c.execute(f"select id, slab, slot, state from record where id in ({marks(len(part))})", part).fetchall()
    found = {id: (Place(slab, slot), state) for id, slab, slot, state in rows}
    for id, (place, state) in found.items():
        if state == READY:
            c.execute("delete from record where id = ?", (id,))
            ground.places.let_go(c, [place], wipe=True)
        else:
            c.execute("update record set state = ? where id = ?", (DOOMED, id))
    if tenant is not None or origin is not None:
        c.execute("update free set wipe = 1 where held = 1")
    return len(found)


def verify(
    rows: Sequence[Row],
    check: Callable[[Sequence[Row]], Sequence[Got]],
    on_progress: Callable[[int, int], None],
    lost: Sequence[Lost],
) -> Report:
    """Check rows, some at a time."""
    total, done = sum(r.slot_bytes for r in rows), 0
    count: dict[Got, int] = {}
    damaged_in: dict[str, int] = {}
    for part in _parts(rows):
        for row, got in zip(part, check(part), strict=True):
            count[got] = count.get(got, 0) + 1
            if got == "damaged":
                name = slab_name(row.slot_bytes, row.place.slab)
                damaged_in[name] = damaged_in.get(name, 0) + 1
        done += sum(r.slot_bytes for r in part)
        on_progress(done, total)
    return Report(
        len(rows),
        done,
        count.get("damaged", 0),
        count.get("missing", 0),
        count.get("error", 0) + count.get("foreign", 0),
        damaged_in,
        tuple(lost),
    )


def _parts(rows: Sequence[Row]) -> Iterator[list[Row]]:
    part: list[Row] = []
    for row in rows:
        part.append(row)
        if sum(r.slot_bytes for r in part) >= CHECK_BYTES or len(part) >= ASK_AT_ONCE:
            yield part
            part = []
    if part:
        yield part


def collect(c: sqlite3.Connection, ground: Ground, active: Sequence[RecordId]) -> int:
    """Orphans, wipes, empty slabs, holes. Says how many bytes of the device came free.

    Ends the transaction itself, and leaves an empty one: what has gone is told once it is on record, so only once.
    """
    lost = agree(c, ground)
    reclaim(c, ground.places, ground.owner, active)
    ground.places.wipe(c)
    for name in ground.folder.put_aside():
        ground.io.unlink(name, ground.folder.fd)
    freed = remove_empty(c, ground)
    ground.io.commit(c)
    told(lost, ground)
    c.execute("begin")
    return freed
