"""Finds: which tier has what. A thread for each tier, so that a slow one delays nobody who need not ask it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from kvist.ids import RecordId
from kvist.runtime.mover import asking
from kvist.runtime.mover.desk import Desk
from kvist.runtime.mover.lane import Lane
from kvist.runtime.mover.open import OpenFind
from kvist.runtime.mover.worker import Call, Worker
from kvist.transfer import Find

MAX_OPEN_FINDS: Final = 1024
"""More than these are answered at once, with nothing."""


class Looking:
    """Asks tiers, fastest first, for what the ones before did not have.

    A find that is not through after ``timeout_s`` is answered with what is known: no request waits for a slow lookup.
    ``shut`` tells whether a tier's reads hang: then it need not be asked.
    """

    def __init__(self, desk: Desk, timeout_s: float, shut: Callable[[Lane, float], bool]) -> None:
        self._desk = desk
        self._timeout_s = timeout_s
        self._shut = shut
        self.workers = [
            Worker(f"find-{lane.name}", desk.lock, partial(self._look, lane), threads=lane.readers)
            for lane in desk.lanes
        ]

    def begin(self, ask: Find) -> None:
        """Lock held."""
        now = self._desk.clock.now()
        find = OpenFind(ask, now + self._timeout_s)
        crowded = len(self._desk.finds) >= MAX_OPEN_FINDS
        self._desk.finds[ask.id] = find
        self._pass_on(find, len(self.workers) if crowded else 0, now)

    def expire(self, now: float) -> None:
        """Answer what has waited too long. Lock held."""
        late = [find for find in self._desk.finds.values() if now > find.deadline]
        for find in late:
            for lane, worker in zip(self._desk.lanes, self.workers, strict=True):
                if find in worker.queue:
                    worker.queue.remove(find)
                elif all(call.job is not find for call in worker.calls):
                    continue
                lane.numbers.add("lookup_timeouts")
            self._desk.end_find(find)

    def _pass_on(self, find: OpenFind, at: int, now: float) -> None:
        """To the first tier from ``at`` on that answers. Lock held."""
        rest = find.rest()
        for lane, worker in zip(self._desk.lanes[at:], self.workers[at:], strict=True):
            if rest and not worker.hung(now) and not self._shut(lane, now):
                worker.add(find)
                return
        self._desk.end_find(find)

    def _look(self, lane: Lane, find: OpenFind) -> None:
        worker, desk = self.workers[lane.index], self._desk
        with desk.lock:
            if find.over:
                return
            rest = find.rest()
            call = Call(find, find.deadline)
            worker.calls.append(call)
        start = desk.clock.now()
        has = asking.exists(lane, find.ask.tenant, [RecordId(find.ask.records[i]) for i in rest])
        now = desk.clock.now()
        nothing = has is not None and not any(has)
        with desk.lock:
            worker.calls.remove(call)
            numbers = lane.numbers
            numbers.add("lookups")
            numbers.add("lookup_records", len(rest))
            numbers.busy("lookup_busy_us", now - start)
            if has is None:
                numbers.add("lookup_errors")
                has = [False] * len(rest)
            else:
                numbers.add("lookup_found", sum(has))
            if not find.over:
                for i, there in zip(rest, has, strict=True):
                    if there:
                        find.tiers[i] = lane.index
                self._pass_on(find, lane.index + 1, now)
        if nothing and asking.is_strange(lane, desk.origin, now):
            with desk.lock:
                numbers.add("strange_lookups")
