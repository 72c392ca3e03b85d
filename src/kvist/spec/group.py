"""One layer group: which layers share a block table, and where their tiles lie inside a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvist.ids import GroupId
from kvist.spec.format import Element
from kvist.spec.layer import Retention, StreamRow
from kvist.units import ceil_div

HASH_TOKENS: Final = 16
"""Slots of one K lane group; every tokens-per-block is a multiple of it."""

CELL_TOKENS: Final = 512
"""Attention runs are cut on this position grid, a multiple of every block."""

ALIGN_BYTES: Final = 64


def held_blocks(retention: Retention, n_tokens: int, tokens_per_block: int) -> int:
    """Blocks of one group that a sequence holds once ``n_tokens`` are computed and windows have let go."""
    first = retention.first_needed(n_tokens) // tokens_per_block
    sinks = ceil_div(min(retention.sinks, n_tokens), tokens_per_block)
    return ceil_div(n_tokens, tokens_per_block) - first + min(sinks, first)


def spanned_blocks(retention: Retention, n_tokens: int, tokens_per_block: int) -> int:
    """Most blocks that the rows held on the way to ``n_tokens``, one token a step, can touch.

    Windows may start anywhere inside a block, so they touch one more than they fill.
    """
    whole = ceil_div(n_tokens, tokens_per_block)
    size = retention.window_tokens or retention.chunk_tokens
    if size is None:
        return whole
    aligned = retention.chunk_tokens is not None and size % tokens_per_block == 0
    touched = ceil_div(size, tokens_per_block) if aligned else ceil_div(size - 1, tokens_per_block) + 1
    return min(whole, touched + ceil_div(retention.sinks, tokens_per_block))


@dataclass(frozen=True, slots=True)
class Stream:
    """One tile's place: ``offset_bytes`` from the start of its (layer, head) record."""

    row: StreamRow
    element: Element
    offset_bytes: int
    tile_bytes: int


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share one block table. ``layers[i]`` is the model layer stored at place ``i`` of a block.

    ``exact``: it holds sinks and the current cell of layers whose other rows are packed in another group.
    """

    id: GroupId
    layers: tuple[int, ...]
    places: int
    retention: Retention
    tokens_per_block: int
    kv_heads: int
    streams: tuple[Stream, ...]
    head_bytes: int
    row_bytes_per_layer: int
    every_tokens: int = 1
    exact: bool = False

    @property
    def rows_per_block(self) -> int:
        """Slots of a block: its tokens, unless one row stands for several."""
        return self.tokens_per_block // self.every_tokens

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer's record in a block."""
        return self.kv_heads * self.head_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of a block that hold rows of real layers (the rest is padding)."""
        return len(self.layers) * self.row_bytes_per_layer * self.rows_per_block

    def offset_bytes(self, place: int, head: int, stream: int) -> int:
        """Byte offset of a tile from the start of its block."""
        return place * self.layer_bytes + head * self.head_bytes + self.streams[stream].offset_bytes

    def blocks_for(self, n_tokens: int) -> int:
        """Blocks a sequence holds for this group once ``n_tokens`` are computed and windows have let go."""
        return held_blocks(self.retention, n_tokens, self.tokens_per_block)
