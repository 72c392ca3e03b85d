"""The executor's copy of the block tables, kept as growing int32 arrays and changed only by a plan's messages."""

from __future__ import annotations

import numpy as np

from kvist.ids import NULL_BLOCK, GroupId, SeqId
from kvist.step import TableChange


class Row:
    """Block ids of one sequence in one group. ``ids`` has spare room; the first ``length`` entries count."""

    __slots__ = ("ids", "length")

    def __init__(self) -> None:
        self.ids = np.empty(16, dtype=np.int32)
        self.length = 0

    def apply(self, change: TableChange) -> None:
        """Keep, append, null: in that order."""
        end = change.keep + len(change.append)
        if end > len(self.ids):
            grown = np.empty(max(end, 2 * len(self.ids)), dtype=np.int32)
            grown[: change.keep] = self.ids[: change.keep]
            self.ids = grown
        self.ids[change.keep : end] = change.append
        self.length = end
        self.ids[change.null_from : change.null_to] = NULL_BLOCK

    def view(self) -> np.ndarray:
        """int32 [blocks]: a view, valid until the next change."""
        return self.ids[: self.length]


class Tables:
    """All tables of one executor. Owner: the executor."""

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._rows: dict[SeqId, list[Row]] = {}

    def apply(self, change: TableChange) -> None:
        """Bring one table up to date, creating it at first sight of its sequence."""
        rows = self._rows.get(change.seq)
        if rows is None:
            rows = self._rows[change.seq] = [Row() for _ in range(self._groups)]
        rows[change.group].apply(change)

    def forget(self, seq: SeqId) -> None:
        """Drop a sequence's tables; unknown ids are fine (a sequence may end before it ever ran)."""
        self._rows.pop(seq, None)

    def row(self, seq: SeqId, group: GroupId) -> np.ndarray:
        """int32 [blocks] of one sequence and group."""
        return self._rows[seq][group].view()

    def __len__(self) -> int:
        return len(self._rows)
