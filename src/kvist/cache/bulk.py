"""What is done to many blocks or tokens at once: the contract, and the plain version.

Most calls name the blocks of one run, all in the same state. Those are checked and changed in one go here; whoever
calls goes block by block when they differ. ``kernels/books.py`` does the same natively.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final, Protocol

from kvist.cache.keys import pack_tokens
from kvist.ids import BlockId

Blocks = Sequence[BlockId]
State = tuple[int, int]
"""References, and whether the tree has one of them (0 or 1)."""


class Bulk(Protocol):
    """``refs``, ``treed`` and ``values`` are lists indexed by block id. ``blocks``: a list or tuple, not empty."""

    def pack(self, tokens: Sequence[int]) -> bytes | None:
        """``keys.pack_tokens``; None for tokens that are for it to refuse, or to convert."""
        ...

    def swap(self, blocks: Blocks, refs: list[int], treed: list[int], before: State, now: State) -> bool:
        """When each block is in state ``before``, put each into ``now``; else change nothing.

        Says which. A block that is named twice is never in the state ``before`` the second time.
        """
        ...

    def fill(self, values: list[Any], blocks: Blocks, value: object) -> None:
        """``values[b] = value`` for every block."""
        ...

    def only(self, values: list[Any], blocks: Blocks) -> Any:
        """The one object that every block has; None when they differ."""
        ...

    def count(self, values: list[int], blocks: Blocks, value: int) -> int:
        """How many blocks have ``value``, a small whole number."""
        ...


class PlainBulk:
    """The interpreter's own loops in C, where there is one."""

    def pack(self, tokens: Sequence[int]) -> bytes | None:
        """See ``Bulk``."""
        return pack_tokens(tokens)

    def swap(self, blocks: Blocks, refs: list[int], treed: list[int], before: State, now: State) -> bool:
        """See ``Bulk``."""
        n = len(blocks)
        if self.count(refs, blocks, before[0]) < n or self.count(treed, blocks, before[1]) < n:
            return False
        step = now[0] - before[0]
        for block in blocks:
            refs[block] += step
        if self.count(refs, blocks, now[0]) < n:
            for block in blocks:
                refs[block] -= step
            return False
        if now[1] != before[1]:
            self.fill(treed, blocks, now[1])
        return True

    def fill(self, values: list[Any], blocks: Blocks, value: object) -> None:
        """See ``Bulk``."""
        for block in blocks:
            values[block] = value

    def only(self, values: list[Any], blocks: Blocks) -> Any:
        """See ``Bulk``."""
        first = values[blocks[0]]
        return first if len(blocks) == 1 or itemgetter(*blocks)(values).count(first) == len(blocks) else None

    def count(self, values: list[int], blocks: Blocks, value: int) -> int:
        """See ``Bulk``."""
        return itemgetter(*blocks)(values).count(value) if len(blocks) > 1 else int(values[blocks[0]] == value)


PLAIN: Final[Bulk] = PlainBulk()


def packed(bulk: Bulk, tokens: Sequence[int]) -> bytes:
    """Tokens as the tree keeps them. Raises ``BadValue`` for those beyond 32 bits."""
    return bulk.pack(tokens) or pack_tokens(tokens)
