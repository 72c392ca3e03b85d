"""A whole call of ``put_many``: one batch is written while the next is reserved; and what is done about faults."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from typing import Final, TypeVar

from kvist.ids import RecordId
from kvist.tier.base import Put, Record
from kvist.tier.disk.access import FAULTS, Access
from kvist.tier.disk.health import Health, reason_of
from kvist.tier.disk.index import BUSY_S, Busy, Index
from kvist.tier.disk.places import Places
from kvist.tier.disk.put import Job, Pending, Writer, job
from kvist.tier.disk.reclaim import evict, next_tick, use_ancestors
from kvist.tier.disk.scan import Ground, agree, told

FIRST_BATCH_BYTES: Final = 8 << 20
BATCH_BYTES: Final = 32 << 20
T = TypeVar("T")


class Puts:
    """Puts the records of calls. Any thread may use it.

    ``most_records`` of a batch keep what one transaction changes in the index well below what the capacity sets aside
    for its log.
    """

    def __init__(self, writer: Writer, access: Access, places: Places, health: Health, *, most_records: int) -> None:
        self._writer, self._access, self._places, self._health = writer, access, places, health
        self._most_records = most_records
        self._told_too_small = False

    def put(self, records: Sequence[Record], deadline_s: float) -> list[Put]:
        """The answers."""
        jobs: list[Job] = []
        failed: set[RecordId] = set()
        waiting: tuple[list[Job], Pending] | None = None
        try:
            for batch in self._batches(records, jobs, failed):
                begun = None
                if not self._health.may_try():
                    _answer(batch, "off", failed)
                elif (left_s := deadline_s - time.monotonic()) <= 0:
                    _answer(batch, "timeout", failed)
                else:
                    begun = self._begin(batch, failed, left_s)
                if waiting:
                    self._finish(*waiting, failed, deadline_s)
                waiting = (batch, begun) if begun else None
            if waiting:
                self._finish(*waiting, failed, deadline_s)
        finally:
            if waiting:  # nobody reads the callers' bytes when this returns, whatever happened
                wait(waiting[1].writes)
        self._tell_too_small(jobs)
        return [j.answer or "error" for j in jobs]

    def _tell_too_small(self, jobs: Sequence[Job]) -> None:
        """Once: a tier that can keep nothing at all is a mistake of whoever gave its size."""
        refused = None if self._told_too_small else next((j for j in jobs if j.answer == "full"), None)
        if refused and (why := self._places.too_small(refused.slot_bytes)):
            self._told_too_small = True
            self._health.tell(why)

    def _batches(self, records: Sequence[Record], jobs: list[Job], failed: set[RecordId]) -> Iterator[list[Job]]:
        """Made while earlier ones are written; the first is small, so that the device soon has something to do."""
        batch: list[Job] = []
        size, most_bytes = 0, FIRST_BATCH_BYTES
        for record in records:
            jobs.append(j := job(record))
            if j.answer:
                failed.add(j.id)
                continue
            if batch and (len(batch) >= self._most_records or size + j.slot_bytes > most_bytes):
                yield batch
                batch, size, most_bytes = [], 0, BATCH_BYTES
            batch.append(j)
            size += j.slot_bytes
        if batch:
            yield batch

    def _begin(self, batch: list[Job], failed: set[RecordId], left_s: float) -> Pending | None:
        index = self._access.index
        return self._tried(
            lambda: self._writer.begin(self._access.current(), batch, failed, left_s), batch, failed, index
        )

    def _finish(self, batch: list[Job], begun: Pending, failed: set[RecordId], deadline_s: float) -> None:
        left: list[Pending] = [begun]

        def finish() -> None:
            left_s = max(0.0, deadline_s - time.monotonic())
            again = left.pop() if left else self._writer.begin(self._access.current(), batch, failed, left_s)
            self._writer.finish(again, failed, left_s)

        self._tried(finish, batch, failed, begun.index)
        short = self._places.short_of_space
        if any(j.answer == "stored" for j in batch):
            self._health.worked()
            self._health.bounded(self._places.shortage if short else "")
        elif short and any(j.answer == "full" for j in batch) and not self._access.ask(self._places.held_bytes, 1):
            self._health.failed(self._places.shortage)  # without a slot there is nothing that could make room

    def _tried(self, step: Callable[[], T], batch: list[Job], failed: set[RecordId], index: Index) -> T | None:
        """Take a step; once more when there is hope. None: what had no answer in the batch has one now."""
        for again in (True, False):
            try:
                return step()
            except Busy:
                _answer(batch, "timeout", failed)
                return None
            except FAULTS as error:
                is_full = self._access.wants_room(error)
                if again and is_full and self._make_room(batch):
                    continue
                if again and isinstance(error, FileNotFoundError) and self._lost_a_slab():
                    continue
                if again and self._access.mended(index, error):
                    continue
                self._health.failed(reason_of(error))
                _answer(batch, "full" if is_full else "error", failed)
                break
        return None

    def _lost_a_slab(self) -> bool:
        """Somebody removed a slab that we have open: what was in it is lost, and others can be written to."""
        lost = self._access.change(agree, BUSY_S)
        ground = self._access.ground
        if lost is None or ground is None:
            return False
        told(lost, ground)
        return True

    def _make_room(self, batch: list[Job]) -> bool:
        """The filesystem is full: give back what was used longest ago."""
        need = sum(j.slot_bytes for j in batch)

        def evicted(c: sqlite3.Connection, ground: Ground) -> bool:
            tick = next_tick(c)
            use_ancestors(c, [j.record.label.parent for j in batch if j.record.label.parent], tick)
            return evict(c, ground.places, slots=need, slot_bytes=1, before=tick)[1] > 0

        if not self._access.change(evicted, BUSY_S):
            return False
        return bool(self._access.change(lambda c, ground: ground.places.give_back(c, need), BUSY_S))


def _answer(batch: list[Job], answer: Put, failed: set[RecordId]) -> None:
    for j in batch:
        if j.answer is None:
            j.answer = answer
            failed.add(j.id)
