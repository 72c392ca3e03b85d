"""An open place. Looking never makes or changes anything, and nothing is made by mistake."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvist.cli.cache.place import Place
from kvist.errors import StateError, UsageError
from kvist.ids import RECORD_ID_BYTES, RecordId
from kvist.runtime.places import KEY_IN_ENVIRONMENT, KEYRING_NAME
from kvist.tier.disk.folder import MARKER
from kvist.tier.registry import open_tier

if TYPE_CHECKING:
    from kvist.tier.base import Tier
    from kvist.tier.disk.store import DiskTier
    from kvist.tier.keyring import Keyring
    from kvist.tier.seal import Sealed

NO_BOUND: Final = 1 << 60
"""The size a folder is looked into and tidied with: nothing is evicted because it does not fit in a guess."""

FAILURES: Final = 3
"""A remote tier takes its place for dead after so many in a row."""

NOBODY: Final = RecordId(bytes(RECORD_ID_BYTES))
ASK_TIMEOUT_S: Final = 5.0


def check_cache(place: Place, *, create: bool = False) -> None:
    """Raises ``UsageError`` for a folder that is no cache; with ``create`` a missing or an empty one may become one."""
    folder = place.folder
    if folder is None or (folder / MARKER).is_file():
        return
    hint = "name the folder that kvist serve --tier was given"
    if create:
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return
        hint = "--create makes a cache in a new or an empty folder only"
    if not folder.exists():
        raise UsageError(f"there is no folder {folder}", remedy=hint)
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder", remedy=hint)
    raise UsageError(f"{folder} is no cache of kvist: there is no {MARKER} in it", remedy=hint)


@contextmanager
def looked_into(place: Place) -> Iterator[Tier]:
    """The place, to read only. Raises ``KvistError``."""
    check_cache(place)
    _quiet(logging.CRITICAL)
    try:
        tier = (
            _disk(place, read_only=True, size_bytes=NO_BOUND)
            if place.folder
            else open_tier(place.url, ask_timeout_s=ASK_TIMEOUT_S)
        )
    except StateError as error:
        if "cannot be opened" not in error.what:
            raise
        raise StateError(error.what, remedy="kvist cache gc makes a damaged index anew from the slabs") from error
    try:
        _check_answers(tier, place)
        yield tier
    finally:
        tier.close()


@contextmanager
def changed(place: Place, *, size_bytes: int = NO_BOUND, create: bool = False) -> Iterator[Tier]:
    """The place, to change it. Raises ``KvistError``, also when it takes no change now."""
    check_cache(place, create=create)
    _quiet(logging.WARNING if place.folder else logging.CRITICAL)
    tier = (
        _disk(place, read_only=False, size_bytes=size_bytes)
        if place.folder
        else open_tier(place.url, ask_timeout_s=ASK_TIMEOUT_S)
    )
    try:
        _check_answers(tier, place)
        usage = tier.usage()
        if usage.condition != "ok":
            raise StateError(f"{place.shown} is {usage.condition}: {usage.reason}", remedy="nothing was changed")
        yield tier
    finally:
        tier.close()


@contextmanager
def tidied(place: Place, what: str) -> Iterator[DiskTier]:
    """A disk tier, to do ``what`` only such a one can, as far as it can be changed. Raises ``KvistError``."""
    if place.folder is None:
        raise UsageError(f"{place.shown} is no disk tier", remedy=f"kvist cache {what} is for folders")
    check_cache(place)
    _quiet(logging.WARNING)
    tier = _disk(place, read_only=False, size_bytes=NO_BOUND)
    try:
        yield tier
    finally:
        tier.close()


def _disk(place: Place, *, read_only: bool, size_bytes: int) -> DiskTier:
    from kvist.tier.disk.store import DiskTier

    assert place.folder is not None
    return DiskTier.open(
        place.folder,
        capacity_bytes=size_bytes,
        reserve_bytes=place.reserve_bytes,
        sync=place.sync,
        read_only=read_only,
    )


def _check_answers(tier: Tier, place: Place) -> None:
    """Raises ``StateError`` for a place that cannot be asked."""
    for _ in range(0 if place.folder else FAILURES):
        tier.exists_many([NOBODY])
    usage = tier.usage()
    if usage.condition == "off":
        raise StateError(f"the {tier.name} tier does not answer: {usage.reason}", remedy="see that it runs")


def keyring_of(place: Place, *, new: bool = False) -> Keyring:
    """The tenants' keys of a sealed place, opened. Raises ``UsageError``; a keyring is only made where ``new`` is."""
    from kvist.tier.keyring import Keyring

    if place.key is None:
        raise UsageError(f"{place.shown} is sealed", remedy="give the key: --tier-key FILE, or env")
    if place.keyring is None or not (new or place.sealed):
        raise UsageError(f"{place.shown} has no tenants' keys ({KEYRING_NAME})", remedy="it was not sealed with a key")
    return Keyring(place.keyring, master_key_of(place.key))


def master_key_of(key: str) -> bytes:
    """What was given with ``--tier-key``, read. Raises ``UsageError``."""
    from kvist.tier.master_key import read_master_key

    return read_master_key(None if key == KEY_IN_ENVIRONMENT else Path(key).expanduser())


def unsealed(tier: Tier, place: Place, *, new: bool = False) -> Sealed:
    """The tier as who has the key sees it. Raises ``UsageError``."""
    from kvist.tier.seal import Sealed

    return Sealed(tier, keyring_of(place, new=new))


def _quiet(level: int) -> None:
    """What a tier logs is for servers: here it is a line for the person who asked, or nothing.

    How the place is now is left out: what could not be done for it is an error, and that says why.
    """
    log = logging.getLogger("kvist.tier")
    log.setLevel(level)
    if not log.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("note: %(message)s"))
        handler.addFilter(lambda record: not hasattr(record, "condition"))
        log.addHandler(handler)
        log.propagate = False
