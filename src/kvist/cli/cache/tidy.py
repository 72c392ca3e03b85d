"""``gc`` and ``rm``: giving room back, and removing records for good."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from kvist.cli.cache.chains import Book
from kvist.cli.cache.facts import on_disk_bytes
from kvist.cli.cache.look import of_origin
from kvist.cli.cache.opening import changed, keyring_of, looked_into, tidied, unsealed
from kvist.cli.cache.place import Place, place_of
from kvist.cli.cache.tables import clean, counted
from kvist.errors import BadValue, StateError, UsageError
from kvist.ids import RecordId
from kvist.units import format_bytes

if TYPE_CHECKING:
    from kvist.tier.base import Tier
    from kvist.tier.disk.store import DiskTier

ORIGIN_BYTES = 16
SERVERS_OWN = ("answers.db", "sessions")
"""What servers keep beside the records: the ids of answers, and saved sessions."""


def gc(params: Mapping[str, Any]) -> None:
    """Give back what nothing uses."""
    place = place_of(params)
    before = on_disk_bytes(place.folder) if place.folder and place.folder.is_dir() else 0
    with tidied(place, "gc") as tier:
        _done(tier.gc(), place, tier)
    assert place.folder is not None
    after = on_disk_bytes(place.folder)
    freed = max(0, before - after)
    if params["as_json"]:
        print(json.dumps({"place": place.shown, "freed_bytes": freed, "on_disk_bytes": after}))
    else:
        print(f"{format_bytes(freed)} came free: {format_bytes(before)} on disk before, {format_bytes(after)} now")


@dataclass(frozen=True, slots=True)
class _Removal:
    """What is to go: in words, how much of it was seen, and the deed. The deed says how many records went."""

    what: str
    records: int
    data_bytes: int
    act: Callable[[Tier], int]


def rm(params: Mapping[str, Any]) -> None:
    """Remove chains, a tenant, a model, or everything."""
    chosen = [name for name in ("ids", "tenant", "origin", "everything") if params[name] not in (None, False, [], ())]
    if len(chosen) != 1:
        raise UsageError("name what is to go", remedy="one of --id ID (repeatable), --tenant, --origin or --all")
    place = place_of(params)
    removal = {"ids": _chains, "tenant": _tenant, "origin": _origin, "everything": _all}[chosen[0]](params, place)
    if removal.records:
        question = f"remove {removal.what} from {place.shown}: {counted(removal.records, 'record')}"
        _agree(f"{question}, {format_bytes(removal.data_bytes)}?", params["yes"])
    if place.folder is not None:
        with tidied(place, "rm") as disk:
            removed = _done(removal.act(disk), place, disk)
            if chosen == ["everything"]:
                disk.gc()
    else:
        with changed(place) as tier:
            removed = _done(removal.act(tier), place, tier)
    if params["as_json"]:
        print(json.dumps({"place": place.shown, "removed_records": removed}))
    else:
        print(f"removed {removal.what}: {counted(removed, 'record')}")
    if chosen == ["tenant"] and not removed:
        print("no tenant of that name had records there: kvist cache stat lists who has", file=sys.stderr)
    there = [name for name in SERVERS_OWN if place.folder and (place.folder / name).exists()]
    if there and chosen[0] in ("tenant", "everything"):
        print(f"{' and '.join(there)} there are the server's, and stay as they are", file=sys.stderr)


def _chains(params: Mapping[str, Any], place: Place) -> _Removal:
    opened = place.sealed and place.key is not None
    with looked_into(place) as tier:
        book = Book((unsealed(tier, place) if opened else tier).list())
    wanted = [entry.label.id for text in params["ids"] for entry in book.find(text)]
    gone: list[RecordId] = sorted(book.branch(wanted), key=lambda id: -book.entries[id].label.depth)

    def act(tier: Tier) -> int:
        return (unsealed(tier, place) if opened else tier).delete(ids=gone)

    named = ", ".join(params["ids"])
    return _Removal(f"what ends in or goes through {named}", len(gone), _bytes(book, gone), act)


def _bytes(book: Book, ids: list[RecordId]) -> int:
    return sum(book.entries[id].data_bytes for id in ids)


def _tenant(params: Mapping[str, Any], place: Place) -> _Removal:
    tenant = params["tenant"]
    if place.sealed:
        keyring_of(place)  # before anything is asked or removed: without it his key could not be destroyed
    with looked_into(place) as tier:
        book = Book(tier.list(tenant=tenant))

    def act(tier: Tier) -> int:
        return unsealed(tier, place).wipe(tenant) if place.sealed else tier.delete(tenant=tenant)

    what = f"tenant {clean(tenant)}" + (" and his key" if place.sealed else "")
    return _Removal(what, len(book.entries), _bytes(book, list(book.entries)), act)


def _origin(params: Mapping[str, Any], place: Place) -> _Removal:
    with looked_into(place) as tier:
        book = Book(of_origin(tier.list(), params["origin"]))
    found = sorted({entry.label.origin for entry in book.entries.values()})
    if len(found) > 1:
        raise UsageError(f"{len(found)} origins begin with {params['origin']}", remedy="say more of it")
    if not found and len(params["origin"]) != 2 * ORIGIN_BYTES:
        raise BadValue("origin", params["origin"], "one that is there", remedy="kvist cache stat lists them")
    origin = found[0] if found else bytes.fromhex(params["origin"])
    return _Removal(
        f"model {origin.hex()}",
        len(book.entries),
        _bytes(book, list(book.entries)),
        lambda tier: tier.delete(origin=origin),
    )


def _all(params: Mapping[str, Any], place: Place) -> _Removal:
    with looked_into(place) as tier:
        book = Book(tier.list())
    keys = keyring_of(place) if place.sealed and place.key is not None else None

    def act(tier: Tier) -> int:
        for tenant in keys.tenants() if keys is not None else ():
            keys.forget(tenant)  # type: ignore[union-attr]
        if place.folder is not None:
            return cast("DiskTier", tier).clear()  # also what could not be listed
        origins = sorted({entry.label.origin for entry in book.entries.values()})
        removed = [tier.delete(origin=origin) for origin in origins]
        return min(removed) if min(removed, default=0) < 0 else sum(removed)

    what = "everything" + (" and all tenants' keys" if keys is not None else "")
    return _Removal(what, len(book.entries), _bytes(book, list(book.entries)), act)


def _agree(question: str, yes: bool) -> None:
    """Raises ``UsageError`` where nobody can be asked, ``StateError`` for a no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"not asked: {question}", remedy="--yes does it without asking")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise StateError("nothing was removed", remedy="answer y to remove")


def _done(count: int, place: Place, tier: Tier) -> int:
    """Raises ``StateError`` for what could not be done, with the reason that the tier has."""
    if count >= 0:
        return count
    usage = tier.usage()
    why = getattr(tier, "trouble", "") or usage.reason or "it is busy"
    if usage.condition == "ok":
        raise StateError(f"{place.shown} could not be changed, or not to the end: {why}", remedy="try again")
    remedy = "free some room there, and try again" if getattr(tier, "is_full", False) else "nothing was changed"
    raise StateError(f"{place.shown} is {usage.condition}: {why}", remedy=remedy)
