"""The attention contract: a work list in, weighted values out.

A *work item* is a run of blocks inside one cell (512 positions) of the position grid, together with all query rows
that read it. Every KV head of the layer runs the same items. One contract serves decode, chunked prefill, draft
verification, GQA sharing, split-K (FlashDecoding, arXiv 2311.01282) and shared prefixes (the same run of blocks in
several sequences is one item).

What an implementation promises:

* A row's result depends on that row, its limits and the blocks alone: within a cell, slots are visited in ascending
  order; each cell yields (max, sum, weighted V) from an empty start; cells merge in ascending order with the exact
  log-sum-exp rule. Never on how many rows, items or threads there are.
* Slots outside a row's limits are never read into its result, even when they hold NaN.
* A row with nothing to see gives zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from kvist.spec.layout import CacheLayout

_TORCH = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class LayerView:
    """Where one layer's tiles lie inside every block, and their shape. Offsets in bytes from the start of a block.

    K tiles are ``[tokens_per_block / 16][key_dim][16]``, V tiles ``[tokens_per_block][value_dim]``; in ``int8t``,
    ``[tokens_per_block / 16][key_dim / 2][16][2]`` and ``[tokens_per_block / 2][value_dim][2]``, each followed by one
    float16 scale a slot. For a latent layer ``v_offset_bytes`` is -1: values are the first ``value_dim`` dims of the K
    (latent) row.
    """

    k_offset_bytes: int
    v_offset_bytes: int
    head_bytes: int
    kv_heads: int
    key_dim: int
    value_dim: int
    tokens_per_block: int
    k_element: str
    v_element: str


def layer_view(layout: CacheLayout, layer: int, *, value_dim: int, exact: bool = False) -> LayerView:
    """The view of a model layer that owns a cache. ``value_dim`` is the layer's (for MLA: the latent rank).

    ``exact``: of its sinks and current cell, in a format with cells.
    """
    group, place = layout.places_of(layer)[1] if exact else layout.place_of(layer)
    k = group.streams[0]
    v = next((s for s in group.streams if s.row.name == "v"), None)
    base = place * group.layer_bytes
    return LayerView(
        k_offset_bytes=base + k.offset_bytes,
        v_offset_bytes=base + v.offset_bytes if v else -1,
        head_bytes=group.head_bytes,
        kv_heads=group.kv_heads,
        key_dim=k.row.dim,
        value_dim=v.row.dim if v else value_dim,
        tokens_per_block=group.tokens_per_block,
        k_element=k.element.name,
        v_element=v.element.name if v else k.element.name,
    )


def key_tiles(pool: torch.Tensor, view: LayerView) -> torch.Tensor:
    """K (or latent) tiles of floats: a strided view [blocks, kv_heads, tokens_per_block / 16, key_dim, 16]."""
    typed = pool.view(_TORCH[view.k_element])
    size = typed.element_size()
    shape = (len(pool), view.kv_heads, view.tokens_per_block // 16, view.key_dim, 16)
    strides = (typed.stride(0), view.head_bytes // size, view.key_dim * 16, 16, 1)
    return typed.as_strided(shape, strides, typed.storage_offset() + view.k_offset_bytes // size)


def value_tiles(pool: torch.Tensor, view: LayerView) -> torch.Tensor:
    """V tiles of floats: a strided view [blocks, kv_heads, tokens_per_block, value_dim]. Not for latent layers."""
    typed = pool.view(_TORCH[view.v_element])
    size = typed.element_size()
    shape = (len(pool), view.kv_heads, view.tokens_per_block, view.value_dim)
    strides = (typed.stride(0), view.head_bytes // size, view.value_dim, 1)
    return typed.as_strided(shape, strides, typed.storage_offset() + view.v_offset_bytes // size)


@dataclass(frozen=True, slots=True)
class WorkList:
    """The items of one step for one group, as flat int32 arrays (CSR where ``*_start`` has one entry more).

    ``item_position[i]`` is the absolute position of the first slot of item i's first block; its blocks are
    ``blocks[item_block_start[i] : item_block_start[i+1]]`` and its query rows
    ``item_rows[item_row_start[i] : item_row_start[i+1]]``. Row r reads positions ``[0, row_sinks[r])`` and
    ``[row_first[r], row_end[r])``, both within what its items cover and disjoint. ``row_items[row_item_start[r] :
    row_item_start[r+1]]`` are row r's items by ascending position: one per cell, except that the blocks which hold
    sinks are always an item of their own (so that the cut does not depend on what a window has let go).
    """

    item_position: np.ndarray
    item_block_start: np.ndarray
    blocks: np.ndarray
    item_row_start: np.ndarray
    item_rows: np.ndarray
    row_first: np.ndarray
    row_end: np.ndarray
    row_sinks: np.ndarray
    row_item_start: np.ndarray
    row_items: np.ndarray

    @property
    def rows(self) -> int:
        """Query rows."""
        return len(self.row_end)


@dataclass(frozen=True, slots=True)
class Carry:
    """Where one run over a row's positions leaves off and the next goes on, of the same kernel.

    ``state`` float32 [rows, q_heads, 2] is the kernel's own; ``out`` holds the weighted V so far, and is what was asked
    for after the ``last`` run. The ``first`` begins with nothing.
    """

    state: torch.Tensor
    first: bool
    last: bool


class AttentionKernel(Protocol):
    """One implementation. ``pool`` is uint8 [blocks, block_bytes], 64-byte aligned."""

    name: str

    def supports(self, view: LayerView) -> bool:
        """Whether this variant can read the layer's tiles (element types, dims, latent or not)."""
        ...

    def __call__(
        self,
        q: torch.Tensor,
        pool: torch.Tensor,
        view: LayerView,
        work: WorkList,
        *,
        scale: float,
        softcap: float,
        out: torch.Tensor,
        carry: Carry | None = None,
    ) -> None:
        """Fill ``out`` float32 [rows, q_heads, value_dim] from ``q`` float32 [rows, q_heads, key_dim] (rotated).

        With ``carry`` this is one of several runs, each over positions of its own.
        """
        ...
