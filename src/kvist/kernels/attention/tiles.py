"""Rows of K and V in and out of the blocks, in obvious torch: what the judges and the slow paths use.

``int8t`` keeps one float16 scale for each row (token and head) behind the data of its tile: ``value = scale x int8``.
The scale is the smallest for which every number of the row lies within +-127: the largest magnitude / 127, rounded
up. A row of zeros has scale 0; a row with a NaN, an infinity or more than such a scale can hold has scale NaN, and all
of it reads as NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvist.kernels.attention import planes
from kvist.kernels.attention.base import LayerView, key_tiles, value_tiles
from kvist.kernels.codec.lloyd import decode_rotated, encode_rotated
from kvist.spec.format import ELEMENTS

PACKED = "int8t"
FLOATS = ("f32", "f16", "bf16")


def read_keys(pool: torch.Tensor, view: LayerView, ids: torch.Tensor) -> torch.Tensor:
    """float32 [blocks, kv_heads, slots, key_dim] of the blocks ``ids`` int64 [blocks]."""
    blocks, slots = len(ids), view.tokens_per_block
    if view.k_element in FLOATS:
        tiles = key_tiles(pool, view)[ids]  # [blocks, kv_heads, T / 16, key_dim, 16]
        return tiles.transpose(-1, -2).reshape(blocks, view.kv_heads, slots, view.key_dim).float()
    scales = _key_scales(pool, view)[ids]
    if view.k_element == PACKED:
        data = _packed_keys(pool, view)[ids].permute(0, 1, 2, 4, 3, 5)  # [blocks, kv_heads, T / 16, 16, key_dim / 2, 2]
        return data.reshape(blocks, view.kv_heads, slots, -1).float() * scales.float()[..., None]
    return decode_rotated(planes.read_key_codes(pool, view, ids), scales, ELEMENTS[view.k_element].bits)


def read_values(pool: torch.Tensor, view: LayerView, ids: torch.Tensor) -> torch.Tensor:
    """float32 [blocks, kv_heads, slots, value_dim] of the blocks ``ids`` int64 [blocks]. Not for latent layers."""
    if view.v_element in FLOATS:
        return value_tiles(pool, view)[ids].float()
    scales = _value_scales(pool, view)[ids]
    if view.v_element == PACKED:
        data = _packed_values(pool, view)[ids].transpose(-1, -2)  # [blocks, kv_heads, T / 2, 2, value_dim]
        data = data.reshape(len(ids), view.kv_heads, view.tokens_per_block, -1)
        return data.float() * scales.float()[..., None]
    return decode_rotated(planes.read_value_codes(pool, view, ids), scales, ELEMENTS[view.v_element].bits)


def write_keys(pool: torch.Tensor, view: LayerView, block: torch.Tensor, slot: torch.Tensor, k: torch.Tensor) -> None:
    """``k`` float32 [rows, kv_heads, key_dim] into slots ``slot`` of blocks ``block``, both int64 [rows]."""
    if view.k_element in FLOATS:
        tiles = key_tiles(pool, view)
        tiles[block, :, slot // 16, :, slot % 16] = k.to(tiles.dtype)
        return
    if view.k_element == PACKED:
        data, scales = pack_rows(k)
        pairs = data.view(len(k), view.kv_heads, view.key_dim // 2, 2)
        _packed_keys(pool, view)[block, :, slot // 16, :, slot % 16] = pairs
    else:
        codes, scales = encode_rotated(k, ELEMENTS[view.k_element].bits, "distance")
        planes.write_key_codes(pool, view, block, slot, codes)
    _key_scales(pool, view)[block, :, slot] = scales


def write_values(pool: torch.Tensor, view: LayerView, block: torch.Tensor, slot: torch.Tensor, v: torch.Tensor) -> None:
    """``v`` float32 [rows, kv_heads, value_dim], as :func:`write_keys` does it. Not for latent layers."""
    if view.v_element in FLOATS:
        tiles = value_tiles(pool, view)
        tiles[block, :, slot] = v.to(tiles.dtype)
        return
    if view.v_element == PACKED:
        data, scales = pack_rows(v)
        _packed_values(pool, view)[block, :, slot // 2, :, slot % 2] = data
    else:
        codes, scales = encode_rotated(v, ELEMENTS[view.v_element].bits, "norm")
        planes.write_value_codes(pool, view, block, slot, codes)
    _value_scales(pool, view)[block, :, slot] = scales


def pack_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of ``x`` float32 [..., dim] as int8 of the same shape, and their float16 scales [...]."""
    least = x.abs().amax(dim=-1) / 127
    scale = least.half()
    short = scale.float() < least
    scale = torch.where(short, scale.view(torch.int16) + 1, scale.view(torch.int16)).view(torch.float16)
    scale = torch.where(least <= torch.finfo(torch.float16).max, scale, torch.nan)
    data = torch.round(x / scale.float()[..., None])
    return torch.where(scale[..., None] > 0, data, 0.0).to(torch.int8), scale


def _bytes(pool: torch.Tensor, view: LayerView, offset: int, shape: Sequence[int], size: int) -> torch.Tensor:
    """A strided view [blocks, kv_heads, *shape] of whatever lies ``offset`` bytes into each head's record."""
    typed = pool.view(torch.int8 if size == 1 else torch.float16)
    strides = [1]
    for n in reversed(shape[1:]):
        strides.insert(0, strides[0] * n)
    whole = (len(pool), view.kv_heads, *shape)
    return typed.as_strided(
        whole, (typed.stride(0), view.head_bytes // size, *strides), typed.storage_offset() + offset // size
    )


def _packed_keys(pool: torch.Tensor, view: LayerView) -> torch.Tensor:
    """int8 [blocks, kv_heads, slots / 16, key_dim / 2, 16, 2]."""
    return _bytes(pool, view, view.k_offset_bytes, (view.tokens_per_block // 16, view.key_dim // 2, 16, 2), 1)


def _packed_values(pool: torch.Tensor, view: LayerView) -> torch.Tensor:
    """int8 [blocks, kv_heads, slots / 2, value_dim, 2]."""
    return _bytes(pool, view, view.v_offset_bytes, (view.tokens_per_block // 2, view.value_dim, 2), 1)


def _key_scales(pool: torch.Tensor, view: LayerView) -> torch.Tensor:
    """float16 [blocks, kv_heads, slots]: behind the numbers of the tile."""
    slots = view.tokens_per_block
    behind = slots * view.key_dim * ELEMENTS[view.k_element].bits // 8
    return _bytes(pool, view, view.k_offset_bytes + behind, (slots,), 2)


def _value_scales(pool: torch.Tensor, view: LayerView) -> torch.Tensor:
    """float16 [blocks, kv_heads, slots]."""
    slots = view.tokens_per_block
    behind = slots * view.value_dim * ELEMENTS[view.v_element].bits // 8
    return _bytes(pool, view, view.v_offset_bytes + behind, (slots,), 2)
