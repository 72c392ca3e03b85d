"""Makes packed matrices: from integers that a file holds, or from floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from kvist.errors import BadValue
from kvist.kernels.matrix import GROUP, LANES, RECORD_BYTES, Matrix
from kvist.spec.weight_kinds import matrix_bytes, packable
from kvist.units import ceil_div

__all__ = ["GroupedRows", "Packer", "packable", "quantise_w8", "quantised_rows", "tile_w4", "tile_w8"]

_SIGN: Final = np.uint32(0x80808080)
_LOW: Final = np.uint32(0x0F0F0F0F)
_HIGH: Final = np.uint32(0xF0F0F0F0)
_FOUR: Final = np.uint32(4)


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Rows of a packed matrix before they are tiled.

    ``words`` uint32 [rows, groups, vectors]: the bytes that a row has in each vector of its records. ``scales`` f16,
    one [rows, groups] for every scale of the kind: d (and m).
    """

    words: np.ndarray
    scales: tuple[np.ndarray, ...]


class Packer:
    """Fills the records of one matrix some rows at a time, so that it is never held unpacked."""

    def __init__(self, kind: str, outputs: int, inputs: int) -> None:
        if not packable(inputs):
            raise BadValue("inputs", inputs, f"a multiple of {GROUP}")
        data = torch.empty(matrix_bytes(kind, outputs, inputs), dtype=torch.uint8)
        self.matrix = Matrix(kind, outputs, inputs, data)
        self._records = data.numpy().reshape(ceil_div(outputs, LANES), inputs // GROUP, RECORD_BYTES[kind])

    def put(self, first: int, rows: GroupedRows) -> None:
        """Rows from ``first`` on: ``first`` and, but at the end of the matrix, their count are multiples of 16."""
        words, scales = rows.words, list(rows.scales)
        count, groups, vectors = words.shape
        tiles = self._records[first // LANES : ceil_div(first + count, LANES)]
        if first % LANES or (count % LANES and first + count != self.matrix.outputs):
            raise BadValue("rows", (first, count), f"whole tiles of {LANES}")
        if count % LANES:
            words, *scales = (_padded(a) for a in (words, *scales))
        body = tiles[..., : vectors * 64].view(np.uint32).reshape(len(tiles), groups, vectors, LANES)
        body[...] = words.reshape(len(tiles), LANES, groups, vectors).transpose(0, 2, 3, 1)
        for i, s in enumerate(scales):
            at = vectors * 64 + 32 * i
            tail = tiles[..., at : at + 32].view(np.float16)
            tail[...] = s.reshape(len(tiles), LANES, groups).swapaxes(1, 2)


def tile_w4(q: np.ndarray, d: np.ndarray, m: np.ndarray) -> Matrix:
    """``q`` uint8 [outputs, inputs] of 0..15; ``d`` and ``m`` float16 [outputs, inputs / 32]: weights d * q + m."""
    outputs, inputs = _checked(q, np.uint8, d, m)
    if q.size and q.max() > 15:
        raise BadValue("q", int(q.max()), "at most 15")
    halves = np.ascontiguousarray(q).view(np.uint32).reshape(outputs, inputs // GROUP, 4, 2)
    return _packed("w4", outputs, inputs, GroupedRows(halves[..., 0] | halves[..., 1] << _FOUR, (d, m)))


def tile_w8(q: np.ndarray, d: np.ndarray) -> Matrix:
    """``q`` int8 [outputs, inputs]; ``d`` float16 [outputs, inputs / 32]: weights d * q."""
    outputs, inputs = _checked(q, np.int8, d)
    return _packed("w8", outputs, inputs, bytes_rows(q, d))


def quantise_w8(weights: np.ndarray) -> Matrix:
    """Float32 [outputs, inputs] to 8 bits, symmetric per group of 32 inputs.

    Raises ``BadValue`` for what is not finite or too large for a scale in f16.
    """
    outputs, inputs = weights.shape
    if not packable(inputs):
        raise BadValue("inputs", inputs, f"a multiple of {GROUP}")
    return _packed("w8", outputs, inputs, quantised_rows(weights))


def quantised_rows(weights: np.ndarray) -> GroupedRows:
    """Some rows for a ``w8``, as ``quantise_w8`` makes them."""
    grouped = weights.astype(np.float32, copy=False).reshape(len(weights), -1, GROUP)
    top = np.maximum(grouped.max(axis=2), -grouped.min(axis=2))
    if not (top <= 65504 * 127).all():
        raise BadValue("weights", float(top.max()), "finite numbers up to 65504 * 127")
    d = (top / 127).astype(np.float16)
    wide = d.astype(np.float32)[..., None]
    scaled = np.divide(grouped, wide, out=np.zeros_like(grouped), where=wide > 0)
    np.clip(np.rint(scaled, out=scaled), -127, 127, out=scaled)
    return bytes_rows(scaled.astype(np.int8), d)


def nibble_rows(packed: np.ndarray, *scales: np.ndarray) -> GroupedRows:
    """Rows for a ``w4`` from uint32 ``packed`` [rows, groups, 4]: 16 bytes hold inputs 0..15 low and 16..31 high."""
    low, high = packed & _LOW, packed & _HIGH
    words = np.empty_like(packed)
    words[..., :2] = low[..., 0::2] | low[..., 1::2] << _FOUR
    words[..., 2:] = high[..., 0::2] >> _FOUR | high[..., 1::2]
    return GroupedRows(words, scales)


def nibble_pair_rows(packed: np.ndarray, *scales: np.ndarray) -> GroupedRows:
    """As ``nibble_rows`` from [rows, groups / 2, 8]: 32 bytes hold one group in their low nibbles, the next high."""
    low, high = packed & _LOW, packed & _HIGH
    words = np.stack([low[..., 0::2] | low[..., 1::2] << _FOUR, high[..., 0::2] >> _FOUR | high[..., 1::2]], axis=2)
    return GroupedRows(words.reshape(len(packed), -1, 4), scales)


def bytes_rows(q: np.ndarray, d: np.ndarray) -> GroupedRows:
    """Rows for a ``w8`` from int8 ``q``, 32 for each of the scales ``d`` [rows, groups]."""
    return GroupedRows(np.ascontiguousarray(q).view(np.uint32).reshape(*d.shape, 8) ^ _SIGN, (d,))


def _packed(kind: str, outputs: int, inputs: int, rows: GroupedRows) -> Matrix:
    packer = Packer(kind, outputs, inputs)
    packer.put(0, rows)
    return packer.matrix


def _checked(q: np.ndarray, dtype: type, *scales: np.ndarray) -> tuple[int, int]:
    outputs, inputs = q.shape
    if q.dtype != dtype:
        raise BadValue("q", q.dtype, f"{np.dtype(dtype)}")
    if not packable(inputs):
        raise BadValue("inputs", inputs, f"a multiple of {GROUP}")
    for s in scales:
        if s.shape != (outputs, inputs // GROUP) or s.dtype != np.float16:
            raise BadValue("scales", (s.shape, s.dtype), f"float16 of shape {(outputs, inputs // GROUP)}")
    return outputs, inputs


def _padded(rows: np.ndarray) -> np.ndarray:
    """Rows of zeros up to a whole tile."""
    return np.concatenate([rows, np.zeros((-len(rows) % LANES, *rows.shape[1:]), rows.dtype)])
