"""What tiers do and how they are: the part of ``/metrics`` and ``/server_info`` that is about them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from kvist.errors import KvistError
from kvist.server.job import Delta
from kvist.server.live import Live
from kvist.server.observe.numbers import Numbers
from kvist.server.records import Record
from kvist.server.service import Service
from kvist.tier.base import Usage

log = logging.getLogger("kvist.server")

UNREAD_RECORDS: Final = 256
"""A tier that took so many records and gave none back is worth a warning."""

LOOK_S: Final = 30.0
"""How often somebody looks whether that is so, while requests end."""

Row = tuple[tuple[str, ...], float]

CONDITIONS: Final = ("ok", "read-only", "off")
DECISIONS: Final = ("load", "part", "recompute")


def _held(read: Callable[[Usage], float | None]) -> Callable[[Numbers], list[Row]]:
    """A gauge of each tier's own."""

    def rows(numbers: Numbers) -> list[Row]:
        found = ((name, read(usage)) for name, usage in numbers.usages.items())
        return [((name,), value) for name, value in found if value is not None]

    return rows


def _counted(*names: str) -> Callable[[Numbers], list[Row]]:
    """A sum of the mover's counters for each tier."""

    def rows(numbers: Numbers) -> list[Row]:
        return [((tier,), sum(_of(numbers, tier, name) for name in names)) for tier in numbers.usages]

    return rows


def _by_reason(prefix: str) -> Callable[[Numbers], list[Row]]:
    def rows(numbers: Numbers) -> list[Row]:
        out: list[Row] = []
        for tier in numbers.usages:
            begin = f"exec_tier_{tier}_{prefix}"
            found = ((n.removeprefix(begin), v) for n, v in numbers.latest.items() if n.startswith(begin))
            out += [((tier, reason), value) for reason, value in found]
        return out

    return rows


def _of(numbers: Numbers, tier: str, name: str) -> float:
    return numbers.latest.get(f"exec_tier_{tier}_{name}", 0.0)


def _conditions(numbers: Numbers) -> list[Row]:
    usages = numbers.usages.items()
    return [((name, state), float(usage.condition == state)) for name, usage in usages for state in CONDITIONS]


def _queues(numbers: Numbers) -> list[Row]:
    names = (("read", "queued_read_bytes"), ("write", "queued_write_bytes"))
    return [((tier, way), _of(numbers, tier, name)) for tier in numbers.usages for way, name in names]


def _checks(numbers: Numbers) -> list[Row]:
    rows: list[Row] = []
    for tier in numbers.usages:
        wrong = _of(numbers, tier, "mismatched_records")
        rows += [((tier, "right"), _of(numbers, tier, "checked_records") - wrong), ((tier, "wrong"), wrong)]
    return rows


def _unread(numbers: Numbers) -> list[Row]:
    return [((tier,), float(is_unread(numbers, tier))) for tier in numbers.usages]


def is_unread(numbers: Numbers, tier: str) -> bool:
    """Whether a tier costs writes and has never been of use to this server."""
    written = _of(numbers, tier, "stored_records") + _of(numbers, tier, "promoted_records")
    return written >= UNREAD_RECORDS and not _of(numbers, tier, "read_records")


def _decisions(numbers: Numbers) -> list[Row]:
    if not numbers.usages:
        return []
    return [((what,), numbers.latest.get(f"sched_{what}_decisions", 0.0)) for what in DECISIONS]


def _sched(name: str) -> Callable[[Numbers], list[Row]]:
    return lambda numbers: [((), numbers.latest.get(f"sched_{name}", 0.0))] if numbers.usages else []


def cached(numbers: Numbers) -> list[Row]:
    """Cached tokens by where they lay: the pool, or some tier."""
    whole = numbers.latest.get("sched_cached_tokens", 0.0)
    if not numbers.usages:
        return [(("pool",), whole)]
    return [(("pool",), min(whole, numbers.pool_tokens)), (("tiers",), max(0.0, whole - numbers.pool_tokens))]


TIER_NUMBERS: Final[Mapping[str, Callable[[Numbers], list[Row]]]] = {
    "tier_records": _held(lambda usage: usage.records),
    "tier_bytes": _held(lambda usage: usage.used_bytes),
    "tier_capacity_bytes": _held(lambda usage: usage.capacity_bytes),
    "tier_foreign_files": _held(lambda usage: usage.foreign_files),
    "tier_evicted_records": _held(lambda usage: usage.evicted_records),
    "tier_damaged_records": _held(lambda usage: usage.damaged_records),
    "tier_condition": _conditions,
    "tier_read_bytes": _counted("read_bytes"),
    "tier_written_bytes": _counted("written_bytes"),
    "tier_lookups": _counted("lookup_records"),
    "tier_found": _counted("lookup_found"),
    "tier_strange_lookups": _counted("strange_lookups"),
    "tier_hits": _counted("read_records"),
    "tier_misses": _by_reason("miss_"),
    "tier_second_reads": _counted("second_reads"),
    "tier_checks": _checks,
    "tier_lost_saves": _by_reason("lost_"),
    "tier_queued_bytes": _queues,
    "tier_queued_lookups": _counted("queued_finds"),
    "tier_decisions": _decisions,
    "tier_loaded_tokens": _sched("loaded_tokens"),
    "tier_failed_loads": _sched("failed_loads"),
    "tier_regret_seconds": _sched("load_regret_s"),
    "tier_unread": _unread,
}

SCHED_SHOWN: Final = frozenset(
    {
        "sched_load_decisions", "sched_part_decisions", "sched_recompute_decisions", "sched_loaded_tokens",
        "sched_failed_loads", "sched_load_regret_s",
    }
)  # fmt: skip
"""Engine counters that have a series here."""


class Watch:
    """An observer that says once, in the log, that a tier is written and never read. Bounded work: now and then."""

    def __init__(self, service: Service, numbers: Numbers) -> None:
        self._service = service
        self._numbers = numbers
        self._said: set[str] = set()
        self._looked_s = time.monotonic()

    def look(self) -> None:
        """Look at the numbers as they are."""
        for tier in self._numbers.usages:
            if tier not in self._said and is_unread(self._numbers, tier):
                self._said.add(tier)
                log.warning("tier %s took %d records and more, and none was read back", tier, UNREAD_RECORDS)
            elif tier in self._said and not is_unread(self._numbers, tier):
                self._said.discard(tier)

    def opened(self, record: Record) -> None:
        """Nothing."""

    def gained(self, record: Record, parcel: Delta | KvistError, now_s: float) -> None:
        """Nothing."""

    def ended(self, record: Record, live: Live) -> None:
        """Look, when nobody has for a while; the numbers are those of the last time somebody asked."""
        now_s = time.monotonic()
        if self._service.served.places is not None and now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._numbers.ask()
            self.look()


def tier_facts(service: Service, numbers: Numbers) -> dict[str, Any] | None:
    """What ``/server_info`` says of tiers; None without any."""
    places, config = service.served.places, service.served.config.tiers
    if places is None:
        return None
    tiers = []
    for name, text in zip(places.names, places.texts, strict=True):
        fact: dict[str, Any] = {"name": name, "place": text}
        usage = numbers.usages.get(name)
        if usage is not None:
            fact |= {
                "condition": usage.condition,
                "reason": usage.reason or None,
                "records": usage.records,
                "used_bytes": usage.used_bytes,
                "capacity_bytes": usage.capacity_bytes,
                "evicted_records": usage.evicted_records,
                "damaged_records": usage.damaged_records,
                "unread": is_unread(numbers, name),
            }
        tiers.append(fact)
    return {
        "places": tiers,
        "write": {"when": config.when, "min_tokens": config.min_tokens, "second_use": config.second_use},
        "load": {"rule": config.load, "min_tokens": config.min_tokens},
        "sealed": places.sealed,
    }
