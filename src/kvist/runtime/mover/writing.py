"""Saves, promotions and drops: one thread for each tier, in the order in which they were asked for."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import numpy as np

from kvist.ids import RecordId
from kvist.runtime.mover import asking
from kvist.runtime.mover.checking import Checking
from kvist.runtime.mover.desk import Desk
from kvist.runtime.mover.jobs import Job, Parcel
from kvist.runtime.mover.lane import Lane
from kvist.runtime.mover.open import GROUP_AT, OpenDrop, OpenLoad, OpenSave
from kvist.runtime.mover.staging import Staging, aligned_rows
from kvist.runtime.mover.worker import Call, Worker
from kvist.tier.base import Label, Put, Record
from kvist.transfer import Drop, Save, Touch

log = logging.getLogger("kvist.tier")

FEW_RECORDS: Final = 8
"""So many are worth a call of their own at once; fewer wait a little for more."""

WRITE_BYTES: Final = 16 << 20
"""Given to a tier in one call, where a record is not larger."""

DROP_TIMEOUT_S: Final = 60.0
"""A drop may overwrite what it removes."""

NICE: Final = 19
"""Steps want both cores: what is written takes what they leave (a thread this nice gets a seventieth beside others)."""

MAX_WAITING_TOUCHES: Final = 64
"""Lists of records in use that a busy tier will still be told of."""


class Writing:
    """Holds blocks' bytes in staging slots until every tier that takes saves has them, or has not.

    Every such tier may hold its share of the slots and no more, so a slow one loses its own blocks (``queue full``)
    and nobody else's; promotions take half of that share at most.
    """

    def __init__(self, desk: Desk, staging_bytes: int, *, promote: bool, linger_s: float, checking: Checking) -> None:
        self._desk = desk
        self._checking = checking
        self._takers = [lane for lane in desk.lanes if lane.takes_saves]
        self._staging = Staging(staging_bytes, desk.block_bytes, sharers=len(self._takers))
        for lane in self._takers:
            lane.quota = self._staging.slots // len(self._takers)
        self._promote = promote
        self._records = max(1, WRITE_BYTES // desk.block_bytes)
        self._linger_s = linger_s
        self._hurried = 0
        self._held: set[Parcel] = set()
        self.workers = [
            Worker(f"save-{lane.name}", desk.lock, partial(self._write, lane), patience=self._patience, nice=NICE)
            for lane in desk.lanes
        ]

    def save(self, ask: Save) -> None:
        """Copy the blocks' bytes now and queue them. Takes the lock, but not while it copies."""
        desk = self._desk
        save = OpenSave(ask)
        puts: list[tuple[list[Lane], Parcel]] = []
        with desk.lock:
            now = desk.clock.now()
            desk.saves[ask.id] = save
            lanes = [lane for lane in self._takers if not self.workers[lane.index].hung(now)]
            self._lose(save, range(len(ask.blocks)), [lane for lane in self._takers if lane not in lanes], "timeout")
            for i, block in enumerate(ask.blocks):
                full = [lane for lane in lanes if not lane.room]
                lanes = [lane for lane in lanes if lane.room]
                self._lose(save, range(i, len(ask.blocks)), full, "queue full")
                if not lanes:
                    break
                label = Label(
                    RecordId(block.record), RecordId(block.parent), desk.origin, block.depth, ask.tenant, block.tokens
                )
                save.pending += len(lanes)
                puts.append((lanes, self._hold(lanes, label, ask.tenant, save, i)))
        for _, put in puts:
            np.copyto(self._staging.rows[put.slot], desk.row(ask.blocks[put.index].block))
        with desk.lock:
            for lanes, put in puts:
                for lane in lanes:
                    self._queue(lane, put)
            if not self._takers:
                save.why = ["off"] * len(save.why)
            desk.end_save(save)

    def drop(self, ask: Drop) -> None:
        """Discard what waits and queue the removal. Lock held."""
        drop = OpenDrop(ask, [None] * len(self._desk.lanes))
        self._desk.drops[ask.id] = drop
        for load in self._desk.loads.values():
            load.dropped.add(ask.tenant)
        for worker in self.workers:
            waiting, keep = list(worker.queue), []
            for job in waiting:
                of_it = [p for p in job.puts if ask.tenant in (None, p.tenant, p.record.label.tenant)]
                job.puts = [p for p in job.puts if p not in of_it]
                self._settle(worker, of_it, ["dropped"] * len(of_it))
                if job.puts or job.drop or job.touch:
                    keep.append(job)
            worker.queue.clear()
            worker.queue.extend(keep)
            worker.add(Job(drop=drop))
        self._desk.end_drop(drop)
        self.expire(self._desk.clock.now())

    def touch(self, ask: Touch, above: int = -1) -> None:
        """Count records as used in the tiers behind number ``above``. Lock held."""
        job = Job(touch=tuple(RecordId(r) for r in ask.records), tenant=ask.tenant)
        for worker in self.workers[above + 1 :]:
            if len(worker.queue) < MAX_WAITING_TOUCHES and not worker.closed:
                worker.add(job)

    def give_on(self, lane: Lane, load: OpenLoad, hits: Sequence[tuple[int, Label]]) -> None:
        """Promote verified records to faster tiers, and tell slower ones that they are in use."""
        desk, tenant = self._desk, load.ask.tenant
        puts: list[tuple[list[Lane], int, Parcel]] = []
        with desk.lock:
            now = desk.clock.now()
            faster = [t for t in self._takers if t.index < lane.index and not self.workers[t.index].hung(now)]
            for i, label in hits if self._promote else ():
                lanes = [t for t in faster if t.held_slots < t.quota // 2]
                if lanes:
                    puts.append((lanes, i, self._hold(lanes, label, tenant)))
            if hits:
                self.touch(Touch(tenant, tuple(load.ask.records[i] for i, _ in hits)), lane.index)
        for _, i, put in puts:
            np.copyto(self._staging.rows[put.slot], desk.row(load.ask.blocks[i]))
        with desk.lock:
            for lanes, _, put in puts:
                unwanted = load.dropped & {None, tenant, put.record.label.tenant}
                for t in lanes:
                    if unwanted or self.workers[t.index].closed:
                        self._release(t, put)
                    else:
                        self._queue(t, put)

    def under_way(self) -> frozenset[object]:
        """What is not written yet, promotions and drops too. Lock held."""
        return frozenset(self._held) | frozenset(self._desk.drops.values())

    def hurry(self, waiting: int) -> None:
        """So many more wait for what is queued. Lock held."""
        self._hurried += waiting
        for worker in self.workers:
            worker.wake()

    def expire(self, now: float) -> None:
        """Give up calls that hang, and what waits behind them. Lock held."""
        for worker in self.workers:
            for call in worker.calls:
                if call.hung(now) and not call.given_up:
                    call.given_up = True
                    self._fail(worker, call.job, "timeout", release=False)
            while worker.queue and worker.hung(now):
                self._fail(worker, worker.queue.popleft(), "timeout")

    def close(self) -> None:
        """What waits is lost. Lock held."""
        for worker in self.workers:
            while worker.queue:
                self._fail(worker, worker.queue.popleft(), "closed")
            worker.close()

    def _lose(self, save: OpenSave, blocks: Iterable[int], lanes: Sequence[Lane], reason: str) -> None:
        for lane in lanes:
            for i in blocks:
                save.note(i, reason)
                lane.numbers.put(reason, self._desk.block_bytes, promoted=False)

    def _hold(
        self, lanes: Sequence[Lane], label: Label, tenant: str, save: OpenSave | None = None, index: int = 0
    ) -> Parcel:
        slot = self._staging.take(len(lanes))
        for lane in lanes:
            lane.held_slots += 1
        put = Parcel(tenant, Record(label, self._staging.rows[slot].data), slot, save, index)
        self._held.add(put)
        return put

    def _release(self, lane: Lane, put: Parcel) -> None:
        lane.held_slots -= 1
        if self._staging.release(put.slot):
            self._held.remove(put)

    def _queue(self, lane: Lane, put: Parcel) -> None:
        """Beside the last ones that wait, where they can be written in one call."""
        queue = self.workers[lane.index].queue
        last = queue[-1] if queue else None
        if last and last.puts and len(last.puts) < self._records and (last.tenant == put.tenant or not lane.has_views):
            last.puts.append(put)
            if len(last.puts) == FEW_RECORDS:
                self.workers[lane.index].wake()
        else:
            self.workers[lane.index].add(Job(puts=[put], tenant=put.tenant, since=self._desk.clock.now()))

    def _patience(self, job: Job) -> float:
        """A call for one record costs a disk tier five times what it costs among eight."""
        if self._hurried or not 0 < len(job.puts) < FEW_RECORDS:
            return 0.0
        return job.since + self._linger_s - self._desk.clock.now()

    def _fail(self, worker: Worker[Job], job: Job, reason: str, *, release: bool = True) -> None:
        self._settle(worker, job.puts, [reason] * len(job.puts), release=release)
        if job.drop:
            lane = self._desk.lanes[self.workers.index(worker)]
            job.drop.note(lane.index, -1, f"{lane.name}: {reason}")
            self._desk.end_drop(job.drop)

    def _settle(
        self, worker: Worker[Job], puts: Sequence[Parcel], answers: Sequence[str], *, release: bool = True
    ) -> None:
        """One tier has answered for these blocks. ``release``: and does not look at their bytes any more."""
        lane = self._desk.lanes[self.workers.index(worker)]
        for put, answer in zip(puts, answers, strict=True):
            lane.numbers.put(answer, self._desk.block_bytes, promoted=put.save is None)
            if release:
                self._release(lane, put)
            if put.save:
                put.save.note(put.index, answer)
                put.save.pending -= 1
                self._desk.end_save(put.save)

    def _compared(self, lane: Lane, job: Job, answers: Sequence[Put]) -> Sequence[Put]:
        """The answers, after some of the records that were known were compared: a wrong one is replaced."""
        out = list(answers)
        for i, put in enumerate(job.puts):
            if answers[i] == "known" and put.save is not None and self._checking.due():
                alike = self._is_alike(lane, job.tenant, put)
                with self._desk.lock:
                    lane.numbers.add("checked_records", alike is not None)
                    lane.numbers.add("mismatched_records", alike is False)
                if alike is False:
                    log.warning("%s: a record differs from what computing it gives, and was replaced", lane.name)
                    asking.remove(lane, job.tenant, put.record.label.id)
                    out[i] = asking.put(lane, job.tenant, [put.record], timeout_s=self._desk.timeout_s)[0]
        return out

    def _is_alike(self, lane: Lane, tenant: str, put: Parcel) -> bool | None:
        """None: it could not be read."""
        desk, id = self._desk, put.record.label.id
        stored = aligned_rows(1, desk.block_bytes)[0]
        got = asking.get(lane, tenant, [id], [stored.data], origin=desk.origin, timeout_s=desk.timeout_s)
        if got[0][0] != "hit":
            return None
        used = desk.store.layout.groups[id[GROUP_AT]].used_bytes
        return self._checking.alike(stored[:used], self._staging.rows[put.slot][:used])

    def _write(self, lane: Lane, job: Job) -> None:
        desk, worker = self._desk, self.workers[lane.index]
        start = desk.clock.now()
        call = Call(job, start + (DROP_TIMEOUT_S if job.drop else desk.timeout_s))
        with desk.lock:
            worker.calls.append(call)
        if job.drop:
            removed, reason = asking.delete(lane, job.drop.ask.tenant, origin=desk.origin)
        elif job.touch:
            asking.touch(lane, job.tenant, job.touch)
        else:
            answers = asking.put(lane, job.tenant, [put.record for put in job.puts], timeout_s=desk.timeout_s)
            answers = self._compared(lane, job, answers)
        seconds = desk.clock.now() - start
        with desk.lock:
            worker.calls.remove(call)
            lane.numbers.busy("write_busy_us", seconds)
            if job.drop:
                lane.numbers.add("deleted_records", max(0, removed))
                job.drop.note(lane.index, removed, reason)
                desk.end_drop(job.drop)
            elif call.given_up:
                for put in job.puts:
                    self._release(lane, put)
            elif job.puts:
                self._settle(worker, job.puts, answers)
            desk.changed.notify_all()
