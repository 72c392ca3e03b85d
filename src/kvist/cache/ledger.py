"""Moves blocks between pool, tree and tables, and keeps the letter to the executor in step with every move."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from kvist.cache.answers import Drained
from kvist.cache.counters import Tally
from kvist.cache.pool import Pool
from kvist.cache.reclaim import evict
from kvist.cache.share import Share
from kvist.cache.table import BlockTable
from kvist.cache.take import Take
from kvist.cache.tenancy import Tenancy
from kvist.cache.tree import Tree
from kvist.errors import PoolFull
from kvist.ids import NULL_BLOCK, BlockId, SeqId
from kvist.step import BlockCopy


class Ledger:
    """Fresh blocks, changed tables and pending copies since the last ``drain``. Owner: ``Cache``."""

    __slots__ = ("_changed", "_copies", "_fresh", "_pool", "_tally", "_tree")

    def __init__(self, pool: Pool, tree: Tree, tally: Tally) -> None:
        self._pool = pool
        self._tree = tree
        self._tally = tally
        self._changed: dict[SeqId, Tenancy] = {}
        self._fresh: list[list[BlockId]] = []
        self._copies: list[BlockCopy] = []

    @property
    def treed(self) -> Sequence[int]:
        """By block: whether the tree has it (0 or 1)."""
        return self._pool.treed

    def allocate(self, n_blocks: int, share: Share) -> list[BlockId]:
        """Take blocks whose content is void for a tenant, evicting as needed. Raises ``PoolFull``, changing nothing.

        Whoever asks pays first: while room is made, the blocks count as its own already.
        """
        pool = self._pool
        if n_blocks > pool.free + pool.cached:
            raise PoolFull(needed_blocks=n_blocks, available_blocks=pool.free + pool.cached)
        if n_blocks > pool.free:
            share.blocks += n_blocks
            evict(self._tree, n_blocks - pool.free)
            share.blocks -= n_blocks
        blocks = pool.allocate(n_blocks, share)
        if blocks:
            self._fresh.append(blocks)
        return blocks

    def release(self, table: BlockTable, blocks: Sequence[BlockId]) -> None:
        """Drop a table's references, the last block's first; what only the tree holds now can be evicted.

        Copies into blocks that are free now will not be sent: an admission that was taken back leaves no trace.
        """
        idle = self._pool.release(blocks[::-1])
        if idle:
            bounded = self._tree.rules[table.group].bounded
            self._tree.idle(idle, bounded=bounded, full=not bounded)
        if self._copies and blocks:
            refs = self._pool.refs
            void = [copy for copy in self._copies if refs[copy.dst] == 0]
            if void:
                self._copies = [copy for copy in self._copies if refs[copy.dst]]
                self._unpin(void)

    def replace(self, table: BlockTable, index: int, block: BlockId) -> None:
        """Copy on write: entry ``index`` becomes ``block`` with the same bytes."""
        src = table.ids[index]
        self._pool.pin(src)
        self._copies.append(BlockCopy(src, block))
        table.replace(index, block)
        self.release(table, [src])
        self._tally["cow_blocks"] += 1

    def seat(self, tenancy: Tenancy, take: Take) -> None:
        """Give a new sequence what it takes: references first, so that making room cannot evict them."""
        pool = self._pool
        for ids in take.shared:
            pool.retain([b for b in ids if b != NULL_BLOCK] if NULL_BLOCK in ids else ids)
        for block in (b for ids in take.sources for b in ids if b != NULL_BLOCK):
            pool.pin(block)
        fresh = iter(self.allocate(take.copied_blocks, tenancy.share))
        tables = []
        for rule, shared, sources in zip(tenancy.rules, take.shared, take.sources, strict=True):
            own = [NULL_BLOCK if block == NULL_BLOCK else next(fresh) for block in sources]
            self._copies += [BlockCopy(s, d) for s, d in zip(sources, own, strict=True) if s != NULL_BLOCK]
            null_to = rule.first_block(take.tokens) if rule.bounded else 0
            tables.append(BlockTable(tenancy.seq, rule.id, rule.sink_end, [*shared, *own], null_to))
        tenancy.tables = tuple(tables)
        tenancy.computed = take.tokens
        tenancy.private_from = tenancy.base(take.tokens)
        tenancy.settle()
        self.changed(tenancy)

    def changed(self, tenancy: Tenancy) -> None:
        """Tables of this sequence have something to say."""
        self._changed[tenancy.seq] = tenancy

    def forget(self, seq: SeqId) -> None:
        """The sequence is gone; its tables need not be sent."""
        self._changed.pop(seq, None)

    def drain(self) -> Drained:
        """Everything since the last call. Sources of copies are unprotected from here on."""
        changes = [table.diff() for tenancy in self._changed.values() for table in tenancy.tables]
        fresh = self._fresh  # a block that was given back and taken again is named once
        once = tuple(fresh[0]) if len(fresh) == 1 else tuple(dict.fromkeys(chain.from_iterable(fresh)))
        drained = Drained(once, tuple(c for c in changes if c is not None), tuple(self._copies))
        self._changed.clear()
        fresh.clear()
        self._copies.clear()
        self._unpin(drained.copies)
        self._tally["copied_blocks"] += len(drained.copies)
        return drained

    def _unpin(self, copies: Sequence[BlockCopy]) -> None:
        for copy in copies:
            self._tree.idle(self._pool.unpin(copy.src), bounded=True, full=True)
