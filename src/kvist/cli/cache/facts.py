"""What there is to say of a place as a whole."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvist.cli.cache.place import Place
from kvist.tier.base import Entry, Tier, Usage
from kvist.tier.disk.folder import RESERVE_HINT
from kvist.tier.seal import looks_sealed
from kvist.units import format_bytes

WRITTEN: Final = re.compile(r"kvist-cache\.lock|index\.db(-wal|-shm)?|slab-\d+-\d+\.kvs")
"""What a server must be able to write to."""

BLOCK_BYTES = 512
"""What ``st_blocks`` counts in."""


@dataclass(frozen=True, slots=True)
class Share:
    """Records and bytes of one origin or tenant."""

    name: str
    records: int
    data_bytes: int


@dataclass(frozen=True, slots=True)
class Facts:
    """A place now. What only a folder has is None for others; ``origins`` and ``tenants`` are None unless counted."""

    place: Place
    kind: str
    condition: str
    reason: str
    usage: Usage
    on_disk_bytes: int | None
    free_bytes: int | None
    origins: list[Share] | None
    tenants: list[Share] | None
    sealed_records: int | None
    plain_records: int | None

    @property
    def capacity_bytes(self) -> int | None:
        """What it may take."""
        return self.place.capacity_bytes if self.place.folder else self.usage.capacity_bytes

    def to_json(self) -> dict[str, Any]:
        """Every fact, sizes in bytes."""
        usage, place = self.usage, self.place
        return {
            "place": place.shown,
            "kind": self.kind,
            "condition": self.condition,
            "reason": self.reason,
            "records": usage.records,
            "used_bytes": usage.used_bytes,
            "capacity_bytes": self.capacity_bytes,
            "capacity_is_default": bool(place.folder) and place.size_bytes is None,
            "on_disk_bytes": self.on_disk_bytes,
            "free_bytes": self.free_bytes,
            "reserve_bytes": place.reserve_bytes if place.folder else None,
            "sealed": place.sealed,
            "sealed_records": self.sealed_records,
            "plain_records": self.plain_records,
            "foreign_files": usage.foreign_files,
            "damaged_records": usage.damaged_records,
            "evicted_records": usage.evicted_records,
            "origins": _listed("origin", self.origins),
            "tenants": _listed("tenant", self.tenants),
        }


def _listed(what: str, shares: list[Share] | None) -> list[dict[str, Any]] | None:
    if shares is None:
        return None
    return [{what: share.name, "records": share.records, "data_bytes": share.data_bytes} for share in shares]


def gather_facts(place: Place, tier: Tier, *, count: bool) -> Facts:
    """Ask the tier. ``count``: walk over all records for origins and tenants."""
    origins = tenants = sealed = plain = None
    if count:
        kinds: Counter[bool] = Counter()
        origins, tenants = shares(_counted(tier.list(), kinds))
        sealed, plain = kinds[True], kinds[False]
    usage = tier.usage()
    condition, reason, on_disk, free = str(usage.condition), usage.reason, None, None
    if place.folder is not None:
        on_disk, free = on_disk_bytes(place.folder), _free_bytes(place.folder)
        condition, reason = _condition(place, place.folder)
        if condition == "ok" and free < place.reserve_bytes:
            reserve = f"{format_bytes(free)} are free, less than the reserve of {format_bytes(place.reserve_bytes)}"
            reason = f"{reserve}: what is new only takes the place of what is old; {RESERVE_HINT}"
    return Facts(place, tier.name, condition, reason, usage, on_disk, free, origins, tenants, sealed, plain)


def _counted(entries: Iterable[Entry], kinds: Counter[bool]) -> Iterator[Entry]:
    """As they come, none held: each has its tokens with it. ``kinds``: how many look sealed, and how many do not."""
    for entry in entries:
        kinds[looks_sealed(entry)] += 1
        yield entry


def shares(entries: Iterable[Entry]) -> tuple[list[Share], list[Share]]:
    """By origin and by tenant, the largest first."""
    origins: dict[str, tuple[int, int]] = {}
    tenants: dict[str, tuple[int, int]] = {}
    for entry in entries:
        for sums, name in ((origins, entry.label.origin.hex()), (tenants, entry.label.tenant)):
            records, data_bytes = sums.get(name, (0, 0))
            sums[name] = (records + 1, data_bytes + entry.data_bytes)

    def ordered(sums: dict[str, tuple[int, int]]) -> list[Share]:
        found = [Share(name, records, data_bytes) for name, (records, data_bytes) in sums.items()]
        return sorted(found, key=lambda share: (-share.data_bytes, share.name))

    return ordered(origins), ordered(tenants)


def _condition(place: Place, folder: Path) -> tuple[str, str]:
    """A folder that is only looked into does not say whether it could be written to: what a server would find."""
    if place.read_only:
        return "read-only", "read_only=on was given"
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return "read-only", "its filesystem is mounted to read only"
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
        return "read-only", f"this user ({os.geteuid()}) cannot write to the folder"
    for name in sorted(os.listdir(folder)):
        if WRITTEN.fullmatch(name) and not os.access(folder / name, os.W_OK, effective_ids=True):
            return "read-only", f"this user ({os.geteuid()}) cannot write to {name}"
    return "ok", ""


def on_disk_bytes(folder: Path) -> int:
    """What the files of a folder really take of the device: holes take nothing."""
    total = 0
    with os.scandir(folder) as found:
        for item in found:
            if item.is_file(follow_symlinks=False):
                total += item.stat(follow_symlinks=False).st_blocks * BLOCK_BYTES
    return total


def _free_bytes(folder: Path) -> int:
    facts = os.statvfs(folder)
    return facts.f_bavail * facts.f_frsize
