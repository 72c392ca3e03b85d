"""Uses that were not written to the index yet: they go along with the next transaction."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Sequence
from typing import Final

from kvist.ids import RecordId

FLUSH_AT: Final = 1024
MOST: Final = 1 << 16
"""When the index cannot be written to, the oldest knowledge is worth least: all of it is dropped at this many."""


class Touches:
    """Last use and number of hits by record, in the order of use. What is here is lost when the process is killed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._order = 0
        self._seen: dict[RecordId, tuple[int, int]] = {}

    def add(self, ids: Sequence[RecordId], *, hits: int) -> bool:
        """One use of several records together. True: it is time to write them down."""
        with self._lock:
            if len(self._seen) > MOST:
                self._seen.clear()
            self._order += 1
            for id in ids:
                self._seen[id] = (self._order, self._seen.get(id, (0, 0))[1] + hits)
            return len(self._seen) >= FLUSH_AT

    def write(self, c: sqlite3.Connection) -> dict[RecordId, tuple[int, int]]:
        """Write them into a transaction. What was taken is given back for ``restore``, should it fail."""
        with self._lock:
            taken, self._seen = self._seen, {}
            span, self._order = self._order, 0
        if taken:
            (clock,) = c.execute("update state set clock = clock + ? returning clock", (span,)).fetchone()
            c.executemany(
                "update record set used = max(used, ?), hits = hits + ? where id = ?",
                [(clock - span + order, hits, id) for id, (order, hits) in taken.items()],
            )
        return taken

    def restore(self, taken: dict[RecordId, tuple[int, int]]) -> None:
        """The transaction did not happen."""
        with self._lock:
            for id, (_, hits) in taken.items():
                order, newer = self._seen.get(id, (0, 0))
                self._seen[id] = (order, newer + hits)
