"""Which record goes first, what a use protects, and what dead processes left. All inside a transaction.

Records go in the order of their last use, deeper before shallower, and never while a record after them in their chain
is there: a record found at the front that has children is moved to the youngest child's time, which is what a use of
them meant for it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from kvist.ids import RecordId
from kvist.tier.disk.index import DOOMED, READY
from kvist.tier.disk.owner import Owner
from kvist.tier.disk.places import Places
from kvist.tier.disk.slab import Place


def next_tick(c: sqlite3.Connection) -> int:
    """The order of use counts on: no clock, and it goes on after a restart."""
    return int(c.execute("update state set clock = clock + 1 returning clock").fetchone()[0])


def marks(n: int) -> str:
    """``n`` places for values in a statement."""
    return ",".join("?" * n)


def use_ancestors(c: sqlite3.Connection, ids: Sequence[RecordId], tick: int) -> None:
    """Count records and all before them in their chains as used at ``tick``."""
    if ids:
        c.execute(
            "with recursive up(id, parent) as ("
            f" select id, parent from record where id in ({marks(len(ids))})"
            " union select r.id, r.parent from record r join up on r.id = up.parent)"
            " update record set used = ? where used < ? and id in (select id from up)",
            (*ids, tick, tick),
        )


def evict(
    c: sqlite3.Connection, places: Places, *, slots: int, slot_bytes: int, before: int, other_sizes: bool = True
) -> tuple[int, int]:
    """Drop records last used before ``before`` until ``slots`` slots of a size are free, or as many bytes of others.

    Says how many slots of that size came free, and how many bytes of other sizes (whose room is given back in a later
    transaction: a reader must never find a hole where the index still says a record is).
    """
    freed, other_bytes, gone = 0, 0, 0
    while (freed + other_bytes // slot_bytes) < slots:
        row = c.execute(
            "select record.id, slab, slot, record.used, slab.slot_bytes"
            " from record indexed by record_used join slab on slab.id = slab"
            " where record.used < ? and state = ? order by record.used, depth desc limit 1",
            (before, READY),
        ).fetchone()
        if row is None:
            break
        id, slab, slot, used, size = row
        (child_used,) = c.execute("select max(used) from record where parent = ?", (id,)).fetchone()
        if child_used is not None:
            # A child of its own age that was not first in line cannot go now: neither can this one.
            c.execute("update record set used = ? where id = ?", (child_used if child_used > used else before, id))
            continue
        c.execute("delete from record where id = ?", (id,))
        places.let_go(c, [Place(slab, slot)])
        gone += 1
        if size == slot_bytes:
            freed += 1
        else:
            other_bytes += size
    if gone:
        c.execute("update state set evicted = evicted + ?", (gone,))
    return freed, other_bytes


def drop(c: sqlite3.Connection, places: Places, ids: Iterable[RecordId], owner: bytes) -> None:
    """Take back an owner's own unfinished records. Slots of those deleted meanwhile are to be wiped."""
    for id in ids:
        row = c.execute(
            "delete from record where id = ? and owner = ? returning slab, slot, state", (id, owner)
        ).fetchone()
        if row:
            places.let_go(c, [Place(row[0], row[1])], wipe=row[2] == DOOMED)


def reclaim(c: sqlite3.Connection, places: Places, owner: Owner, active: Iterable[RecordId] = ()) -> int:
    """Free the slots that dead processes were writing to, and our own that no call is busy with."""
    freed, busy = 0, set(active)
    for (token,) in c.execute("select distinct owner from record where owner is not null").fetchall():
        mine = bytes(token) == owner.token
        if not mine and not owner.is_dead(bytes(token)):
            continue
        ids = [RecordId(i) for (i,) in c.execute("select id from record where owner = ?", (token,)).fetchall()]
        ids = [i for i in ids if not (mine and i in busy)]
        drop(c, places, ids, token)
        freed += len(ids)
    return freed
