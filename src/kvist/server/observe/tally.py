"""What happened to requests, counted as it happens: the numbers that the engine does not keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from kvist.errors import KvistError
from kvist.server.job import Delta, Finish
from kvist.server.live import Live
from kvist.server.observe.histogram import FAST_S, SLOW_S, Histogram
from kvist.server.records import Record

_WORST: Final = ("stop", "length", "abort", "error")


def finish_of(record: Record) -> str:
    """How a whole request ended: the worst of its samples; ``error`` when the engine refused it."""
    reasons = [f.reason for f in record.finishes.values()]
    if not reasons or len(reasons) < record.n:
        return "error"
    return max(reasons, key=_WORST.index)


@dataclass(slots=True)
class Used:
    """What a tenant used."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0


class Tally:
    """An observer that counts. A delta costs about a microsecond.

    ``tenants`` are told apart only where named: nobody outside can make more series. Gaps between tokens are taken
    when the server gets them, everything else comes from the engine's timelines. Times of requests that were aborted
    or failed are left out, except those of tokens that did come.
    """

    def __init__(self, tenants: Collection[str] = ()) -> None:
        self.generation_tokens = 0
        self.requests: Counter[tuple[str, str]] = Counter()
        """By (endpoint, finish)."""
        self.used = {name: Used() for name in tenants}
        self.ttft = Histogram(SLOW_S)
        self.itl = Histogram(FAST_S)
        self.tpot = Histogram(FAST_S)
        self.e2e = Histogram(SLOW_S)
        self.queue = Histogram(SLOW_S)
        self.prefill = Histogram(SLOW_S)
        self.decode = Histogram(SLOW_S)
        self._last: dict[str, dict[int, float]] = {}

    @property
    def open(self) -> int:
        """Requests being watched."""
        return len(self._last)

    def opened(self, record: Record) -> None:
        """Watch it."""
        self._last[record.id] = {}

    def gained(self, record: Record, parcel: Delta | KvistError, now_s: float) -> None:
        """Count tokens and the time since the sample's last one."""
        if isinstance(parcel, KvistError) or not parcel.token_ids:
            return
        self.generation_tokens += len(parcel.token_ids)
        last = self._last[record.id]
        if not last:
            self.ttft.observe(now_s - record.arrived_s)
        before = last.get(parcel.sample)
        if before is not None:
            self.itl.observe(now_s - before)
        last[parcel.sample] = now_s

    def ended(self, record: Record, live: Live) -> None:
        """Count the whole request, and its times when it ended well."""
        self._last.pop(record.id, None)
        finish = finish_of(record)
        self.requests[record.kind, finish] += 1
        used, bill = self.used.get(record.tenant), record.bill
        if used is not None and bill is not None:
            used.requests += 1
            used.prompt_tokens += bill.prompt_tokens
            used.cached_tokens += bill.cached_tokens
            used.generation_tokens += bill.completion_tokens
        if finish not in ("stop", "length"):
            return
        if record.done_s is not None:
            self.e2e.observe(record.done_s - record.arrived_s)
        for done in record.finishes.values():
            self._times(done)

    def _times(self, finish: Finish) -> None:
        line = finish.timeline
        if line.admitted_s is not None:
            self.queue.observe(line.admitted_s - line.arrived_s)
            if line.first_token_s is not None:
                self.prefill.observe(line.first_token_s - line.admitted_s)
        if line.first_token_s is not None and line.done_s is not None:
            self.decode.observe(line.done_s - line.first_token_s)
        if line.tpot_s is not None:
            self.tpot.observe(line.tpot_s)
