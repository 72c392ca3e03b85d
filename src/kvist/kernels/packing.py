"""Makes packed matrices: from integers that a file holds, or from floats."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from kvist.errors import BadValue
from kvist.kernels.matrix import GROUP, LANES, RECORD_BYTES, Matrix
from kvist.units import ceil_div

_BIAS: Final = 128


def packable(inputs: int) -> bool:
    """Whether rows of this many inputs divide into groups."""
    return inputs % GROUP == 0


def tile_w4(q: np.ndarray, d: np.ndarray, m: np.ndarray) -> Matrix:
    """``q`` uint8 [outputs, inputs] of 0..15; ``d`` and ``m`` float16 [outputs, inputs / 32]: weights d * q + m."""
    outputs, inputs = _checked(q, d, m)
    by_tile = _by_tile(q)  # [tiles, groups, lanes, 32]
    halves = by_tile.reshape(*by_tile.shape[:3], 4, 2, 4)  # [tiles, groups, lanes, vectors, low | high, 4]
    packed = (halves[..., 0, :] | halves[..., 1, :] << 4).swapaxes(2, 3)  # [tiles, groups, vectors, lanes, 4]
    return _assembled("w4", outputs, inputs, packed, d, m)


def tile_w8(q: np.ndarray, d: np.ndarray) -> Matrix:
    """``q`` int8 [outputs, inputs]; ``d`` float16 [outputs, inputs / 32]: weights d * q."""
    outputs, inputs = _checked(q, d)
    by_tile = _by_tile(q.view(np.uint8) ^ np.uint8(_BIAS))
    packed = by_tile.reshape(*by_tile.shape[:3], 8, 4).swapaxes(2, 3)
    return _assembled("w8", outputs, inputs, packed, d)


def quantise_w8(weights: np.ndarray) -> Matrix:
    """Float32 [outputs, inputs] to 8 bits, symmetric per group of 32 inputs.

    Raises ``BadValue`` for what is not finite or too large for a scale in f16.
    """
    outputs, inputs = weights.shape
    if not packable(inputs):
        raise BadValue("inputs", inputs, f"a multiple of {GROUP}")
    grouped = weights.astype(np.float32, copy=False).reshape(outputs, -1, GROUP)
    top = np.abs(grouped).max(axis=2)
    if not (top <= 65504 * 127).all():
        raise BadValue("weights", float(top.max()), "finite numbers up to 65504 * 127")
    d = (top / 127).astype(np.float16)
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.rint(grouped / d.astype(np.float32)[..., None])
    q = np.where(d[..., None] > 0, np.clip(q, -127, 127), 0).astype(np.int8)
    return tile_w8(q.reshape(outputs, inputs), d)


def _checked(q: np.ndarray, *scales: np.ndarray) -> tuple[int, int]:
    outputs, inputs = q.shape
    if not packable(inputs):
        raise BadValue("inputs", inputs, f"a multiple of {GROUP}")
    for s in scales:
        if s.shape != (outputs, inputs // GROUP) or s.dtype != np.float16:
            raise BadValue("scales", (s.shape, s.dtype), f"float16 of shape {(outputs, inputs // GROUP)}")
    return outputs, inputs


def _by_tile(values: np.ndarray) -> np.ndarray:
    """[outputs, inputs] to [tiles, groups, lanes, 32], padded with zeros."""
    outputs, inputs = values.shape
    tiles = ceil_div(outputs, LANES)
    if outputs % LANES:
        values = np.concatenate([values, np.zeros((tiles * LANES - outputs, inputs), values.dtype)])
    return values.reshape(tiles, LANES, inputs // GROUP, GROUP).swapaxes(1, 2)


def _assembled(kind: str, outputs: int, inputs: int, packed: np.ndarray, *scales: np.ndarray) -> Matrix:
    """Records of ``packed`` [tiles, groups, vectors, lanes, 4] and then each scale's 16 lanes."""
    tiles, groups = packed.shape[:2]
    out = torch.empty(tiles * groups * RECORD_BYTES[kind], dtype=torch.uint8)
    record = out.numpy().reshape(tiles, groups, RECORD_BYTES[kind])
    body = packed.shape[2] * LANES * 4
    record[..., :body] = packed.reshape(tiles, groups, body)
    for i, s in enumerate(scales):
        padded = np.zeros((tiles * LANES, groups), np.float16)
        padded[:outputs] = s
        lanes = np.ascontiguousarray(padded.reshape(tiles, LANES, groups).swapaxes(1, 2))
        record[..., body + 32 * i : body + 32 * (i + 1)] = lanes.view(np.uint8)
    return Matrix(kind, outputs, inputs, out)
