"""What the executor has not been told yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvist.cache.tenancy import Tenancy
from kvist.ids import BlockId, SeqId
from kvist.step import BlockCopy, TableChange


@dataclass(frozen=True, slots=True)
class Drained:
    """For the next ``StepPlan``, applied in this order before any chunk is written."""

    fresh: tuple[BlockId, ...]
    tables: tuple[TableChange, ...]
    copies: tuple[BlockCopy, ...]


class Outbox:
    """Fresh blocks, changed tables and pending copies since the last ``drain``. Owner: ``Cache``."""

    __slots__ = ("_changed", "_copies", "_fresh")

    def __init__(self) -> None:
        self._changed: dict[SeqId, Tenancy] = {}
        self._fresh: dict[BlockId, None] = {}
        self._copies: list[BlockCopy] = []

    def fresh(self, blocks: Sequence[BlockId]) -> None:
        """The content of these blocks is void."""
        self._fresh.update(dict.fromkeys(blocks))

    def copy(self, src: BlockId, dst: BlockId) -> None:
        """``dst`` gets the bytes of ``src``, which the caller has pinned until ``drain``."""
        self._copies.append(BlockCopy(src, dst))

    def changed(self, tenancy: Tenancy) -> None:
        """Tables of this sequence have something to say."""
        self._changed[tenancy.seq] = tenancy

    def forget(self, seq: SeqId) -> None:
        """The sequence is gone; its tables need not be sent."""
        self._changed.pop(seq, None)

    def drain(self) -> Drained:
        """Everything since the last call."""
        changes = [table.diff() for tenancy in self._changed.values() for table in tenancy.tables]
        drained = Drained(tuple(self._fresh), tuple(c for c in changes if c is not None), tuple(self._copies))
        self._changed.clear()
        self._fresh.clear()
        self._copies.clear()
        return drained
