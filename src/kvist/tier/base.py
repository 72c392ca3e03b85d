"""What a tier is: a place that holds records. A record is the bytes of one block, with a content id and a label.

A tier answers six questions (``exists_many``, ``get_many_into``, ``put_many``, ``delete``, ``list``, ``usage``) and
blocks while it does: a mover's threads ask, never the thread that plans or computes steps. One tier may be asked by
several threads at once. No call raises for a fault of the place (a full disk, a dead server, a damaged record): the
answer says so, record by record, and ``usage`` says how the place is. What a tier gives back as *hit* was verified to
be the bytes that were put under that id, all of them; anything else is an answer without bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from kvist.ids import RecordId

Got = Literal["hit", "missing", "damaged", "foreign", "timeout", "error"]
"""``damaged``: a checksum or a seal did not agree (the record is dropped). ``foreign``: another version or size."""

Put = Literal["stored", "known", "full", "off", "timeout", "error"]
"""``known``: it was there already. ``full``: no room, also after eviction. ``off``: the tier takes nothing now."""

Condition = Literal["ok", "read-only", "off"]


@dataclass(frozen=True, slots=True)
class Label:
    """What a record says of itself. ``tokens``: the block's own, int32 little-endian: they are what people wrote.

    ``parent`` is the record before it in its chain (empty for the first, ``depth`` 0), ``origin`` the fingerprint of
    the model and layout that the bytes belong to (16 bytes), ``tenant`` who paid for it.
    """

    id: RecordId
    parent: RecordId
    origin: bytes
    depth: int
    tenant: str
    tokens: bytes


@dataclass(frozen=True, slots=True)
class Record:
    """A label and the bytes of the block. The bytes do not change while a ``put_many`` that has them runs."""

    label: Label
    data: memoryview


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of ``list``: a record without its bytes. ``used`` orders records by last use (larger: later)."""

    label: Label
    data_bytes: int
    stored_bytes: int
    used: int
    hits: int


@dataclass(frozen=True, slots=True)
class Usage:
    """How a tier is. ``used_bytes`` is what its records take of ``capacity_bytes`` (None: no bound of its own).

    ``reason`` is one line for people when the condition is not ``ok``. ``foreign_files``: found and left alone.
    """

    records: int
    used_bytes: int
    capacity_bytes: int | None
    condition: Condition = "ok"
    reason: str = ""
    foreign_files: int = 0
    evicted_records: int = 0
    damaged_records: int = 0


class Tier(Protocol):
    """A place for records. ``name`` stands in metrics, logs and bills (``disk``, ``ram``, ``valkey``).

    A tier may say more of itself: ``remote = True`` (calls cross a network: several are kept in flight, and none of
    them writes to a block that somebody may take back), ``takes_saves = False`` (it is only read), and
    ``view(tenant)``, the tier as one tenant has it.
    """

    name: str

    def exists_many(self, ids: Sequence[RecordId]) -> list[bool]:
        """Whether each could be got now. All False when the place cannot be asked."""
        ...

    def get_many_into(
        self, ids: Sequence[RecordId], buffers: Sequence[memoryview], *, timeout_s: float
    ) -> list[tuple[Got, Label | None]]:
        """Read each record into its buffer, which has exactly the size of its bytes. A hit comes with its label.

        After anything but a hit a buffer's content is void. Records after a timeout are not tried. Counts as a use.
        """
        ...

    def put_many(self, records: Sequence[Record], *, timeout_s: float) -> list[Put]:
        """Store records; ancestors come before their descendants. A record is there wholly or not at all."""
        ...

    def touch_many(self, ids: Sequence[RecordId]) -> None:
        """Count records as used now (they were used from a faster place). Unknown ids are passed over."""
        ...

    def delete(self, *, ids: Sequence[RecordId] = (), tenant: str | None = None, origin: bytes | None = None) -> int:
        """Remove records by id, or all of a tenant, of an origin, or of both. Says how many there were.

        -1: the place could not be asked.
        """
        ...

    def list(self, *, origin: bytes | None = None, tenant: str | None = None) -> Iterator[Entry]:
        """Every record, parents before children where the place knows."""
        ...

    def usage(self) -> Usage:
        """How the tier is now. Cheap: no walk over records."""
        ...

    def close(self) -> None:
        """Let go of files and connections. What was stored stays."""
        ...
