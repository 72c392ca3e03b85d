"""What goes between a ``TurnStore`` and its file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvist.text.turn_rows import TurnRows
from kvist.text.turn_store import ENTRY_TOKENS, Path, TurnStore

MOST_ROWS: Final = 1 << 16
"""Paths whose rows are known; what grows on from an earlier one gets a row of its own."""


def bytes_of(path: Path) -> int:
    """What a path takes while it waits to be written."""
    return len(path.ids) + 4 * ENTRY_TOKENS * len(path.entries)


def without(paths: dict[int, Path], owners: Sequence[str | None]) -> dict[int, Path]:
    """Paths of others than ``owners`` (None: everybody)."""
    return {n: path for n, path in paths.items() if None not in owners and path.owner not in owners}


def restored(store: TurnStore, rows: TurnRows) -> dict[int, int]:
    """Fill a store with the newest rows that fit: serial -> row."""
    found = {store.restore(row.owner, row.ids, row.entries): row.n for row in rows.newest(store.max_tokens)}
    return {serial: n for serial, n in found.items() if serial}


def remember(row_of: dict[int, int], now: dict[int, int], most: int = MOST_ROWS) -> None:
    """These were written last; of ``most`` paths the rows are known."""
    for serial, row in now.items():
        row_of.pop(serial, None)
        row_of[serial] = row
    for serial in [*row_of][: max(0, len(row_of) - most)]:
        del row_of[serial]
