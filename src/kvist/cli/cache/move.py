"""``export`` and ``import``: a conversation's chain as one file, to keep or to take elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvist.cli.cache.bar import byte_bar
from kvist.cli.cache.chains import TOKEN_BYTES
from kvist.cli.cache.nowhere import Nowhere
from kvist.cli.cache.opening import NO_BOUND, changed, check_cache, keyring_of, master_key_of, unsealed
from kvist.cli.cache.place import place_of, places_of
from kvist.cli.cache.several import all_looked_into
from kvist.cli.cache.tables import clean, counted
from kvist.cli.cache.tidy import ORIGIN_BYTES
from kvist.errors import BadValue, StateError, UsageError
from kvist.tier.base import Entry
from kvist.tier.bundle import Summary
from kvist.tier.disk.folder import MARKER
from kvist.units import format_bytes


def export(params: Mapping[str, Any]) -> None:
    """One chain into a file: wholly or not at all. Each record from the first tier of the config that has it."""
    from kvist.tier.bundle import write_bundle

    file = Path(params["file"])
    _check_file(file, params["force"])
    with all_looked_into(places_of(params)) as shelf:
        path = shelf.book.whole_path(shelf.book.find(params["id"]))
        sizes = sorted({entry.data_bytes for entry in path})
        if len(sizes) > 1:
            raise UsageError(f"the chain has records of {len(sizes)} sizes", remedy="export a chain of one model")
        about = _about(path)
        with byte_bar("exporting") as bar:
            ids = [entry.label.id for entry in path]
            view = shelf.view(path[-1].label.tenant)
            done = write_bundle(file, view, ids, about, record_bytes=sizes[0], on_progress=bar)
    if params["as_json"]:
        print(json.dumps({"file": str(file), **_summary(done)}, ensure_ascii=False))
        return
    print(
        f"{file}: {counted(done.records, 'record')}, {about['tokens']:,} tokens, {format_bytes(done.file_bytes)}"
        f" of model {about['origin']}"
    )
    print("the file is not sealed: it has what people wrote, and the KV made of it", file=sys.stderr)


def _check_file(file: Path, force: bool) -> None:
    if file.is_dir() or not file.parent.is_dir():
        raise UsageError(f"{file} cannot be written", remedy="name a file in a folder that exists")
    if file.exists() and not force:
        raise UsageError(f"{file} is there already", remedy="--force overwrites it")
    parent = file.resolve().parent
    for folder in {parent, *parent.parents, file.parent.resolve()}:
        if (folder / MARKER).exists():
            raise UsageError(f"{file} would lie in the cache {folder}", remedy="name a file elsewhere")


def _about(path: Sequence[Entry]) -> dict[str, Any]:
    """What the file says of itself."""
    from importlib.metadata import version

    last = path[-1].label
    of_group = [entry for entry in path if entry.label.id[-2:] == last.id[-2:]]
    return {
        "kvist": version("kvist"),
        "origin": last.origin.hex(),
        "tenant": last.tenant,
        "chain": last.id.hex(),
        "tokens": sum(len(entry.label.tokens) for entry in of_group) // TOKEN_BYTES,
        "block_tokens": len(path[0].label.tokens) // TOKEN_BYTES,
        "record_bytes": path[0].data_bytes,
        "records": len(path),
    }


def import_(params: Mapping[str, Any]) -> int:
    """A file's chain into a place. 1 where the place did not take all of it."""
    from kvist.tier.bundle_read import read_about, read_bundle

    place, file = place_of(params), Path(params["file"])
    origin = _origin(params["origin"])
    about = read_about(file)
    if not params["as_json"]:
        _say(file, about)
    check_cache(place, create=params["create"])
    if place.sealed:
        keyring_of(place)
    elif place.key is not None:
        master_key_of(place.key)
    if place.folder is not None and not (place.folder / MARKER).exists():
        # A cache is made only for what it will take: the file is read to its end first.
        read_bundle(file, Nowhere(), origin=origin)
    with changed(place, size_bytes=place.size_bytes or NO_BOUND, create=params["create"]) as tier:
        target = tier if place.key is None else unsealed(tier, place, new=True)
        with byte_bar("importing") as bar:
            done = read_bundle(file, target, origin=origin, on_progress=bar)
        if done.lost and place.folder:
            reason = tier.usage().reason
            done_reason = f"{done.reason} ({reason})" if reason else done.reason
        else:
            done_reason = done.reason
    if params["as_json"]:
        print(json.dumps({"place": place.shown, **_summary(done)}, ensure_ascii=False))
    else:
        print(f"{counted(done.stored, 'record')} stored, {done.known:,} were there already, {done.lost:,} not taken")
    if done.lost:
        taken = done.stored + done.known
        raise StateError(
            f"{place.shown} took {taken:,} of {done.records:,} records: {done_reason}",
            remedy="what it took is a whole beginning of the chain, and of use",
        )
    return 0


def _origin(text: str | None) -> bytes:
    """Empty: whatever the file is of. Its keys are made from its model: no other model ever asks for them."""
    if text is None:
        return b""
    try:
        origin = bytes.fromhex(text)
    except ValueError:
        origin = b""
    if len(origin) != ORIGIN_BYTES:
        raise BadValue("origin", text, f"{2 * ORIGIN_BYTES} hex digits, as kvist cache stat has them")
    return origin


def _say(file: Path, about: Mapping[str, Any]) -> None:
    """What a file says of itself; only one line for each, and nothing that a terminal would obey."""
    print(f"{file}:")
    for name, value in {"origin": "the file does not say", **about}.items():
        if isinstance(value, str | int | float):
            print(f"  {clean(name)}: {clean(str(value))[:200]}")


def _summary(done: Summary) -> dict[str, Any]:
    return {
        "records": done.records,
        "data_bytes": done.data_bytes,
        "file_bytes": done.file_bytes,
        "stored": done.stored,
        "known": done.known,
        "lost": done.lost,
        "reason": done.reason,
        "about": dict(done.about),
    }
