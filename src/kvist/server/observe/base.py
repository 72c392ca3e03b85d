"""Who is told what happens to requests, on the event loop, as it happens."""

from __future__ import annotations

from typing import Protocol

from kvist.errors import KvistError
from kvist.server.job import Delta
from kvist.server.live import Live
from kvist.server.records import Record


class Observer(Protocol):
    """Counts, logs or draws. Must be quick and must not raise."""

    def opened(self, record: Record) -> None:
        """A request was taken."""
        ...

    def gained(self, record: Record, parcel: Delta | KvistError, now_s: float) -> None:
        """Something came for it, at ``now_s`` of the engine's clock."""
        ...

    def ended(self, record: Record, live: Live) -> None:
        """It is over; its costs are in ``record.bill``."""
        ...
