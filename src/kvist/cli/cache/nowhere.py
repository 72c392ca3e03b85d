"""A place that takes everything and keeps nothing: to read a file to its end before anything is made for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvist.ids import RecordId
from kvist.tier.base import Entry, Got, Label, Put, Record, Usage


class Nowhere:
    """A tier without records."""

    def __init__(self) -> None:
        self.name = "nowhere"

    def exists_many(self, ids: Sequence[RecordId]) -> list[bool]:
        """None is."""
        return [False for _ in ids]

    def get_many_into(
        self, ids: Sequence[RecordId], buffers: Sequence[memoryview], *, timeout_s: float
    ) -> list[tuple[Got, Label | None]]:
        """None is there."""
        return [("missing", None) for _ in ids]

    def put_many(self, records: Sequence[Record], *, timeout_s: float) -> list[Put]:
        """All are passed over."""
        return ["known" for _ in records]

    def touch_many(self, ids: Sequence[RecordId]) -> None:
        """Nothing to count."""

    def delete(self, *, ids: Sequence[RecordId] = (), tenant: str | None = None, origin: bytes | None = None) -> int:
        """There were none."""
        return 0

    def list(self, *, origin: bytes | None = None, tenant: str | None = None) -> Iterator[Entry]:
        """Nothing."""
        return iter(())

    def usage(self) -> Usage:
        """Empty."""
        return Usage(0, 0, None)

    def close(self) -> None:
        """Nothing to let go of."""
