"""Loads: records from tiers into blocks of the pool.

Who may write where, and for how long:

- From ``Load`` to ``Loaded`` the blocks are the mover's, and ``Loaded`` is not given while a thread can write to one.
- A tier reads straight into the blocks as long as none of its reads outlived its time. Should one hang, the load's
  answer waits for it, however long that takes (the steps do not).
- From then on, and always for a remote tier, it reads into memory of the reading thread's own; what was verified is
  copied into the block if the load is still open. A read that hangs there is left behind: its load is answered
  (``timeout``) when its time is over, and whatever the read still brings is thrown away.
- While all of a tier's reading threads hang, what waits for that tier is answered at once, and finds pass it over.

What a tier turns out not to have (any more, or whole) is asked of the slower ones, one after another; there also what
one of them cannot give now. All that one tier is asked for of one load has one time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt

from kvist.errors import CapacityError
from kvist.runtime.mover import asking
from kvist.runtime.mover.desk import Desk
from kvist.runtime.mover.lane import Lane
from kvist.runtime.mover.open import OpenLoad, Part
from kvist.runtime.mover.staging import aligned_rows
from kvist.runtime.mover.worker import Call, Worker
from kvist.tier.base import Got, Label
from kvist.transfer import Load

READ_BYTES: Final = 16 << 20
"""Asked of a tier in one call, where a record is not larger: a load that is cancelled stops after it."""

ELSEWHERE: Final = ("missing", "damaged", "foreign")
"""Answers about one record, after which another tier may have it (a tier that hangs or fails is another matter)."""

GiveOn = Callable[[Lane, OpenLoad, Sequence[tuple[int, Label]]], None]
"""Takes verified records (index in the load, label) that lie in the pool, for other tiers. Called without the lock."""


@dataclass(slots=True, eq=False)
class _Batch:
    picks: list[int]
    call: Call[Part]
    direct: bool
    seconds: float = 0.0


class Reading:
    """One or more threads for each tier. ``give_on`` gets what was verified before the load can end."""

    def __init__(self, desk: Desk, give_on: GiveOn) -> None:
        self._desk = desk
        self._give_on = give_on
        self._records = max(1, READ_BYTES // desk.block_bytes)
        self._own = threading.local()
        self.workers = [
            Worker(f"read-{lane.name}", desk.lock, partial(self._read, lane), threads=lane.readers)
            for lane in desk.lanes
        ]

    def begin(self, ask: Load) -> None:
        """Lock held."""
        load = OpenLoad.of(ask, self._desk.clock.now(), len(self.workers))
        load.dropped.update(drop.ask.tenant for drop in self._desk.drops.values())
        self._desk.loads[ask.id] = load
        for lane in self._desk.lanes:
            wanted = [i for i, tier in enumerate(ask.tiers) if tier == lane.index]
            if wanted:
                self._add(lane, Part(load, lane.index, wanted))
        assert sum(len(part.wanted) for part in load.parts) == len(ask.records), "a load names a tier that is not there"
        self.expire(load.born)
        self._desk.end_load(load)

    def _add(self, lane: Lane, part: Part) -> None:
        part.load.parts.append(part)
        lane.parts.append(part)
        self.workers[lane.index].add(part)

    def cancel(self, load: OpenLoad, reason: str = "cancelled") -> None:
        """Stop where it is; the answer comes when no thread can write any more. Lock held."""
        for part in list(load.parts):
            lane = self._desk.lanes[part.tier]
            if part in self.workers[lane.index].queue:
                self.workers[lane.index].queue.remove(part)
            self._give_up(lane, part, reason)

    def hung(self, lane: Lane, now: float) -> bool:
        """Whether nothing can be read from this tier now. Lock held."""
        return self.workers[lane.index].hung(now)

    def expire(self, now: float) -> None:
        """Give up reads that hang, and what waits behind them. Lock held."""
        for lane, worker in zip(self._desk.lanes, self.workers, strict=True):
            for call in worker.calls:
                if call.hung(now):
                    lane.distrust(self._desk.timeout_s)
                    self._give_up(lane, call.job, "timeout")
            while worker.queue and worker.hung(now):
                self._give_up(lane, worker.queue.popleft(), "timeout")

    def _give_up(self, lane: Lane, part: Part, reason: str) -> None:
        """Read no more of a part: what is not settled fails. Lock held."""
        if part.over:
            return
        load = part.load
        for i in part.wanted[part.settled :]:
            load.fail(i, reason)
        lane.numbers.add(f"miss_{reason}", part.left)
        self._close(lane, part)

    def _close(self, lane: Lane, part: Part) -> None:
        part.over = True
        part.load.parts.remove(part)
        lane.parts.remove(part)
        self._desk.end_load(part.load)

    def _read(self, lane: Lane, part: Part) -> None:
        try:
            own = self._rows()
        except CapacityError as error:
            with self._desk.lock:
                lane.blame(error)
                self._give_up(lane, part, "error")
            return
        while batch := self._next(lane, part):
            self._carry(lane, part, batch, own)

    def _next(self, lane: Lane, part: Part) -> _Batch | None:
        """What to ask for now; None when there is nothing more to do for this part."""
        with self._desk.lock:
            if part.over:
                return None
            now = self._desk.clock.now()
            deadline = part.load.deadlines.setdefault(lane.index, now + self._desk.timeout_s)
            picks = self._pick(lane, part)
            if not picks:
                self._close(lane, part)
                return None
            if now >= deadline:
                self._give_up(lane, part, "timeout")
                return None
            call = Call(part, deadline)
            self.workers[lane.index].calls.append(call)
            part.load.writers += lane.direct
            return _Batch(picks, call, lane.direct)

    def _pick(self, lane: Lane, part: Part) -> list[int]:
        picks: list[int] = []
        while part.at < len(part.wanted) and len(picks) < self._records:
            i = part.wanted[part.at]
            if part.load.worthless(i):
                if picks:
                    break
                part.load.fail(i, "skipped")
                lane.numbers.add("miss_skipped")
                part.settled += 1
            else:
                picks.append(i)
            part.at += 1
        return picks

    def _carry(self, lane: Lane, part: Part, batch: _Batch, own: npt.NDArray[np.uint8]) -> None:
        desk, load = self._desk, part.load
        blocks = [desk.row(load.ask.blocks[i]) for i in batch.picks]
        rows = blocks if batch.direct else own[: len(blocks)]
        start = desk.clock.now()
        got = asking.get(
            lane,
            load.ask.tenant,
            part.ids(batch.picks),
            [row.data for row in rows],
            origin=desk.origin,
            timeout_s=batch.call.deadline - start,
        )
        batch.seconds = desk.clock.now() - start
        hits = [k for k, (word, _) in enumerate(got) if word == "hit"]
        with desk.lock:
            self.workers[lane.index].calls.remove(batch.call)
            if batch.call.hung(desk.clock.now()):
                lane.distrust(desk.timeout_s)
            if not batch.direct:
                if part.over:
                    return
                load.writers += 1
        if not batch.direct:
            for k in hits:
                np.copyto(blocks[k], rows[k])
        if not part.over:
            self._give_on(lane, load, [(batch.picks[k], label) for k in hits if (label := got[k][1])])
        with desk.lock:
            load.writers -= 1
            self._note(lane, part, batch, [word for word, _ in got])
            desk.end_load(load)

    def _note(self, lane: Lane, part: Part, batch: _Batch, got: list[Got]) -> None:
        """Settle a batch. After a part was given up what came all the same is still good. Lock held."""
        load, numbers = part.load, lane.numbers
        hits = got.count("hit")
        numbers.add("read_records", hits)
        numbers.add("read_bytes", hits * self._desk.block_bytes)
        numbers.busy("read_busy_us", batch.seconds)
        if not batch.direct:
            numbers.add("bounced_records", hits)
        load.read_bytes[lane.index] += hits * self._desk.block_bytes
        load.busy_s[lane.index] += batch.seconds
        elsewhere: list[int] = []
        for i, word in zip(batch.picks, got, strict=True):
            if word == "hit":
                load.good[i] = True
            elif not part.over:
                numbers.add(f"miss_{word}")
                if part.second or word in ELSEWHERE:
                    load.why[i] = load.why[i] or word
                    elsewhere.append(i)
                else:
                    load.fail(i, word)
        if not part.over:
            part.settled += len(batch.picks)
            ill = next((word for word in got if word in ("timeout", "error")), None)
            if ill is not None and part.second:
                elsewhere += part.wanted[part.settled :]
                part.settled = part.at = len(part.wanted)
            self._ask_slower(lane, load, elsewhere, ill or "")
            if ill is not None:
                self._give_up(lane, part, ill)

    def _ask_slower(self, lane: Lane, load: OpenLoad, wanted: list[int], reason: str) -> None:
        """Have what ``lane`` turned out not to bring by the next tier that can be asked. Lock held."""
        if not wanted:
            return
        now = self._desk.clock.now()
        for slower in self._desk.lanes[lane.index + 1 :]:
            worker = self.workers[slower.index]
            if not (worker.closed or worker.hung(now)):
                slower.numbers.add("second_reads", len(wanted))
                self._add(slower, Part(load, slower.index, wanted, second=True))
                return
        for i in wanted:
            load.fail(i, load.why[i] or reason)

    def _rows(self) -> npt.NDArray[np.uint8]:
        """Memory of this thread's own for one batch; not touched before it is needed. Raises ``CapacityError``."""
        rows: npt.NDArray[np.uint8] | None = getattr(self._own, "rows", None)
        if rows is None:
            rows = self._own.rows = aligned_rows(self._records, self._desk.block_bytes)
        return rows
