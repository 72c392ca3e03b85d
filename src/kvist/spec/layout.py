"""Where every byte of the cache lies: one block is one run of bytes, ``[layer][kv_head][stream][tile]``.

Layers with the same retention rule and geometry form *groups* of equal layer count, so that blocks of every group
have the same size and one pool serves them all. Where geometry differs, tokens per block differ instead (always the
base size times a power of two). What does not divide evenly is padding, and is reported.

Inside a tile (one stream of one head of one layer, ``T`` slots):

* ``k``, ``latent``, ``index``: ``[T / 16][dim][16]``. Sixteen neighbouring slots lie side by side for each dim, so a
  kernel scores sixteen keys with one broadcast of ``q[dim]``. K is stored after rotation.
* ``v``: ``[T][dim]``.

Every tile starts on a 64-byte boundary of the block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvist.errors import BadValue, ModelError
from kvist.ids import GroupId
from kvist.spec.format import Element, KVFormat
from kvist.spec.layer import LayerSpec, Retention, StreamRow
from kvist.spec.model import ModelSpec
from kvist.units import ceil_div, round_up

HASH_TOKENS: Final = 16
"""Slots of one K lane group; every tokens-per-block is a multiple of it."""

CELL_TOKENS: Final = 512
"""Attention runs are cut on this position grid, a multiple of every block."""

ALIGN_BYTES: Final = 64
MAX_GROUPS: Final = 16


@dataclass(frozen=True, slots=True)
class Stream:
    """One tile's place: ``offset_bytes`` from the start of its (layer, head) record."""

    row: StreamRow
    element: Element
    offset_bytes: int
    tile_bytes: int


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share one block table. ``layers[i]`` is the model layer stored at place ``i`` of a block."""

    id: GroupId
    layers: tuple[int, ...]
    places: int
    retention: Retention
    tokens_per_block: int
    kv_heads: int
    streams: tuple[Stream, ...]
    head_bytes: int
    row_bytes_per_layer: int

    @property
    def layer_bytes(self) -> int:
        """Bytes of one layer's record in a block."""
        return self.kv_heads * self.head_bytes

    @property
    def used_bytes(self) -> int:
        """Bytes of a block that hold rows of real layers (the rest is padding)."""
        return len(self.layers) * self.row_bytes_per_layer * self.tokens_per_block

    def offset_bytes(self, place: int, head: int, stream: int) -> int:
        """Byte offset of a tile from the start of its block."""
        return place * self.layer_bytes + head * self.head_bytes + self.streams[stream].offset_bytes

    def blocks_for(self, n_tokens: int) -> int:
        """Blocks a sequence holds for this group once ``n_tokens`` are computed and windows have let go."""
        first = self.retention.first_needed(n_tokens) // self.tokens_per_block
        sinks = ceil_div(min(self.retention.sinks, n_tokens), self.tokens_per_block)
        return ceil_div(n_tokens, self.tokens_per_block) - first + min(sinks, first)


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """The layout of every block of one model in one format."""

    groups: tuple[Group, ...]
    block_bytes: int
    format: KVFormat
    state_bytes: int = 0

    @property
    def span_tokens(self) -> int:
        """Largest tokens-per-block: tree nodes are cut at multiples of it."""
        return max((g.tokens_per_block for g in self.groups), default=HASH_TOKENS)

    def place_of(self, layer: int) -> tuple[Group, int]:
        """Group of a model layer and its place inside a block. Raises ``KeyError`` if it owns no cache."""
        for group in self.groups:
            if layer in group.layers:
                return group, group.layers.index(layer)
        raise KeyError(f"layer {layer} owns no cache")

    def blocks_for(self, n_tokens: int) -> int:
        """Blocks a sequence of ``n_tokens`` computed tokens holds, all groups."""
        return sum(g.blocks_for(n_tokens) for g in self.groups)

    def bytes_for(self, n_tokens: int) -> int:
        """Bytes those blocks take: what the pool really gives away for the sequence."""
        return self.blocks_for(n_tokens) * self.block_bytes

    def peak_blocks_for(self, n_tokens: int, step_tokens: int) -> int:
        """Most blocks a sequence holds on its way to ``n_tokens`` when a step adds at most ``step_tokens``."""
        total = 0
        for g in self.groups:
            whole = ceil_div(n_tokens, g.tokens_per_block)
            if g.retention.bounded:
                kept = (g.retention.window_tokens or g.retention.chunk_tokens or 0) + step_tokens
                sinks = ceil_div(g.retention.sinks, g.tokens_per_block)
                whole = min(whole, ceil_div(kept, g.tokens_per_block) + 1 + sinks)
            total += whole
        return total

    def padding_bytes_per_block(self, group: Group) -> int:
        """Bytes of a block that hold nothing."""
        return self.block_bytes - group.used_bytes

    @property
    def state_blocks(self) -> int:
        """Blocks that one sequence's recurrent state takes."""
        return ceil_div(self.state_bytes, self.block_bytes) if self.state_bytes else 0


def _streams(layer: LayerSpec, fmt: KVFormat, tokens: int) -> tuple[tuple[Stream, ...], int]:
    side = {"k": fmt.k, "v": fmt.v}
    streams: list[Stream] = []
    offset = 0
    for row in layer.stream_rows:
        tile = side[row.side].row_bytes(row.dim) * tokens
        streams.append(Stream(row, side[row.side], offset, tile))
        offset += round_up(tile, ALIGN_BYTES)
    return tuple(streams), offset


def _record_bytes(layer: LayerSpec, fmt: KVFormat, tokens: int) -> int:
    return layer.cache_heads * _streams(layer, fmt, tokens)[1]


def _tokens_that_fit(layer: LayerSpec, fmt: KVFormat, places: int, base: int, block_bytes: int) -> int:
    tokens = base
    while tokens * 2 <= CELL_TOKENS and places * _record_bytes(layer, fmt, tokens * 2) <= block_bytes:
        tokens *= 2
    return tokens


def plan_layout(model: ModelSpec, fmt: KVFormat, *, block_tokens: int = 32, state_element_bytes: int = 4) -> CacheLayout:
    """Cut a model's layers into groups with the least padding.

    Every number of layers per group is tried; the one that wastes fewest bytes per token wins, ties go to fewer
    groups; at most ``MAX_GROUPS`` groups unless the model has more kinds of layer. ``block_tokens`` is the base size:
    a power of two from 16 to 512. Raises ``BadValue`` or ``ModelError``.
    """
    if block_tokens not in (16, 32, 64, 128, 256, 512):
        raise BadValue("block_tokens", block_tokens, "16, 32, 64, 128, 256 or 512")
    kinds: dict[tuple[Retention, int, tuple[StreamRow, ...]], list[LayerSpec]] = {}
    for layer in model.layers:
        if layer.owns_cache:
            kinds.setdefault((layer.retention, layer.cache_heads, layer.stream_rows), []).append(layer)
    state_bytes = model.state_elements * state_element_bytes
    if not kinds:
        if not state_bytes:
            raise ModelError("the model keeps no cache at all", remedy="check the config: no layer owns KV or state")
        return CacheLayout((), round_up(state_bytes, ALIGN_BYTES), fmt, state_bytes)
    members = list(kinds.values())
    best: tuple[float, int, int] | None = None
    for places in range(1, max(map(len, members)) + 1):
        n_groups = sum(ceil_div(len(m), places) for m in members)
        if n_groups > max(MAX_GROUPS, len(members)):
            continue
        block = places * max(_record_bytes(m[0], fmt, block_tokens) for m in members)
        spent = sum(
            ceil_div(len(m), places) * block / _tokens_that_fit(m[0], fmt, places, block_tokens, block) for m in members
        )
        if best is None or (spent, n_groups) < best[:2]:
            best = (spent, n_groups, places)
    assert best is not None
    return _build(members, fmt, best[2], block_tokens, state_bytes)


def _build(members: list[list[LayerSpec]], fmt: KVFormat, places: int, base: int, state_bytes: int) -> CacheLayout:
    block_bytes = places * max(_record_bytes(m[0], fmt, base) for m in members)
    groups: list[Group] = []
    for layers in members:
        first = layers[0]
        tokens = _tokens_that_fit(first, fmt, places, base, block_bytes)
        streams, head_bytes = _streams(first, fmt, tokens)
        for run in _batched(layers, places):
            groups.append(
                Group(
                    id=GroupId(len(groups)),
                    layers=tuple(layer.index for layer in run),
                    places=places,
                    retention=first.retention,
                    tokens_per_block=tokens,
                    kv_heads=first.cache_heads,
                    streams=streams,
                    head_bytes=head_bytes,
                    row_bytes_per_layer=first.kv_bytes_per_token(fmt),
                )
            )
    return CacheLayout(tuple(groups), block_bytes, fmt, state_bytes)


def _batched(items: list[LayerSpec], size: int) -> list[tuple[LayerSpec, ...]]:
    return [tuple(items[i : i + size]) for i in range(0, len(items), size)]
