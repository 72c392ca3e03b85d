"""From what was typed, the environment and the config file to a place."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from kvist.cli.options import merge
from kvist.config import OPTIONS, TierConfig
from kvist.errors import BadValue, UsageError
from kvist.runtime.places import FOLDER_BYTES, KEY_IN_ENVIRONMENT, KEYRING_NAME, folder_of, place_url
from kvist.tier.registry import Url, redacted
from kvist.units import GIB

OPTIONS_HERE: Final = {name: OPTIONS[name] for name in ("tier", "tier_key")}


@dataclass(frozen=True, slots=True)
class Place:
    """A place that was named. ``folder`` is set for a disk tier; its ``size_bytes`` is None where nobody gave one.

    ``keyring`` is where the tenants' keys lie, if this place is sealed; ``key`` what was given to open them.
    """

    url: str
    folder: Path | None
    size_bytes: int | None
    reserve_bytes: int
    sync: bool
    read_only: bool
    keyring: Path | None
    key: str | None

    @property
    def shown(self) -> str:
        """For people: without a password."""
        return str(self.folder) if self.folder else redacted(self.url)

    @property
    def sealed(self) -> bool:
        """Whether tenants' keys lie where this place's keys would."""
        return self.keyring is not None and self.keyring.is_file()

    @property
    def capacity_bytes(self) -> int:
        """What a server that was given this place would let its folder take."""
        return FOLDER_BYTES if self.size_bytes is None else self.size_bytes


def place_of(params: Mapping[str, Any]) -> Place:
    """PLACE, or the first disk tier (else the first other one) of ``KVIST_TIER`` or the config file.

    Raises ``UsageError`` and ``BadValue``.
    """
    known, key = _configured(params)
    named = params.get("place")
    if named is None:
        usable = [url for url in known if not url.startswith("ram:")]
        usable.sort(key=lambda url: not url.startswith("disk:"))
        if not usable:
            raise UsageError(
                "no place was named",
                remedy="name a folder or a tier, as in kvist cache stat ~/.cache/kvist, or set KVIST_TIER",
            )
        url = usable[0]
    else:
        url = _url_of(named)
        url = next((other for other in known if _is_bare(url, named) and _folder(other) == _folder(url)), url)
    if url.startswith("ram:"):
        raise BadValue("place", url, "a place that outlives its server", remedy="ask the server itself: GET /metrics")
    return _place(url, key, known)


def places_of(params: Mapping[str, Any]) -> list[Place]:
    """PLACE first; and where it is one of the tiers of ``KVIST_TIER`` or the config file, the others by their speed.

    Raises ``UsageError`` and ``BadValue``.
    """
    named = place_of(params)
    known, key = _configured(params)
    others = [_place(url, key, known) for url in known if not url.startswith("ram:")]
    mine = [other for other in others if (other.folder or other.url) == (named.folder or named.url)]
    return [named, *(other for other in others if other not in mine)] if mine else [named]


def _configured(params: Mapping[str, Any]) -> tuple[list[str], str | None]:
    """Tiers and the key's file, of the flags, the environment and the config file."""
    merged = merge(params, OPTIONS_HERE)
    listed: Sequence[str] = merged["tier"][0] if "tier" in merged else ()
    key: str | None = merged["tier_key"][0] if "tier_key" in merged else None
    return [place_url(text) for text in listed], key


def _url_of(text: str) -> str:
    if not text:
        raise BadValue("place", text, "a folder, or a tier such as redis://host or s3://bucket")
    return place_url(text if ":" in text or text.startswith(("/", "~", ".")) else f"./{text}")


def _is_bare(url: str, named: str) -> bool:
    """Whether only a folder was named: then a tier of the config with this folder says the rest."""
    return url.startswith("disk:") and not named.startswith("disk:")


def _folder(url: str) -> Path | None:
    if not url.startswith("disk:"):
        return None
    path = unquote(url.removeprefix("disk:").partition("?")[0].removeprefix("//"))
    if not path:
        raise BadValue("place", url, "a folder, such as disk:/var/cache/kvist")
    return Path(os.path.realpath(Path(path).expanduser()))


def _place(url: str, key: str | None, known: Sequence[str]) -> Place:
    folder = _folder(url)
    size, reserve, sync, read_only = None, GIB, True, False
    if folder is not None:
        rest, _, query = url.partition(":")[2].partition("?")
        try:
            said = Url("disk", rest, url, dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))))
        except ValueError:
            raise BadValue("place", url, "options such as ?size=10GiB&reserve=1GiB") from None
        said.refuse_options_but("size", "reserve", "sync", "read_only")
        given = said.bytes("size", FOLDER_BYTES)
        size = given if "size" in said.options and given != FOLDER_BYTES else None
        reserve, sync, read_only = said.bytes("reserve", GIB), said.flag("sync", default="on"), said.flag("read_only")
    return Place(url, folder, size, reserve, sync, read_only, _keyring_path(url, key, known), key)


def _keyring_path(url: str, key: str | None, known: Sequence[str]) -> Path | None:
    """Where a server keeps the tenants' keys: in its cache folder, else beside the key file."""
    folder = folder_of(TierConfig(places=(url, *known)))
    if folder is None and key not in (None, KEY_IN_ENVIRONMENT):
        folder = Path(str(key)).expanduser().parent
    return None if folder is None else folder / KEYRING_NAME
