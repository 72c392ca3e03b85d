"""One node of the tree: a run of tokens and the blocks that hold it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import Final

from kvist.cache.keys import Space
from kvist.cache.share import Share
from kvist.ids import NULL_BLOCK, BlockId, BlockKey

TOKEN_BYTES: Final = 4
SHORT_BYTES: Final = 256
Bytes = bytes | bytearray


class Node:
    """Tokens ``[start, end)`` of a path. Owner: ``Tree``, which alone changes it.

    ``tokens`` are int32 bytes, whole spans, except in an *open* node: a leaf shorter than a span, copied from, never
    shared. ``blocks[g]`` are the ids of group g; ``NULL_BLOCK`` is a tombstone (bounded groups only), ``holes`` counts
    them. ``children`` go by their first span's bytes (an open child: by all its bytes) and ``order`` is the same keys
    sorted, so that the child with the longest common run is a neighbour of where the query would stand.

    A node object always means the same path up to ``end``, as long as it is ``alive`` and ``cuts`` has not moved:
    a split keeps the object for the lower part. ``queued`` are the stages the evict queue holds it for, ``swept``
    where (in spans) its sweep of tombstones goes on. ``space`` is a root's namespace, ``share`` the tenant's that it
    belongs to; ``last_use``, ``gap``, ``hits`` and ``behind`` are what ``NodeFacts`` says, ``reach`` the position up to
    which admissions used it: what a split leaves behind that was never asked for again. ``lost`` is the first span that
    was cut off behind the end (``Ghosts``); ``keys`` are block keys by tokens per block, computed when a tier asks.
    """

    __slots__ = (
        "alive", "behind", "blocks", "children", "cuts", "gap", "hits", "holes", "keys", "last_use", "lost", "open",
        "order", "parent", "queued", "reach", "serial", "share", "space", "start", "swept", "tokens",
    )  # fmt: skip

    def __init__(
        self,
        parent: Node | None,
        share: Share,
        start: int,
        tokens: Bytes,
        blocks: Sequence[Sequence[BlockId]],
        serial: int,
    ) -> None:
        self.parent = parent
        self.share = share
        self.start = start
        self.tokens = bytearray(tokens)
        self.blocks = [list(ids) for ids in blocks]
        self.serial = serial
        self.children: dict[bytes, Node] = {}
        self.order: list[bytes] = []
        self.holes = sum(ids.count(NULL_BLOCK) for ids in self.blocks)
        self.keys: dict[int, list[BlockKey]] = {}
        self.space: Space | None = None
        self.lost = b""
        self.open = self.behind = False
        self.alive = True
        self.last_use = self.hits = self.gap = self.reach = self.cuts = self.queued = self.swept = 0

    @property
    def end(self) -> int:
        """One past the last position."""
        return self.start + len(self.tokens) // TOKEN_BYTES

    @property
    def barren(self) -> bool:
        """True when no block is left: every entry is a tombstone."""
        return self.holes == sum(map(len, self.blocks))

    def key(self, span_bytes: int) -> bytes:
        """Under which the parent knows this node."""
        return bytes(self.tokens[:span_bytes])

    def attach(self, key: bytes, child: Node) -> None:
        """Add a child under a key that is not taken."""
        assert key not in self.children
        self.children[key] = child
        insort(self.order, key)

    def detach(self, key: bytes) -> None:
        """Remove a child."""
        del self.children[key]
        del self.order[bisect_left(self.order, key)]


def common_bytes(a: Bytes, a_from: int, b: Bytes, b_from: int) -> int:
    """Length of the longest common run of whole tokens of ``a[a_from:]`` and ``b[b_from:]``, in bytes.

    Gallops at memcmp speed, bisects what is long, and finds the first bit that differs in what is short.
    """
    size = min(len(a) - a_from, len(b) - b_from)
    low, high, step = 0, 0, SHORT_BYTES
    while low < size:
        high = min(low + step, size)
        if a[a_from + low : a_from + high] != b[b_from + low : b_from + high]:
            break
        low, step = high, step * 2
    else:
        return size
    while high - low > SHORT_BYTES:
        middle = low + (high - low) // (2 * TOKEN_BYTES) * TOKEN_BYTES
        if a[a_from + low : a_from + middle] == b[b_from + low : b_from + middle]:
            low = middle
        else:
            high = middle
    differ = int.from_bytes(a[a_from + low : a_from + high], "little")
    differ ^= int.from_bytes(b[b_from + low : b_from + high], "little")
    return low + ((differ & -differ).bit_length() - 1) // (8 * TOKEN_BYTES) * TOKEN_BYTES
