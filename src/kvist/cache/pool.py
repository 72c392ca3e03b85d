"""All blocks of the fast memory: who holds each, and which are free. No tensors.

A block is in one of three states, and ``free + live + cached = total``:

* *free*: nobody refers to it;
* *live*: at least one table or pending copy refers to it (the tree may too);
* *cached*: the tree alone refers to it. It can be evicted.

``refs[b]`` counts tables holding the block, plus 1 if the tree does, plus pins (sources of copies not yet drained).
Each block that is not free is counted for one tenant's ``Share``, ``payer[b]``.
Every operation costs O(blocks named), never O(pool).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvist.cache.bulk import PLAIN, Bulk
from kvist.cache.share import Share
from kvist.errors import BadValue, PoolFull, StateError
from kvist.ids import BlockId

SPENT_BLOCKS: Final = 4096
"""Entries at the front of the free list that are handed out already, before they are cut off."""


class Pool:
    """The books of all blocks. Owner: ``Cache``. ``refs`` and ``treed`` may be read, not written, by others.

    ``lifo`` hands out the block freed last first (warm memory); otherwise the one free for longest. ``_free[_head:]``
    are the free blocks. ``treed`` is a list, not bytes, because the interpreter reads and writes lists fastest.
    """

    __slots__ = ("_free", "_head", "_lifo", "bulk", "cached", "payer", "pins", "refs", "total", "treed")

    def __init__(self, blocks: int, *, lifo: bool = False, bulk: Bulk = PLAIN) -> None:
        if blocks < 1:
            raise BadValue("blocks", blocks, "at least 1")
        self.total = blocks
        self.bulk = bulk
        self.cached = 0
        self.refs = [0] * blocks
        self.treed = [0] * blocks
        self.pins: dict[BlockId, int] = {}
        self.payer = [Share("")] * blocks
        self._lifo = lifo
        self._free = list(map(BlockId, range(blocks - 1, -1, -1) if lifo else range(blocks)))
        self._head = 0

    @property
    def free(self) -> int:
        """Blocks nobody refers to."""
        return len(self._free) - self._head

    @property
    def live(self) -> int:
        """Blocks that a table or a pending copy refers to."""
        return self.total - self.free - self.cached

    def allocate(self, n_blocks: int, share: Share) -> list[BlockId]:
        """Take ``n_blocks`` free blocks, each with one reference, for a tenant. ``PoolFull`` changes nothing."""
        if n_blocks > self.free:
            raise PoolFull(needed_blocks=n_blocks, available_blocks=self.free)
        blocks = self._pop(n_blocks)
        self.bulk.fill(self.refs, blocks, 1)
        self.bulk.fill(self.payer, blocks, share)
        share.blocks += n_blocks
        return blocks

    def _pop(self, n_blocks: int) -> list[BlockId]:
        """The next of the free list."""
        free = self._free
        if self._lifo:
            first = len(free) - n_blocks
            blocks = free[first:]
            del free[first:]
            blocks.reverse()
            return blocks
        head = self._head
        blocks = free[head : head + n_blocks]
        self._head = head = head + n_blocks
        if head > SPENT_BLOCKS and head * 2 > len(free):
            del free[:head]
            self._head = 0
        return blocks

    def retain(self, blocks: Sequence[BlockId]) -> None:
        """One more reference each, no block twice. A free block cannot be retained."""
        refs, treed = self.refs, self.treed
        if blocks:
            count, in_tree = refs[blocks[0]], treed[blocks[0]]
            if count and self.bulk.swap(blocks, refs, treed, (count, in_tree), (count + 1, in_tree)):
                if count == in_tree:
                    self._recount(blocks, -1)
                return
        woken: list[BlockId] = []
        for block in blocks:
            count = refs[block]
            if count == 1:
                if treed[block]:
                    woken.append(block)
            elif count < 1:
                raise StateError(f"block {block} is free and cannot be retained")
            refs[block] = count + 1
        self._recount(woken, -1)

    def release(self, blocks: Sequence[BlockId]) -> Sequence[BlockId]:
        """One reference less each, no block twice. Gives back those that just became *cached*; others at 0 are free.

        Raises ``StateError`` on a block that holds no reference but the tree's (double release).
        """
        refs, treed, free, payer = self.refs, self.treed, self._free, self.payer
        if blocks:
            count, in_tree = refs[blocks[0]] - 1, treed[blocks[0]]
            if count >= in_tree and self.bulk.swap(blocks, refs, treed, (count + 1, in_tree), (count, in_tree)):
                if count == 0:
                    free += blocks
                    for block in blocks:
                        payer[block].blocks -= 1
                elif count == in_tree:
                    self._recount(blocks, 1)
                    return blocks
                return ()
        idle: list[BlockId] = []
        for block in blocks:
            count = refs[block] - 1
            if count < treed[block]:
                raise StateError(f"block {block} is released more often than it was taken")
            refs[block] = count
            if count == 0:
                free.append(block)
                payer[block].blocks -= 1
            elif count == 1 and treed[block]:
                idle.append(block)
        self._recount(idle, 1)
        return idle

    def _recount(self, blocks: Sequence[BlockId], step: int) -> None:
        """Blocks became cached (1) or stopped being so (-1)."""
        if blocks:
            self.cached += step * len(blocks)
            share = self.bulk.only(self.payer, blocks)
            if share is not None:
                share.cached += step * len(blocks)
                return
        for block in blocks:
            self.payer[block].cached += step

    def pin(self, block: BlockId) -> None:
        """A reference that protects the source of a copy until the copy has been sent."""
        self.retain((block,))
        self.pins[block] = self.pins.get(block, 0) + 1

    def unpin(self, block: BlockId) -> Sequence[BlockId]:
        """End of a pin; answers like ``release``."""
        count = self.pins.pop(block, 0)
        if count < 1:
            raise StateError(f"block {block} is not pinned")
        if count > 1:
            self.pins[block] = count - 1
        return self.release((block,))

    def held(self, block: BlockId) -> bool:
        """True when a table refers to the block."""
        return self.refs[block] - self.treed[block] > self.pins.get(block, 0)

    def shared(self, block: BlockId) -> bool:
        """True when the one table that may ask is not the block's only reader: it must not be written."""
        return self.treed[block] == 1 or self.refs[block] - self.pins.get(block, 0) > 1

    def enter_tree(self, blocks: Sequence[BlockId], share: Share) -> None:
        """The tree takes a reference to blocks that tables hold; from now on they are ``share``'s."""
        refs, treed, payer = self.refs, self.treed, self.payer
        if blocks and self.bulk.only(payer, blocks) is share:
            count = refs[blocks[0]]
            if count and self.bulk.swap(blocks, refs, treed, (count, 0), (count + 1, 1)):
                return
        for block in blocks:
            if treed[block] or refs[block] < 1:
                raise StateError(f"block {block} is free or in the tree already")
            treed[block] = 1
            refs[block] += 1
            if payer[block] is not share:
                payer[block].blocks -= 1
                payer[block] = share
                share.blocks += 1

    def leave_tree(self, blocks: Sequence[BlockId], share: Share) -> int:
        """The tree lets go of blocks of ``share``. Those nobody else holds become free; says how many did."""
        refs, treed, free = self.refs, self.treed, self._free
        before = len(free)
        if blocks and self.bulk.swap(blocks, refs, treed, (1, 1), (0, 0)):
            free += blocks
            blocks = ()
        for block in blocks:
            if not treed[block]:
                raise StateError(f"block {block} is not in the tree")
            treed[block] = 0
            count = refs[block] - 1
            refs[block] = count
            if count == 0:
                free.append(block)
        freed = len(free) - before
        self.cached -= freed
        share.cached -= freed
        share.blocks -= freed
        return freed

    def check(self) -> None:
        """The books agree with a recount. O(pool), for tests."""
        free = set(self._free[self._head :])
        assert len(free) == self.free, "a block is twice in the free list"
        assert all((self.refs[b] == 0) == (b in free) for b in range(self.total)), "free list and references differ"
        assert all(self.refs[b] >= self.treed[b] + self.pins.get(BlockId(b), 0) for b in range(self.total))
        cached = sum(1 for b in range(self.total) if self.treed[b] and self.refs[b] == 1)
        assert cached == self.cached, f"{cached} blocks are cached, {self.cached} counted"
        assert self.free + self.live + self.cached == self.total and self.live >= 0
