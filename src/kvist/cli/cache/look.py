"""``stat``, ``ls`` and ``verify``: what is in a place, and whether it is whole."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from kvist.cli.cache.bar import byte_bar
from kvist.cli.cache.chains import Book, Chain
from kvist.cli.cache.opening import changed, looked_into, tidied, unsealed
from kvist.cli.cache.place import Place, place_of
from kvist.cli.cache.tables import (
    FIRST_TOKENS,
    chains_table,
    counted,
    facts_table,
    shares_table,
    token_ids,
    usage_bar,
)
from kvist.cli.plan.screen import screen
from kvist.errors import BadValue
from kvist.ids import RecordId
from kvist.tier.base import Entry
from kvist.units import format_bytes

SORTS: Final[Mapping[str, Callable[[Chain], Any]]] = {
    "used": lambda chain: -chain.used,
    "hits": lambda chain: -chain.hits,
    "tokens": lambda chain: -chain.tokens,
    "bytes": lambda chain: -chain.data_bytes,
    "tenant": lambda chain: chain.last[0].label.tenant,
    "origin": lambda chain: chain.last[0].label.origin,
    "id": lambda chain: chain.id,
}
MOST_LINES: Final = 50
READ_TIMEOUT_S: Final = 60.0
READ_BYTES: Final = 32 << 20


def stat(params: Mapping[str, Any]) -> None:
    """A place as a whole."""
    from kvist.cli.cache.facts import gather_facts

    place = place_of(params)
    with looked_into(place) as tier:
        facts = gather_facts(place, tier, count=not params["quick"])
    if params["as_json"]:
        print(json.dumps(facts.to_json(), ensure_ascii=False))
        return
    with screen() as console:
        console.print(facts_table(facts))
        bar = usage_bar(facts, ascii_only=console.options.ascii_only)
        if bar is not None:
            console.print(bar)
        for what, shares in (("model (origin)", facts.origins), ("tenant", facts.tenants)):
            if shares:
                console.print(shares_table(what, shares))


def ls(params: Mapping[str, Any]) -> None:
    """Chains of records."""
    if params["sort"] not in SORTS:
        raise BadValue("sort", params["sort"], ", ".join(SORTS))
    limit = params["limit"]
    if limit is not None and limit < 0:
        raise BadValue("limit", limit, "a count, 0 for all")
    place = place_of(params)
    with looked_into(place) as tier:
        is_sealed = place.sealed and place.key is None
        seen = unsealed(tier, place) if place.sealed and not is_sealed else tier
        book = Book(of_origin(seen.list(tenant=params["tenant"]), params["origin"]))
    chains = sorted(book.chains(), key=lambda chain: chain.id)
    by_use = sorted(chains, key=lambda chain: -chain.used)
    order = {chain.id: n + 1 for n, chain in enumerate(by_use)}
    chains.sort(key=SORTS[params["sort"]])
    if params["as_json"]:
        told = [_chain_json(chain, order, is_sealed) for chain in _cut(chains, limit)]
        if params["tokens"]:
            told = [one | {"first_tokens": _first(c, book, is_sealed)} for one, c in zip(told, chains, strict=False)]
        print(json.dumps(told, ensure_ascii=False))
        return
    _draw(chains, MOST_LINES if limit is None else limit, book, order, is_sealed, params["tokens"])


def _cut(chains: list[Chain], limit: int | None) -> list[Chain]:
    return chains[:limit] if limit else chains


def _draw(
    chains: list[Chain], limit: int, book: Book, order: Mapping[RecordId, int], is_sealed: bool, tokens: bool
) -> None:
    if not chains:
        print("there are no such records")
        return
    shown = _cut(chains, limit)
    firsts = [", ".join(map(str, _first(c, book, is_sealed))) or "sealed" for c in shown] if tokens else None
    with screen() as console:
        console.print(chains_table(shown, order, firsts, is_sealed))
    records = book.entries.values()
    held = format_bytes(sum(entry.data_bytes for entry in records))
    part = f"{len(shown):,} of " if len(shown) < len(chains) else ""
    shared = " (chains share what they begin with)" if len(chains) > 1 else ""
    print(f"{part}{counted(len(chains), 'chain')}; {counted(len(records), 'record')}, {held} in all{shared}")
    if not all(chain.whole for chain in shown):
        print("* its beginning is not there: such records are of no use to anybody (kvist cache rm --id)")
    if is_sealed:
        print("the place is sealed: these are sealed ids; --tier-key shows true ids and tokens")
    if tokens:
        print("token ids are what people wrote: whoever has the tokenizer can read them", file=sys.stderr)


def _first(chain: Chain, book: Book, is_sealed: bool) -> list[int]:
    return [] if is_sealed else token_ids(book.path(chain.id)[0].label.tokens, FIRST_TOKENS)


def _chain_json(chain: Chain, order: Mapping[RecordId, int], is_sealed: bool) -> dict[str, Any]:
    label = chain.last[0].label
    return {
        "id": chain.id.hex(),
        "ids": [entry.label.id.hex() for entry in chain.last],
        "parent": label.parent.hex(),
        "depth": label.depth,
        "tenant": label.tenant,
        "origin": label.origin.hex(),
        "records": chain.records,
        "tokens": None if is_sealed else chain.tokens,
        "data_bytes": chain.data_bytes,
        "stored_bytes": chain.stored_bytes,
        "used": chain.used,
        "last_use": order[chain.id] if chain.used else None,
        "hits": chain.hits,
        "whole": chain.whole,
    }


def of_origin(entries: Iterable[Entry], prefix: str | None) -> Iterable[Entry]:
    """Those whose origin begins with a text of hex digits. Raises ``BadValue``."""
    if prefix is None:
        return entries
    wanted = prefix.lower()
    if not wanted or set(wanted) - set("0123456789abcdef"):
        raise BadValue("origin", prefix, "hex digits, as kvist cache stat has them")
    return (entry for entry in entries if entry.label.origin.hex().startswith(wanted))


def verify(params: Mapping[str, Any]) -> int:
    """Read all of a place; 1 where something was wrong."""
    place = place_of(params)
    report = _verify_folder(place) if place.folder else _verify_other(place)
    if params["as_json"]:
        print(json.dumps(report, ensure_ascii=False))
    else:
        kept = "" if report["removed"] else " and left there: the place is read-only"
        print(
            f"{counted(report['good'], 'record')} good ({format_bytes(report['bytes'])} read),"
            f" {report['damaged']:,} damaged{' and removed' if report['removed'] else kept},"
            f" {report['unreadable']:,} unreadable, {report['foreign_files']:,} foreign files left alone"
        )
        for name, n in report["damaged_in"].items():
            print(f"damaged: {counted(n, 'record')} in {name}")
        for lost in report["lost_with"]:
            print(f"lost: {lost['what']}")
        if report["missing"]:
            print(f"{report['missing']:,} went away while they were being read")
    return int(report["damaged"] + report["unreadable"] + report["lost"] > 0)


def _verify_folder(place: Place) -> dict[str, Any]:
    with tidied(place, "verify") as tier:
        with byte_bar("reading") as bar:
            found = tier.verify(bar)
        usage = tier.usage()
    good = found.records - found.damaged - found.missing - found.unreadable
    return {
        "place": place.shown,
        "records": found.records,
        "good": good,
        "damaged": found.damaged,
        "damaged_in": dict(found.damaged_in),
        "lost": sum(one.records for one in found.lost),
        "lost_with": [{"file": one.file, "records": one.records, "what": str(one)} for one in found.lost],
        "removed": usage.condition == "ok",
        "missing": found.missing,
        "unreadable": found.unreadable,
        "bytes": found.bytes,
        "foreign_files": usage.foreign_files,
    }


def _verify_other(place: Place) -> dict[str, Any]:
    """Every record that the place lists. It counts as a use there, of all alike."""
    count = dict.fromkeys(("hit", "missing", "damaged", "foreign", "timeout", "error"), 0)
    done = 0
    with changed(place) as tier, byte_bar("reading") as bar:
        entries = list(tier.list())
        total = sum(entry.data_bytes for entry in entries)
        for part in _parts(entries):
            buffers = [memoryview(bytearray(entry.data_bytes)) for entry in part]
            for how, _ in tier.get_many_into([e.label.id for e in part], buffers, timeout_s=READ_TIMEOUT_S):
                count[how] += 1
            done += sum(entry.data_bytes for entry in part)
            bar(done, total)
        usage = tier.usage()
    return {
        "place": place.shown,
        "records": len(entries),
        "good": count["hit"],
        "damaged": count["damaged"],
        "damaged_in": {},
        "lost": 0,
        "lost_with": [],
        "removed": True,
        "missing": count["missing"],
        "unreadable": count["foreign"] + count["timeout"] + count["error"],
        "bytes": done,
        "foreign_files": usage.foreign_files,
    }


def _parts(entries: Sequence[Entry]) -> Iterable[list[Entry]]:
    part: list[Entry] = []
    for entry in entries:
        part.append(entry)
        if sum(e.data_bytes for e in part) >= READ_BYTES:
            yield part
            part = []
    if part:
        yield part
