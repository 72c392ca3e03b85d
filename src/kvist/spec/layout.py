"""Where every byte of the cache lies: one block is one run of bytes, ``[layer][kv_head][stream][tile]``.

Layers with the same retention rule and geometry form *groups* of equal layer count. Blocks of every group have the
same size, so that one pool serves them all; where geometry differs, layers per block and tokens per block differ
instead (tokens are always the base size times a power of two). What does not divide evenly is padding, and is reported.

A layer with compressed attention (DeepSeek-V4) is in two groups: one for its window, one for rows that stand for
``every_tokens`` tokens each. Only there do a block's rows (slots) and its tokens differ.

Inside a tile (one stream of one head of one layer, ``T`` slots):

* ``k``, ``latent``, ``index``: ``[T / 16][dim][16]``. Sixteen neighbouring slots lie side by side for each dim, so a
  kernel scores sixteen keys with one broadcast of ``q[dim]``. K is stored after rotation.
* ``v``: ``[T][dim]``.

In ``int8t`` numbers lie in pairs, as a kernel multiplies them: ``[T / 16][dim / 2][16][2]`` (neighbouring dims) and
``v``: ``[T / 2][dim][2]`` (neighbouring slots); the ``T`` float16 scales of the slots follow behind all of them.

Codes of fewer bits (``lm4`` ... ``sm2``) lie as bit planes, of 4 bits (``lm4``), of 2 and then of 1 (``lm3``) or of 2
(``lm2``), the lowest bits first, both planes of 16 slots one after the other. In a plane of ``b`` bits, ``n = 8 / b``
numbers of one slot share a byte, as pairs: ``[dim / 2 / n][16][2]`` bytes for K, where bits ``[i * b, (i + 1) * b)``
belong to pair ``n * row + i`` of the dims, and ``[8][dim / n][2]`` for V, where they belong to dim ``i * dim / n +
column``. The ``T`` scales follow.

Every tile starts on a 64-byte boundary of the block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvist.errors import BadValue, ModelError
from kvist.ids import GroupId
from kvist.spec.format import KVFormat
from kvist.spec.group import ALIGN_BYTES, CELL_TOKENS, HASH_TOKENS, Group, Stream, spanned_blocks
from kvist.spec.layer import CachePart
from kvist.spec.model import ModelSpec
from kvist.units import ceil_div, round_up

__all__ = [
    "ALIGN_BYTES",
    "CELL_TOKENS",
    "HASH_TOKENS",
    "MAX_GROUPS",
    "NOMINAL_TOKENS",
    "CacheLayout",
    "Group",
    "Stream",
    "plan_layout",
]

MAX_GROUPS: Final = 16

NOMINAL_TOKENS: Final = 8192
"""Length of the sequence for which layouts are compared."""

SLACK_PERCENT: Final = 5
"""Memory that a layout may waste for a finer span."""


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
        places = self.places_of(layer)
        if not places:
            raise KeyError(f"layer {layer} owns no cache")
        return places[0]

    def places_of(self, layer: int) -> tuple[tuple[Group, int], ...]:
        """Every group a layer has rows in: none, one, or two: for compressed attention (its window first), and in a
        format with cells (packed rows first).
        """
        return tuple((g, g.layers.index(layer)) for g in self.groups if layer in g.layers)

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


@dataclass(frozen=True, slots=True)
class _Kind:
    """Layers that keep the same thing by the same rule: they may share groups. ``records[j]`` is the bytes of one
    layer's record with ``base_rows << j`` slots.
    """

    part: CachePart
    layers: tuple[int, ...]
    base_rows: int
    records: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Cut:
    """How one kind fills blocks of a given size: ``places`` layers of ``rows`` slots each, in ``groups`` groups.

    ``cost`` is what a sequence of ``NOMINAL_TOKENS`` takes, in half blocks: an open block is half empty on average.
    """

    rows: int
    places: int
    groups: int
    cost: int


def _streams(part: CachePart, fmt: KVFormat, rows: int) -> tuple[tuple[Stream, ...], int]:
    fmt = part.format_in(fmt)
    side = {"k": fmt.k, "v": fmt.v}
    streams: list[Stream] = []
    offset = 0
    for row in part.rows:
        if fmt.in_cells and row.name in ("latent", "index"):
            what = (
                "a format that keeps a latent row and what is found by it together, such as f16: lm formats rotate rows"
            )
            raise BadValue("kv_format", fmt.name, what)
        step = side[row.side].dim_step
        if row.dim % step:
            what = f"a format that takes {row.name} rows of {row.dim} numbers: this one takes multiples of {step}"
            raise BadValue("kv_format", fmt.name, what)
        tile = side[row.side].row_bytes(row.dim) * rows
        streams.append(Stream(row, side[row.side], offset, tile))
        offset += round_up(tile, ALIGN_BYTES)
    return tuple(streams), offset


def _kinds(model: ModelSpec, fmt: KVFormat, block_tokens: int) -> list[_Kind]:
    members: dict[CachePart, list[int]] = {}
    for layer in model.layers:
        for part in layer.parts_in(fmt):
            members.setdefault(part, []).append(layer.index)
    kinds: list[_Kind] = []
    for part, layers in members.items():
        base = block_tokens if part.every_tokens == 1 else HASH_TOKENS
        sizes = [base << j for j in range((CELL_TOKENS // base).bit_length())]
        records = tuple(part.heads * _streams(part, fmt, rows)[1] for rows in sizes)
        kinds.append(_Kind(part, tuple(layers), base, records))
    return kinds


def _cut(kind: _Kind, block_bytes: int) -> _Cut | None:
    """The cheapest way to fill blocks of this size, with few slots if there is a choice; None if no layer fits."""
    cuts: list[_Cut] = []
    for j, record in enumerate(kind.records):
        if record > block_bytes:
            break
        rows = kind.base_rows << j
        groups = ceil_div(len(kind.layers), min(block_bytes // record, len(kind.layers)))
        touched = spanned_blocks(kind.part.retention, NOMINAL_TOKENS, rows * kind.part.every_tokens)
        half_empty = 0 if kind.part.retention.bounded else 1
        cuts.append(_Cut(rows, ceil_div(len(kind.layers), groups), groups, groups * (2 * touched + half_empty)))
    return min(cuts, key=lambda cut: (cut.cost, cut.rows), default=None)


def plan_layout(
    model: ModelSpec, fmt: KVFormat, *, block_tokens: int = 32, state_element_bytes: int = 4
) -> CacheLayout:
    """Cut a model's layers into groups with the least padding.

    Every block size that some whole number of layers fills is tried. Among those that give a sequence of
    ``NOMINAL_TOKENS`` at most ``SLACK_PERCENT`` more than the least bytes, the one with the smallest span wins (that is
    how finely prefixes are shared), then the one with fewest groups, then the smallest block; at most ``MAX_GROUPS``
    groups unless the model has more kinds of layer. ``block_tokens`` is the base size: a power of two from 16 to 512.
    Raises ``BadValue`` or ``ModelError``.
    """
    if block_tokens not in (16, 32, 64, 128, 256, 512):
        raise BadValue("block_tokens", block_tokens, "16, 32, 64, 128, 256 or 512")
    kinds = _kinds(model, fmt, block_tokens)
    state_bytes = model.state_elements * state_element_bytes
    if not kinds:
        if not state_bytes:
            raise ModelError("the model keeps no cache at all", remedy="check the config: no layer owns KV or state")
        return CacheLayout((), round_up(state_bytes, ALIGN_BYTES), fmt, state_bytes)
    best = _choose(kinds)
    groups: list[Group] = []
    for kind, cut in zip(kinds, best.cuts, strict=True):
        groups += _groups_of(kind, cut, fmt, first_id=len(groups))
    return CacheLayout(tuple(groups), best.block_bytes, fmt, state_bytes)


@dataclass(frozen=True, slots=True)
class _Option:
    """One block size with everybody's cut."""

    cost_bytes: int
    span_tokens: int
    groups: int
    block_bytes: int
    cuts: tuple[_Cut, ...]


def _choose(kinds: list[_Kind]) -> _Option:
    sizes = {places * kind.records[0] for kind in kinds for places in range(1, len(kind.layers) + 1)}
    options: list[_Option] = []
    for block_bytes in sizes:
        cuts = tuple(cut for cut in (_cut(kind, block_bytes) for kind in kinds) if cut is not None)
        groups = sum(cut.groups for cut in cuts)
        if len(cuts) == len(kinds) and groups <= max(MAX_GROUPS, len(kinds)):
            cost = sum(cut.cost for cut in cuts) * block_bytes
            span = max(c.rows * k.part.every_tokens for c, k in zip(cuts, kinds, strict=True))
            options.append(_Option(cost, span, groups, block_bytes, cuts))
    limit = min(option.cost_bytes for option in options) * (100 + SLACK_PERCENT)
    good = [option for option in options if option.cost_bytes * 100 <= limit]
    return min(good, key=lambda o: (o.span_tokens, o.groups, o.block_bytes))


def _groups_of(kind: _Kind, cut: _Cut, fmt: KVFormat, *, first_id: int) -> list[Group]:
    streams, head_bytes = _streams(kind.part, fmt, cut.rows)
    runs = [kind.layers[i : i + cut.places] for i in range(0, len(kind.layers), cut.places)]
    return [
        Group(
            id=GroupId(first_id + i),
            layers=run,
            places=cut.places,
            retention=kind.part.retention,
            tokens_per_block=cut.rows * kind.part.every_tokens,
            kv_heads=kind.part.heads,
            streams=streams,
            head_bytes=head_bytes,
            row_bytes_per_layer=kind.part.row_bytes(fmt),
            every_tokens=kind.part.every_tokens,
            exact=kind.part.exact,
        )
        for i, run in enumerate(runs)
    ]
