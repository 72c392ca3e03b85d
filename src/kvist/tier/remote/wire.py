"""A record as one value of a server: the envelope's header, then the stored bytes."""

from __future__ import annotations

from typing import Final

import numpy as np

from kvist.ids import RecordId
from kvist.tier.base import Label, Record
from kvist.tier.envelope import (
    FLAG_PACKED,
    MAGIC,
    MAX_HEADER_BYTES,
    Damaged,
    Foreign,
    Header,
    check_stored,
    digest_of,
    header_bytes,
    read_header,
    write_header,
)
from kvist.tier.pack import Packer
from kvist.tier.remote.place import Answer, Seen

FIRST_BYTES: Final = 4096
"""Reading so much of a value has its whole header, unless a block has about a thousand tokens."""
SHORTEST_HEADER: Final = header_bytes(Label(RecordId(b""), RecordId(b""), b"", 0, "", b""))


def to_wire(record: Record, packer: Packer | None = None) -> tuple[bytes, memoryview]:
    """Header and stored bytes of a record. Unpacked, the stored bytes are the record's own, not a copy."""
    packed = packer.pack(record.data) if packer else None
    stored = record.data if packed is None else memoryview(packed)
    flags = 0 if packed is None else FLAG_PACKED
    digest = digest_of(record.label.id, stored)
    return write_header(Header(record.label, len(record.data), len(stored), digest, flags)), stored


def check_in_place(id: RecordId, head: bytes | memoryview, buffer: memoryview) -> Answer:
    """The answer when a value was cut so that its end fills ``buffer``: that is its data, if it has the right size."""
    try:
        header = _header(bytes(head) + bytes(buffer[: max(0, more_needed(head) - len(head))]))
        if header.header_bytes + header.stored_bytes != len(head) + len(buffer):
            raise Damaged("the value's length does not agree with its header")
        if header.flags or header.data_bytes != len(buffer) or header.header_bytes != len(head):
            return "foreign", None
        check_stored(header, id, buffer)
    except Foreign:
        return "foreign", None
    except Damaged:
        return "damaged", None
    return "hit", header.label


def take(id: RecordId, value: memoryview, buffer: memoryview, packer: Packer | None = None) -> Answer:
    """Check a whole value and fill ``buffer`` from it."""
    try:
        header = _header(value)
        stored = value[header.header_bytes :]
        if len(stored) != header.stored_bytes:
            raise Damaged("the value's length does not agree with its header")
        if header.data_bytes != len(buffer) or header.flags not in (0, FLAG_PACKED):
            return "foreign", None
        if header.flags == FLAG_PACKED:
            if packer is None:
                return "foreign", None
            check_stored(header, id, stored)
            packer.unpack_into(stored, buffer)
        else:
            if len(stored) != len(buffer):
                raise Damaged("the header's sizes do not agree")
            np.copyto(np.frombuffer(buffer, np.uint8), np.frombuffer(stored, np.uint8))
            check_stored(header, id, buffer)
    except Foreign:
        return "foreign", None
    except Damaged:
        return "damaged", None
    return "hit", header.label


def look(id: RecordId, start: bytes | memoryview, value_bytes: int) -> Seen:
    """What a value's beginning says of it; ``value_bytes`` is the length of all of it."""
    try:
        header = _header(start)
    except Foreign:
        return "foreign"
    except Damaged:
        return "damaged"
    whole = header.label.id == id and value_bytes == header.header_bytes + header.stored_bytes
    return header if whole else "damaged"


def more_needed(start: bytes | memoryview) -> int:
    """Bytes of a header that is longer than ``start``; 0 when ``start`` has all of it or is no header."""
    if len(start) < 16 or bytes(start[:8]) != MAGIC:
        return 0
    size = int.from_bytes(start[12:16], "little")
    return size if len(start) < size <= MAX_HEADER_BYTES else 0


def _header(start: bytes | memoryview) -> Header:
    """Parse a header. A value that was cut short within it is damaged, not foreign."""
    try:
        return read_header(start)
    except Foreign:
        if len(start) < SHORTEST_HEADER and MAGIC.startswith(bytes(start[:8])):
            raise Damaged("it ends within its header") from None
        raise
