"""Paper memory: every slot says whose row it holds, and reading checks it."""

from __future__ import annotations

from collections.abc import Iterator

from kvist.ids import BlockId, SeqId
from kvist.sim.draws import Cell
from kvist.spec.layout import CacheLayout, Group
from kvist.step import BlockCopy, TableChange


class PaperFault(AssertionError):
    """A slot that a row may read does not hold that sequence's history: the cache or the scheduler has a bug."""


class PaperMemory:
    """Blocks of cells and the executor's copy of the block tables. Owner: the paper executor."""

    def __init__(self, layout: CacheLayout, blocks: int) -> None:
        self._groups = layout.groups
        self._span = layout.span_tokens
        self._blocks: list[list[Cell | None]] = [[] for _ in range(blocks)]
        self._tables: dict[SeqId, list[list[BlockId]]] = {}

    def poison(self, block: BlockId) -> None:
        """What ``block`` held is void."""
        self._blocks[block] = [None] * self._span

    def copy(self, order: BlockCopy) -> None:
        """All of block ``src`` to ``dst``."""
        self._blocks[order.dst] = list(self._blocks[order.src])

    def read(self, block: int) -> list[Cell | None]:
        """All of a block."""
        return list(self._blocks[block])

    def fill(self, block: int, cells: list[Cell | None] | None) -> None:
        """A block that a tier delivered; None: nothing came, and what it holds is void."""
        self._blocks[block] = [None] * self._span if cells is None else list(cells)

    def change(self, change: TableChange) -> None:
        """Keep, append, null: in that order."""
        tables = self._tables.setdefault(change.seq, [[] for _ in self._groups])
        table = tables[change.group]
        if change.keep > len(table):
            raise PaperFault(f"sequence {change.seq}, group {change.group}: keeps {change.keep} of {len(table)}")
        table[change.keep :] = change.append
        for i in range(change.null_from, change.null_to):
            table[i] = BlockId(-1)

    def forget(self, seq: SeqId) -> None:
        """Drop a sequence's tables."""
        self._tables.pop(seq, None)

    def place(self, seq: SeqId, group: Group, position: int) -> tuple[BlockId, int]:
        """Block and slot of a position. Raises ``PaperFault`` when the table has none."""
        table = self._tables.get(seq, [[]] * len(self._groups))[group.id]
        at = position // group.tokens_per_block
        if at >= len(table) or not 0 <= table[at] < len(self._blocks):
            got = table[at] if at < len(table) else "nothing"
            raise PaperFault(f"sequence {seq}, group {group.id}, position {position}: block {at} of its table is {got}")
        return table[at], position % group.tokens_per_block

    def write(self, seq: SeqId, cells: list[Cell], start: int, end: int) -> None:
        """Put the cells of positions ``[start, end)`` into every group's blocks."""
        for group in self._groups:
            for block, slot, a, b in self._runs(seq, group, start, end):
                held = self._blocks[block]
                if not held:
                    raise PaperFault(f"sequence {seq} writes to block {block}, which was never made fresh")
                held[slot : slot + b - a] = cells[a:b]

    def check(self, seq: SeqId, cells: list[Cell], start: int, end: int) -> None:
        """Every slot below ``end`` that a row at ``start`` or later may read holds exactly this history."""
        for group in self._groups:
            first = group.retention.first_needed(start)
            self._compare(seq, group, cells, 0, min(group.retention.sinks, first))
            self._compare(seq, group, cells, first, end)

    def _compare(self, seq: SeqId, group: Group, cells: list[Cell], start: int, end: int) -> None:
        for block, slot, a, b in self._runs(seq, group, start, end):
            found = self._blocks[block][slot : slot + b - a]
            if found != cells[a:b]:
                wrong = next(i for i in range(b - a) if i >= len(found) or found[i] != cells[a + i])
                held = found[wrong] if wrong < len(found) else "nothing"
                raise PaperFault(
                    f"sequence {seq}, group {group.id}: slot {slot + wrong} of block {block} should hold "
                    f"{cells[a + wrong]}, it holds {held or 'poison'}"
                )

    def _runs(self, seq: SeqId, group: Group, start: int, end: int) -> Iterator[tuple[BlockId, int, int, int]]:
        """(block, first slot, first position, end position) of every block that ``[start, end)`` touches."""
        size = group.tokens_per_block
        while start < end:
            block, slot = self.place(seq, group, start)
            stop = min(end, start - slot + size)
            yield block, slot, start, stop
            start = stop
