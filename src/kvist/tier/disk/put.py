"""Writing records: reserve slots in one short transaction, write and wait for the device, publish in another.

Between the two transactions nobody waits for us, and a reader does not see the records. A record whose ancestors are
neither here nor in the same call takes free room only: it is of no use until they come. Ancestors of what is being
written are never evicted for it, so a chain longer than the capacity keeps its beginning and is answered ``full``.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from kvist.ids import RECORD_ID_BYTES, RecordId
from kvist.tier.base import Label, Put, Record
from kvist.tier.disk.index import DOOMED, READY, WRITING, Index
from kvist.tier.disk.owner import Owner
from kvist.tier.disk.places import ROW_BYTES, Places, runs
from kvist.tier.disk.reclaim import drop, evict, marks, next_tick, reclaim, use_ancestors
from kvist.tier.disk.slab import Arena, Place, Slabs, is_aligned, padded
from kvist.tier.disk.touches import Touches
from kvist.tier.envelope import MAX_HEADER_BYTES, MAX_TENANT_BYTES, Header, digest_of, header_bytes, write_header

RUN_BYTES: Final = 2 << 20
WRITE_THREADS: Final = 3
ROUNDS: Final = 4


@dataclass(slots=True, eq=False)
class Job:
    """One record of a call. ``answer`` is None while it is not known."""

    record: Record
    head_bytes: int
    slot_bytes: int
    answer: Put | None = None
    place: Place | None = None
    claimed: bool = False

    @property
    def id(self) -> RecordId:
        """Its id."""
        return self.record.label.id


@dataclass(frozen=True, slots=True)
class Pending:
    """A batch whose slots are reserved (in ``index``) and being written to."""

    index: Index
    jobs: list[Job]
    writes: list[Future[None]]


def job(record: Record) -> Job:
    """Where a record would need which slot; the answer is ``error`` for one that cannot be written down."""
    label = record.label
    sound = (
        len(label.id) == RECORD_ID_BYTES
        and len(label.parent) in (0, RECORD_ID_BYTES)
        and len(label.origin) == 16
        and 0 <= label.depth < 1 << 32
        and len(label.tenant.encode()) <= MAX_TENANT_BYTES
        and header_bytes(label) <= MAX_HEADER_BYTES
        and record.data.contiguous
        and record.data.itemsize == 1
    )
    head = padded(header_bytes(label)) if sound else 0
    return Job(record, head, head + padded(record.data.nbytes), None if sound else "error")


class Writer:
    """Puts batches of records. Several threads may use it; each works on records of its own."""

    def __init__(self, slabs: Slabs, places: Places, owner: Owner, touches: Touches, *, sync: bool) -> None:
        self._slabs, self._places, self._owner, self._touches, self._sync = slabs, places, owner, touches, sync
        self._arena = Arena()
        self._pool = ThreadPoolExecutor(WRITE_THREADS, thread_name_prefix="kvist-disk-write")
        self._lock = threading.Lock()
        self._active: set[RecordId] = set()

    def active(self) -> tuple[RecordId, ...]:
        """Records that a call of this process is writing now."""
        with self._lock:
            return tuple(self._active)

    def begin(self, index: Index, jobs: Sequence[Job], failed: set[RecordId], timeout_s: float) -> Pending:
        """Reserve slots for jobs and begin to write; answers those that need none, or get none.

        ``failed``: records of the same call that were not stored; what descends from them is not either. Raises
        ``OSError``, ``sqlite3.Error`` or ``Busy`` with nothing half done. What was begun must be finished.
        """
        try:
            self._reserve(index, jobs, failed, timeout_s)
        except BaseException:
            self._rest(jobs)
            raise
        placed = sorted((j for j in jobs if j.place), key=lambda j: j.place or Place(0, 0))
        return Pending(index, placed, [self._pool.submit(self._write_run, g) for g in _groups(placed)])

    def finish(self, pending: Pending, failed: set[RecordId], timeout_s: float) -> None:
        """Wait for the writes and the device, and publish. Raises as ``begin`` does; nobody reads the data then."""
        jobs = pending.jobs
        try:
            errors = [e for w in pending.writes if (e := w.exception())]
            if errors:
                raise errors[0]
            if self._sync:
                for slab, slot_bytes in {(j.place.slab, j.slot_bytes) for j in jobs if j.place}:
                    self._slabs.sync(slab, slot_bytes)
            if jobs:
                self._publish(pending.index, jobs, failed, timeout_s)
        except BaseException:
            self._take_back(pending.index, jobs, timeout_s)
            raise
        finally:
            self._rest(jobs)

    def _rest(self, jobs: Sequence[Job]) -> None:
        with self._lock:
            self._active.difference_update(j.id for j in jobs if j.claimed)

    def _reserve(self, index: Index, jobs: Sequence[Job], failed: set[RecordId], timeout_s: float) -> None:
        for _ in range(ROUNDS):
            open_jobs = [j for j in jobs if j.answer is None and j.place is None]
            if not open_jobs:
                return
            placed: list[Job] = []
            taken = {}
            try:
                with index.write(timeout_s) as c:
                    taken = self._touches.write(c)
                    again = self._reserve_round(c, open_jobs, failed, placed)
            except BaseException:
                self._touches.restore(taken)
                for j in placed:
                    j.place = None
                self._take_back(index, [j for j in jobs if j.place], timeout_s)
                raise
            if not again:
                break
        for j in jobs:
            if j.answer is None and j.place is None:
                j.answer = "full"
                failed.add(j.id)

    def _reserve_round(self, c: sqlite3.Connection, jobs: list[Job], failed: set[RecordId], placed: list[Job]) -> bool:
        """Find slots for as many as may be. True: another round may find more."""
        self._places.wipe(c)
        tick = next_tick(c)
        known = self._answer_known(c, jobs, tick)
        rooted: set[RecordId] = set(known)
        for j in jobs:
            label = j.record.label
            if j.answer is None and (not label.depth or label.parent in rooted):
                rooted.add(j.id)
        again = False
        for may_evict in (True, False):
            for slot_bytes in dict.fromkeys(j.slot_bytes for j in jobs):
                of_size = [
                    j for j in jobs
                    if j.answer is None and j.slot_bytes == slot_bytes and (j.id in rooted) == may_evict
                ]  # fmt: skip
                if of_size:
                    again |= self._place(c, of_size, slot_bytes, tick, failed, placed, may_evict)
        return again

    def _answer_known(self, c: sqlite3.Connection, jobs: list[Job], tick: int) -> set[RecordId]:
        """Which ids (the jobs' and their parents') are in the index; answers the jobs that are."""
        if c.execute("select 1 from record where owner is not null limit 1").fetchone():
            reclaim(c, self._places, self._owner, self.active())
        ids = list({i for j in jobs for i in (j.id, j.record.label.parent) if i})
        rows = c.execute(f"select id, state, owner from record where id in ({marks(len(ids))})", ids).fetchall()
        states = {RecordId(id): (state, owner) for id, state, owner in rows}
        seen: set[RecordId] = set()
        for j in jobs:
            if j.id in seen:
                j.answer = "known"
            elif j.id in states:
                j.answer = "error" if states[j.id][0] == DOOMED else "known"
            seen.add(j.id)
        hits = [(tick, i) for i, (state, _) in states.items() if state == READY and i in seen]
        c.executemany("update record set used = max(used, ?) where id = ?", hits)
        return {i for i, (state, _) in states.items() if state != DOOMED}

    def _place(
        self, c: sqlite3.Connection, jobs: list[Job], slot_bytes: int, tick: int, failed: set[RecordId],
        placed: list[Job], may_evict: bool,
    ) -> bool:  # fmt: skip
        again = False
        n = len(jobs)
        found = self._places.free(c, slot_bytes, n)
        if len(found) < n:
            self._places.grow(c, slot_bytes, n - len(found))
            need = (n - len(found)) * (slot_bytes + ROW_BYTES) - max(0, self._places.room(c))
            if need > 0 and self._places.give_back(c, need, keep_slot_bytes=slot_bytes):
                self._places.grow(c, slot_bytes, n - len(found))
            found = self._places.free(c, slot_bytes, n)
        if len(found) < n and may_evict:
            use_ancestors(c, [j.record.label.parent for j in jobs if j.record.label.parent], tick)
            _, others = evict(c, self._places, slots=n - len(found), slot_bytes=slot_bytes, before=tick)
            found = self._places.free(c, slot_bytes, n)
            again = others > 0
        slots = iter(found)
        for j in jobs:
            if j.record.label.parent in failed:
                j.answer = "full"
                failed.add(j.id)
            elif place := next(slots, None):
                self._claim(c, j, place, tick)
                placed.append(j)
        return again

    def _claim(self, c: sqlite3.Connection, j: Job, place: Place, tick: int) -> None:
        label: Label = j.record.label
        c.execute("delete from free where slab = ? and slot = ?", (place.slab, place.slot))
        c.execute(
            f"insert into record values({marks(14)})",
            (
                label.id, label.parent, label.origin, label.tenant.encode(), label.depth, j.head_bytes,
                j.record.data.nbytes, place.slab, place.slot, WRITING, self._owner.token, tick, tick, 0,
            ),
        )  # fmt: skip
        j.place, j.claimed = place, True
        with self._lock:
            self._active.add(j.id)

    def _write_run(self, group: list[Job]) -> None:
        """One system call for neighbours."""
        straight = [is_aligned(j.record.data) for j in group]
        sizes = [j.head_bytes if s else j.slot_bytes for j, s in zip(group, straight, strict=True)]
        memory, at = self._arena.take(sum(sizes)), 0
        parts: list[memoryview] = []
        for j, s, size in zip(group, straight, sizes, strict=True):
            data = j.record.data.cast("B")
            header = Header(j.record.label, len(data), len(data), digest_of(j.id, data))
            memory[at : at + j.head_bytes] = write_header(header).ljust(j.head_bytes, b"\0")
            if not s:
                pad = j.slot_bytes - j.head_bytes - len(data)
                memory[at + j.head_bytes : at + size - pad] = data
                memory[at + size - pad : at + size] = bytes(pad)
            parts += [memory[at : at + size], data] if s and len(data) else [memory[at : at + size]]
            at += size
        first = group[0].place
        assert first is not None
        self._slabs.write(first, group[0].slot_bytes, parts)

    def _publish(self, index: Index, jobs: list[Job], failed: set[RecordId], timeout_s: float) -> None:
        answers: list[Put] = []
        jobs = sorted(jobs, key=lambda j: j.record.label.depth)
        with index.write(max(timeout_s, 1.0)) as c:
            for j in jobs:
                if j.record.label.parent in failed:
                    answers.append("full")
                else:
                    done = c.execute(
                        "update record set state = ?, owner = null where id = ? and owner = ? and state = ?",
                        (READY, j.id, self._owner.token, WRITING),
                    )
                    answers.append("stored" if done.rowcount == 1 else "error")
                if answers[-1] != "stored":
                    failed.add(j.id)
                    drop(c, self._places, [j.id], self._owner.token)
        for j, answer in zip(jobs, answers, strict=True):
            j.answer = answer

    def _take_back(self, index: Index, jobs: list[Job], timeout_s: float) -> None:
        """Free what was reserved. Where even that fails, the next transaction finds rows that no call is busy with."""
        if not jobs:
            return
        for j in jobs:
            j.place = None
        try:
            with index.write(timeout_s) as c:
                drop(c, self._places, [j.id for j in jobs], self._owner.token)
        except Exception:  # noqa: BLE001, S110
            return

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


def _groups(jobs: list[Job]) -> Iterator[list[Job]]:
    at = 0
    while at < len(jobs):
        longest = max(1, RUN_BYTES // jobs[at].slot_bytes)
        _, n = next(runs((j.place for j in jobs[at:] if j.place), longest))
        yield jobs[at : at + n]
        at += n
