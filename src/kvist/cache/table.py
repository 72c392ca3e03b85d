"""The block table of one sequence in one group, and what an executor has not heard of it yet.

Entry i names the block of positions ``[i * T, (i + 1) * T)``. In bounded groups the entries ``[sink_end, null_to)``
are ``NULL_BLOCK``: the window has passed them. Nothing un-nulls an entry; ``truncate`` may cut it off.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvist.ids import NULL_BLOCK, BlockId, GroupId, SeqId
from kvist.step import TableChange


class BlockTable:
    """Block ids by position. Owner: the sequence's ``Tenancy``; ``ids`` is read, not written, by others."""

    __slots__ = ("_keep", "_sent", "_sent_null_to", "group", "ids", "null_to", "seq", "sink_end")

    def __init__(self, seq: SeqId, group: GroupId, sink_end: int, ids: Iterable[BlockId], null_to: int) -> None:
        self.seq = seq
        self.group = group
        self.sink_end = sink_end
        self.ids = list(ids)
        self.null_to = max(null_to, sink_end)
        self._sent = -1  # never told: the first message goes out even when empty, the id may have been used before
        self._keep = 0
        self._sent_null_to = self.null_to

    @property
    def blocks(self) -> list[BlockId]:
        """The real blocks, in order of position."""
        return [b for b in self.ids if b != NULL_BLOCK]

    @property
    def held(self) -> int:
        """How many real blocks the table holds, without counting them."""
        return len(self.ids) - max(0, min(self.null_to, len(self.ids)) - self.sink_end)

    def append(self, ids: Iterable[BlockId]) -> None:
        """Add blocks at the end."""
        self.ids.extend(ids)

    def replace(self, index: int, block: BlockId) -> None:
        """Another block for entry ``index`` (copy on write)."""
        self.ids[index] = block
        self._keep = min(self._keep, index)

    def truncate(self, n_blocks: int) -> list[BlockId]:
        """Cut to ``n_blocks`` entries; gives back the real blocks cut off."""
        cut = self.ids[n_blocks:]
        if self.null_to > max(self.sink_end, n_blocks):
            cut = [b for b in cut if b != NULL_BLOCK]
        del self.ids[n_blocks:]
        self._keep = min(self._keep, n_blocks)
        self.null_to = max(self.sink_end, min(self.null_to, n_blocks))
        self._sent_null_to = min(self._sent_null_to, self.null_to)
        return cut

    def null(self, upto: int) -> list[BlockId]:
        """Null entries ``[null_to, upto)``; gives back their blocks."""
        gone = self.ids[self.null_to : upto]
        self.ids[self.null_to : upto] = [NULL_BLOCK] * len(gone)
        self.null_to = upto
        return gone

    def diff(self) -> TableChange | None:
        """The message that brings an executor from the last ``diff`` to now; None when nothing changed."""
        keep = self._keep
        null_from, null_to = self._sent_null_to, min(self.null_to, keep)
        if null_to <= null_from:
            null_from = null_to = 0
            if keep == self._sent == len(self.ids):
                return None
        change = TableChange(self.seq, self.group, keep, tuple(self.ids[keep:]), null_from, null_to)
        self._sent = self._keep = len(self.ids)
        self._sent_null_to = self.null_to
        return change
