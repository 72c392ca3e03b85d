"""A tier from one line of text: ``ram:2GiB``, ``disk:/path?size=10GiB``, ``redis://host``, ``s3://bucket``, ...

What a place cannot be asked for is refused with what can: an option nobody knows, a size that is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from kvist.errors import BadValue
from kvist.tier.base import Tier
from kvist.tier.pack import Packer
from kvist.tier.ram import RamTier
from kvist.tier.remote.dial import Address, Pool
from kvist.tier.remote.tier import RemoteTier
from kvist.tier.remote.valkey import ValkeyPlace
from kvist.units import GIB, MIB, parse_bytes

LONGEST_TIMEOUT_S: Final = 3600.0
S3_ASK_S: Final = 5.0
"""A question to a bucket is a request for each record, of tens of milliseconds each."""


@dataclass(frozen=True, slots=True)
class Url:
    """A parsed place. ``shown`` is what may be printed: the text without user and password."""

    scheme: str
    rest: str
    shown: str
    options: Mapping[str, str]

    def refuse_options_but(self, *known: str) -> None:
        """Raises ``BadValue`` for an option that the place does not know."""
        for name in self.options:
            if name not in known:
                raise BadValue("tier", self.shown, f"of the options {', '.join(known)}, not {name!r}")

    def bytes(self, name: str, default: int) -> int:
        """An option that is a size."""
        return parse_bytes(self.options[name], name=name) if name in self.options else default

    def seconds(self, name: str, default: float) -> float:
        """An option that is a time."""
        text = self.options.get(name, str(default))
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= LONGEST_TIMEOUT_S:
            raise BadValue(name, text, f"seconds, above 0 and at most {LONGEST_TIMEOUT_S:.0f}")
        return value

    def whole(self, name: str, default: int, *, least: int, most: int) -> int:
        """An option that is a whole number."""
        text = self.options.get(name, str(default))
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise BadValue(name, text, f"a whole number from {least} to {most}")
        return int(text)

    def flag(self, name: str, default: str = "off") -> bool:
        """An option that is on or off."""
        text = self.options.get(name, default)
        if text not in ("on", "off"):
            raise BadValue(name, text, "on or off")
        return text == "on"

    def packer(self) -> Packer | None:
        """The option ``pack``: ``off``, or the bytes of an element (1, 2 or 4)."""
        text = self.options.get("pack", "off")
        if text not in ("off", "1", "2", "4"):
            raise BadValue("pack", text, "off, or the bytes of an element: 1 (int8t), 2 (f16, bf16) or 4 (f32)")
        return None if text == "off" else Packer(element_bytes=int(text))


def schemes() -> tuple[str, ...]:
    """What a tier's text can begin with."""
    return tuple(_OPENERS)


def open_tier(url: str, *, name: str = "", ask_timeout_s: float = 1.0) -> Tier:
    """The tier at ``url``. ``name``: what metrics call it (default: its kind).

    A remote place need not answer now: it is a tier that is off until it does. ``ask_timeout_s`` bounds a question to
    a remote that has no timeout of its own. Raises ``BadValue`` or ``UsageError``.
    """
    scheme, colon, rest = url.partition(":")
    scheme = scheme.lower()
    if not colon or scheme not in _OPENERS:
        raise BadValue("tier", redacted(url), f"a place that begins with one of {', '.join(s + ':' for s in _OPENERS)}")
    rest, _, query = rest.partition("?")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise BadValue("tier", redacted(url), "options such as ?size=10GiB&name=value") from None
    return _OPENERS[scheme](Url(scheme, rest, redacted(url), dict(pairs)), name, ask_timeout_s)


def redacted(url: str) -> str:
    """``url`` without what stands before its last @: that may hold a password."""
    scheme, _, rest = url.partition(":")
    if "@" not in rest or scheme.lower() in ("ram", "disk", "unix"):
        return url
    return f"{scheme}://{rest.rpartition('@')[2]}"


def _ram(url: Url, name: str, ask_timeout_s: float) -> Tier:
    url.refuse_options_but("pack")
    return RamTier(parse_bytes(url.rest, name="ram"), packer=url.packer(), name=name or "ram")


def _disk(url: Url, name: str, ask_timeout_s: float) -> Tier:
    from kvist.tier.disk.store import DiskTier

    url.refuse_options_but("size", "reserve", "sync", "read_only")
    path = unquote(url.rest.removeprefix("//"))
    if not path:
        raise BadValue("tier", url.shown, "a folder, such as disk:/var/cache/kvist?size=10GiB")
    if "size" not in url.options:
        raise BadValue("tier", url.shown, "a size, such as disk:/var/cache/kvist?size=10GiB")
    tier = DiskTier.open(
        Path(path).expanduser(),
        capacity_bytes=url.bytes("size", 0),
        reserve_bytes=url.bytes("reserve", GIB),
        sync=url.flag("sync", default="on"),
        read_only=url.flag("read_only"),
    )
    if name:
        tier.name = name
    return tier


def _valkey(url: Url, name: str, ask_timeout_s: float) -> Tier:
    url.refuse_options_but("db", "connect_timeout", "ask_timeout")
    if url.scheme == "unix":
        path = unquote(url.rest.removeprefix("//"))
        if not path:
            raise BadValue("tier", url.shown, "the path of a socket, such as unix:///run/valkey.sock")
        address = Address(path=path, database=url.whole("db", 0, least=0, most=1 << 20))
    else:
        address = _host_address(url)
    pool = Pool(address, connect_timeout_s=url.seconds("connect_timeout", 1.0))
    return RemoteTier(ValkeyPlace(pool), name=name or "valkey", ask_timeout_s=url.seconds("ask_timeout", ask_timeout_s))


def _host_address(url: Url) -> Address:
    try:
        parts = urlsplit(f"redis:{url.rest}")
        host, port = parts.hostname or "", parts.port or 6379
    except ValueError:
        raise BadValue("tier", url.shown, "a port from 1 to 65535, as in redis://host:6379/0") from None
    if not host:
        raise BadValue("tier", url.shown, "a host, as in redis://host:6379/0")
    database = parts.path.strip("/") or url.options.get("db", "0")
    if not database.isascii() or not database.isdigit():
        raise BadValue("tier", url.shown, "a database that is a number, as in redis://host:6379/0")
    return Address(
        host=host,
        port=port,
        tls=url.scheme in ("rediss", "valkeys"),
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=int(database),
    )


def _s3(url: Url, name: str, ask_timeout_s: float) -> Tier:
    from kvist.tier.remote.s3 import S3Place

    url.refuse_options_but("endpoint", "region", "threads", "pack", "ask_timeout")
    bucket, _, prefix = unquote(url.rest.removeprefix("//")).partition("/")
    if len(bucket) < 3:
        raise BadValue("tier", url.shown, "a bucket, as in s3://bucket/prefix?region=eu-north-1")
    place = S3Place(
        bucket,
        prefix.strip("/"),
        endpoint=url.options.get("endpoint", ""),
        region=url.options.get("region", ""),
        threads=url.whole("threads", 8, least=1, most=64),
        packer=url.packer(),
    )
    return RemoteTier(place, name=name or "s3", ask_timeout_s=url.seconds("ask_timeout", max(ask_timeout_s, S3_ASK_S)))


def _mooncake(url: Url, name: str, ask_timeout_s: float) -> Tier:
    from kvist.tier.remote.mooncake import MooncakePlace
    from kvist.tier.remote.mooncake_pool import Joining

    url.refuse_options_but("segment", "staging", "protocol", "device", "local", "replicas", "metrics", "ask_timeout")
    try:
        parts = urlsplit(f"mooncake:{url.rest}")
        host, port = parts.hostname or "", parts.port or 50051
    except ValueError:
        raise BadValue("tier", url.shown, "a port from 1 to 65535, as in mooncake://master:50051") from None
    if not host:
        raise BadValue("tier", url.shown, "the master's host, as in mooncake://master:50051?segment=512MiB")
    joining = Joining(
        master=f"{host}:{port}",
        metrics=url.options.get("metrics", f"{host}:9003"),
        local=url.options.get("local", ""),
        segment_bytes=url.bytes("segment", 512 * MIB),
        staging_bytes=url.bytes("staging", 32 * MIB),
        protocol=url.options.get("protocol", "tcp"),
        device=url.options.get("device", ""),
        replicas=url.whole("replicas", 1, least=1, most=16),
    )
    place = MooncakePlace(joining)
    return RemoteTier(place, name=name or "mooncake", ask_timeout_s=url.seconds("ask_timeout", ask_timeout_s))


_OPENERS: Final[Mapping[str, Callable[[Url, str, float], Tier]]] = {
    "ram": _ram,
    "disk": _disk,
    "redis": _valkey,
    "rediss": _valkey,
    "valkey": _valkey,
    "valkeys": _valkey,
    "unix": _valkey,
    "s3": _s3,
    "mooncake": _mooncake,
}
