"""Codes of 4, 3 or 2 bits in and out of the blocks: as bit planes, where several numbers of one slot share a byte.

See ``kvist.spec.layout`` for where every bit lies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import torch

from kvist.kernels.attention.base import LayerView
from kvist.spec.format import ELEMENTS

PLANES: Final = {4: (4,), 3: (2, 1), 2: (2,)}
"""Widths of a code's planes, the lowest bits first."""


def read_key_codes(pool: torch.Tensor, view: LayerView, ids: torch.Tensor) -> torch.Tensor:
    """uint8 [blocks, kv_heads, slots, key_dim] of the blocks ``ids`` int64 [blocks]."""
    codes = torch.zeros(len(ids), view.kv_heads, view.tokens_per_block, view.key_dim, dtype=torch.int32)
    for plane, width, low in _key_planes(pool, view):
        numbers = _apart(plane[ids], width, 4)  # [blocks, kv_heads, T / 16, dim / 2 / n, n, 16, 2]
        codes |= numbers.movedim(5, 3).reshape(codes.shape) << low
    return codes.to(torch.uint8)


def write_key_codes(
    pool: torch.Tensor, view: LayerView, block: torch.Tensor, slot: torch.Tensor, codes: torch.Tensor
) -> None:
    """``codes`` uint8 [rows, kv_heads, key_dim] into slots ``slot`` of blocks ``block``, both int64 [rows]."""
    for plane, width, low in _key_planes(pool, view):
        numbers = _part(codes, width, low).reshape(*codes.shape[:-1], -1, 8 // width, 2)
        plane[block, :, slot // 16, :, slot % 16] = _together(numbers, width, 3)


def read_value_codes(pool: torch.Tensor, view: LayerView, ids: torch.Tensor) -> torch.Tensor:
    """uint8 [blocks, kv_heads, slots, value_dim] of the blocks ``ids`` int64 [blocks]."""
    codes = torch.zeros(len(ids), view.kv_heads, view.tokens_per_block, view.value_dim, dtype=torch.int32)
    for plane, width, low in _value_planes(pool, view):
        numbers = _apart(plane[ids], width, 4)  # [blocks, kv_heads, T / 16, 8, n, dim / n, 2]
        codes |= numbers.movedim(6, 4).reshape(codes.shape) << low
    return codes.to(torch.uint8)


def write_value_codes(
    pool: torch.Tensor, view: LayerView, block: torch.Tensor, slot: torch.Tensor, codes: torch.Tensor
) -> None:
    """``codes`` uint8 [rows, kv_heads, value_dim], as :func:`write_key_codes` does it."""
    for plane, width, low in _value_planes(pool, view):
        numbers = _part(codes, width, low).reshape(*codes.shape[:-1], 8 // width, -1)
        plane[block, :, slot // 16, slot % 16 // 2, :, slot % 2] = _together(numbers, width, 2)


def _key_planes(pool: torch.Tensor, view: LayerView) -> Iterator[tuple[torch.Tensor, int, int]]:
    """(bytes [blocks, kv_heads, T / 16, dim / 2 / n, 16, 2], width, lowest bit) of each plane."""
    return _planes(
        pool, view, view.k_offset_bytes, view.k_element, view.key_dim, lambda n: (view.key_dim // 2 // n, 16, 2)
    )


def _value_planes(pool: torch.Tensor, view: LayerView) -> Iterator[tuple[torch.Tensor, int, int]]:
    """(bytes [blocks, kv_heads, T / 16, 8, dim / n, 2], width, lowest bit) of each plane."""
    return _planes(
        pool, view, view.v_offset_bytes, view.v_element, view.value_dim, lambda n: (8, view.value_dim // n, 2)
    )


def _planes(
    pool: torch.Tensor,
    view: LayerView,
    offset: int,
    element: str,
    dim: int,
    shape: Callable[[int], tuple[int, int, int]],
) -> Iterator[tuple[torch.Tensor, int, int]]:
    bits, low = ELEMENTS[element].bits, 0
    for width in PLANES[bits]:
        a, b, c = shape(8 // width)
        whole = (len(pool), view.kv_heads, view.tokens_per_block // 16, a, b, c)
        strides = (pool.stride(0), view.head_bytes, 16 * dim * bits // 8, b * c, c, 1)
        yield pool.as_strided(whole, strides, pool.storage_offset() + offset), width, low
        offset, low = offset + 16 * dim * width // 8, low + width


def _part(codes: torch.Tensor, width: int, low: int) -> torch.Tensor:
    """The bits of one plane."""
    return codes.int() >> low & (1 << width) - 1


def _together(numbers: torch.Tensor, width: int, dim: int) -> torch.Tensor:
    """Numbers that share a byte lie along ``dim``: uint8 without it."""
    shifts = torch.arange(0, 8, width, dtype=torch.int32).view(-1, *[1] * (numbers.ndim - dim - 1))
    return (numbers << shifts).sum(dim=dim).to(torch.uint8)


def _apart(plane: torch.Tensor, width: int, dim: int) -> torch.Tensor:
    """The inverse: int32 with the numbers of a byte along a new ``dim``."""
    shifts = torch.arange(0, 8, width, dtype=torch.int32).view(-1, *[1] * (plane.ndim - dim))
    return plane.int().unsqueeze(dim) >> shifts & (1 << width) - 1
