"""A tier over any remote place: every fault of the place becomes an answer, in bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from kvist.ids import RecordId
from kvist.tier.base import Entry, Got, Label, Put, Record, Usage
from kvist.tier.damage import Damage
from kvist.tier.envelope import MAX_HEADER_BYTES, MAX_TENANT_BYTES, Header, header_bytes
from kvist.tier.remote.breaker import Breaker
from kvist.tier.remote.place import Answer, Place

T = TypeVar("T")

UNFAIR_S: Final = 0.25
"""A question that was given less time than this says nothing about the place when the time runs out."""
REMOVED_AT_ONCE: Final = 256
REMOVAL_PATIENCE: Final = 10
"""A removal may take so many times as long as a question: nobody's request waits for it."""
UNKNOWN: Final = -1
"""What ``delete`` answers when the place could not be asked, or not to the end."""


class RemoteTier:
    """``ask_timeout_s`` bounds every question that comes without a timeout of its own.

    While the breaker is off: nothing exists, gets are ``error``, puts ``off``, ``delete`` is -1.
    """

    remote = True

    def __init__(self, place: Place, *, name: str, breaker: Breaker | None = None, ask_timeout_s: float = 1.0) -> None:
        self.name = name
        self._place = place
        self._breaker = breaker or Breaker(place.where)
        self._ask_timeout_s = ask_timeout_s
        self._damage = Damage(place.where, "kvist cache verify reads all others of a place")
        self._foreign = 0
        self._measured: tuple[int, int, int | None] = (0, 0, None)

    def exists_many(self, ids: Sequence[RecordId]) -> list[bool]:
        """Whether each could be got now; all False when the place does not answer."""
        if not ids:
            return []
        found, _ = self._ask(lambda until: self._place.exists(ids, until), self._ask_timeout_s)
        return [False] * len(ids) if found is None else found

    def get_many_into(
        self, ids: Sequence[RecordId], buffers: Sequence[memoryview], *, timeout_s: float
    ) -> list[tuple[Got, Label | None]]:
        """Read each record into its buffer. What is damaged is removed from the place."""
        out: list[Answer] = []
        began_s = time.monotonic()
        if ids:
            _, fault = self._ask(lambda until: self._place.get(ids, buffers, until, out), timeout_s)
            rest: Got = "timeout" if fault == "timeout" else "error"
            out += [(rest, None)] * (len(ids) - len(out))
        damaged = [id for id, (got, _) in zip(ids, out, strict=True) if got == "damaged"]
        if damaged:
            self._damage.found(len(damaged))
            left_s = began_s + timeout_s - time.monotonic()  # with none left it is found again next time
            self._ask(lambda until: self._place.remove(damaged, until), min(left_s, self._ask_timeout_s))
        return out

    def put_many(self, records: Sequence[Record], *, timeout_s: float) -> list[Put]:
        """Store what is not there yet. A label that no header can hold is an ``error`` of its own."""
        unfit = [i for i, r in enumerate(records) if not _fits(r.label)]
        if unfit:
            some = self.put_many([r for r in records if _fits(r.label)], timeout_s=timeout_s)
            for i in unfit:
                some.insert(i, "error")
            return some
        out: list[Put] = []
        if records:
            _, fault = self._ask(lambda until: self._place.put(records, until, out), timeout_s)
            rest: Put = "off" if fault == "off" else "timeout" if fault == "timeout" else "error"
            out += [rest] * (len(records) - len(out))
        return out

    def touch_many(self, ids: Sequence[RecordId]) -> None:
        """Tell the place, where it has an order of use."""
        if ids:
            self._ask(lambda until: self._place.touch(ids, until), self._ask_timeout_s)

    def delete(self, *, ids: Sequence[RecordId] = (), tenant: str | None = None, origin: bytes | None = None) -> int:
        """Remove records; -1 when the place could not be asked to the end.

        By tenant or origin this reads the header of every record there is, and removes damaged ones on its way.
        """
        removed = self._remove(ids)
        if tenant is None and origin is None:
            return removed
        counts, doomed, junk = [removed], list[RecordId](), list[RecordId]()
        for id, seen, _ in self._walk(on_fault=lambda: counts.append(UNKNOWN)):
            if seen == "damaged":
                junk.append(id)
            elif isinstance(seen, Header) and _belongs(seen.label, tenant, origin):
                doomed.append(id)
        counts.append(self._remove(doomed))
        if self._remove(junk) == UNKNOWN:
            counts.append(UNKNOWN)
        return UNKNOWN if UNKNOWN in counts else sum(counts)

    def list(self, *, origin: bytes | None = None, tenant: str | None = None) -> Iterator[Entry]:
        """Every record in the place's order; ends early when it stops answering. ``used`` and ``hits`` are unknown."""
        self._foreign = 0
        for _, seen, _ in self._walk():
            if isinstance(seen, Header) and _belongs(seen.label, tenant, origin):
                yield Entry(seen.label, seen.data_bytes, seen.stored_bytes, used=0, hits=0)
            elif seen == "foreign":
                self._foreign += 1

    def usage(self) -> Usage:
        """What the place says of itself; what it said last while it is off."""
        measured = None
        if not self._breaker.off:
            measured, _ = self._ask(self._place.measure, self._ask_timeout_s)
        self._measured = measured or self._measured
        records, used_bytes, capacity_bytes = self._measured
        off = self._breaker.off
        return Usage(
            records=records,
            used_bytes=used_bytes,
            capacity_bytes=capacity_bytes,
            condition="off" if off else "ok",
            reason=self._breaker.reason,
            foreign_files=self._foreign,
            damaged_records=self._damage.records,
        )

    def close(self) -> None:
        """Let go of connections. What was stored stays."""
        self._place.close()

    def _ask(self, question: Callable[[float], T], timeout_s: float) -> tuple[T | None, str]:
        """The answer, or None and what went wrong: ``off``, ``timeout`` or ``error``."""
        if not self._breaker.allows():
            return None, "off"
        try:
            answer = question(time.monotonic() + timeout_s)
        except TimeoutError as error:
            if timeout_s >= UNFAIR_S:
                self._breaker.bad(_one_line(error))
            return None, "timeout"
        except Exception as error:  # any library's way of saying that its server failed
            self._breaker.bad(_one_line(error))
            return None, "error"
        self._breaker.good()
        return answer, ""

    def _remove(self, ids: Sequence[RecordId]) -> int:
        total = 0
        for at in range(0, len(ids), REMOVED_AT_ONCE):
            some = ids[at : at + REMOVED_AT_ONCE]
            patience_s = REMOVAL_PATIENCE * self._ask_timeout_s
            removed, _ = self._ask(lambda until, some=some: self._place.remove(some, until), patience_s)  # type: ignore[misc]
            if removed is None:
                return UNKNOWN
            total += removed
        return total

    def _walk(self, on_fault: Callable[[], object] = lambda: None) -> Iterator[tuple[RecordId, object, int]]:
        if not self._breaker.allows():
            on_fault()
            return
        try:
            yield from self._place.walk(self._ask_timeout_s)
        except Exception as error:  # as in _ask
            self._breaker.bad(_one_line(error))
            on_fault()
        else:
            self._breaker.good()


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _fits(label: Label) -> bool:
    return len(label.tenant.encode()) <= MAX_TENANT_BYTES and header_bytes(label) <= MAX_HEADER_BYTES


def _belongs(label: Label, tenant: str | None, origin: bytes | None) -> bool:
    return (tenant is None or label.tenant == tenant) and (origin is None or label.origin == origin)
