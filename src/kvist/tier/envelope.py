"""How a record looks outside memory: a header that says what it is, then the bytes. The same on disk and on the wire.

Header, little-endian::

    magic 8 | version u16 | flags u16 | header_bytes u32 | data_bytes u64 | stored_bytes u64 | depth u32
    id 18 | parent 18 (zeros: none) | origin 16 | digest 16
    tenant: u16 length + utf-8 | tokens: u32 length + bytes
    checksum 8: xxh3 of all before it

``digest`` is the xxh3 (128 bits) of the stored bytes with their id in front, so a record never passes for another.
A checksum finds what decays; it is no seal against somebody who writes into the place (``seal.py`` is).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import xxhash

from kvist.ids import RECORD_ID_BYTES, RecordId
from kvist.tier.base import Label

MAGIC: Final = b"kvistREC"
VERSION: Final = 1
FLAG_PACKED: Final = 1
"""The stored bytes are compressed (``pack.py``)."""

_FIXED: Final = struct.Struct(f"<8sHHIQQI{RECORD_ID_BYTES}s{RECORD_ID_BYTES}s16s16s")
_NO_PARENT: Final = bytes(RECORD_ID_BYTES)
_SUM_BYTES: Final = 8
MAX_TENANT_BYTES: Final = 255
MAX_HEADER_BYTES: Final = 1 << 20


class Damaged(Exception):
    """The bytes are not what was written. Never leaves the room: a tier answers ``damaged``."""


class Foreign(Exception):
    """Something else than a record of this version and size. Never leaves the room: a tier answers ``foreign``."""


@dataclass(frozen=True, slots=True)
class Header:
    """A parsed header. ``stored_bytes`` is what follows it, ``data_bytes`` what that unpacks to."""

    label: Label
    data_bytes: int
    stored_bytes: int
    digest: bytes
    flags: int = 0

    @property
    def header_bytes(self) -> int:
        """Length of the header itself."""
        return header_bytes(self.label)


def header_bytes(label: Label) -> int:
    """Bytes of a record's header."""
    return _FIXED.size + 2 + len(label.tenant.encode()) + 4 + len(label.tokens) + _SUM_BYTES


def digest_of(id: RecordId, stored: memoryview | bytes) -> bytes:
    """128 bits over an id and the bytes stored under it."""
    state = xxhash.xxh3_128(id)
    state.update(stored)
    return state.digest()


def write_header(header: Header) -> bytes:
    """The header's bytes."""
    label = header.label
    tenant = label.tenant.encode()
    if len(tenant) > MAX_TENANT_BYTES:
        raise ValueError(f"a tenant's name has at most {MAX_TENANT_BYTES} bytes, this one {len(tenant)}")
    fixed = _FIXED.pack(
        MAGIC,
        VERSION,
        header.flags,
        header.header_bytes,
        header.data_bytes,
        header.stored_bytes,
        label.depth,
        label.id,
        label.parent or _NO_PARENT,
        label.origin,
        header.digest,
    )
    body = b"".join((fixed, struct.pack("<H", len(tenant)), tenant, struct.pack("<I", len(label.tokens)), label.tokens))
    return body + xxhash.xxh3_64_digest(body)


def read_header(data: bytes | memoryview) -> Header:
    """Parse the header that ``data`` begins with. Raises ``Foreign`` or ``Damaged``."""
    view = memoryview(data)
    if len(view) < _FIXED.size or bytes(view[:8]) != MAGIC:
        raise Foreign("no record begins here")
    magic, version, flags, size, data_bytes, stored_bytes, depth, id, parent, origin, digest = _FIXED.unpack(
        view[: _FIXED.size]
    )
    if version != VERSION:
        raise Foreign(f"a record of version {version}, this kvist reads {VERSION}")
    if not _FIXED.size + 6 + _SUM_BYTES <= size <= min(len(view), MAX_HEADER_BYTES):
        raise Damaged("the header's length cannot be right")
    body = view[: size - _SUM_BYTES]
    if xxhash.xxh3_64_digest(body) != bytes(view[size - _SUM_BYTES : size]):
        raise Damaged("the header's checksum does not agree")
    at = _FIXED.size
    (n_tenant,) = struct.unpack_from("<H", body, at)
    tenant = bytes(body[at + 2 : at + 2 + n_tenant]).decode()
    at += 2 + n_tenant
    (n_tokens,) = struct.unpack_from("<I", body, at)
    tokens = bytes(body[at + 4 : at + 4 + n_tokens])
    if at + 4 + n_tokens != len(body):
        raise Damaged("the header's parts do not add up")
    label = Label(RecordId(id), RecordId(b"" if parent == _NO_PARENT else parent), origin, depth, tenant, tokens)
    return Header(label, data_bytes, stored_bytes, digest, flags)


def check_stored(header: Header, id: RecordId, stored: memoryview | bytes) -> None:
    """Raises ``Damaged`` unless ``stored`` are the bytes that were put under ``id``."""
    if header.label.id != id:
        raise Damaged("another record lies where this one should")
    if len(stored) != header.stored_bytes or digest_of(id, stored) != header.digest:
        raise Damaged("the checksum does not agree")
