"""Rows of GGUF's quantised types for packed matrices: their own integers where a packed kind holds them, else floats.

Layouts: ggml-common.h of llama.cpp. Scales that are no finite numbers raise ``BadValue``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from kvist.errors import BadValue
from kvist.kernels.packing import GroupedRows, bytes_rows, nibble_pair_rows, nibble_rows

Unpack = Callable[[np.ndarray], GroupedRows]
"""From the bytes of some rows, uint8 [rows, bytes]."""


def _q4_0(raw: np.ndarray) -> GroupedRows:
    """18 bytes: d f16, 32 nibbles. ``d (q - 8)``: the minimum -8 d is exact in f16 unless it overflows."""
    blocks = raw.reshape(len(raw), -1, 18)
    d = _f16(blocks[..., :2])[..., 0]
    with np.errstate(over="ignore", invalid="ignore"):  # refused as infinite
        m = d * np.float16(-8)
    return nibble_rows(_words(blocks[..., 2:]), *_finite(d, m))


def _q4_1(raw: np.ndarray) -> GroupedRows:
    """20 bytes: d and m f16, 32 nibbles. ``d q + m``."""
    blocks = raw.reshape(len(raw), -1, 20)
    scales = _f16(blocks[..., :4])
    return nibble_rows(_words(blocks[..., 4:]), *_finite(scales[..., 0], scales[..., 1]))


def _q4_k(raw: np.ndarray) -> GroupedRows:
    """144 bytes: d and dmin f16, 8 scales and minima of 6 bits, 256 nibbles. Both products are rounded to f16."""
    blocks = raw.reshape(len(raw), -1, 144)
    both = _f16(blocks[..., :4]).astype(np.float32)
    a, b, c = (blocks[..., 4 + 4 * i : 8 + 4 * i] for i in range(3))
    scale = np.concatenate([a & 63, (c & 15) | (a >> 6) << 4], axis=-1)
    minimum = np.concatenate([b & 63, c >> 4 | (b >> 6) << 4], axis=-1)
    packed = _words(blocks[..., 16:]).reshape(len(raw), -1, 8)
    with np.errstate(over="ignore", invalid="ignore"):  # refused as infinite
        d, m = both[..., :1] * scale, -both[..., 1:] * minimum  # [rows, blocks, 8]
        scales = [x.reshape(len(raw), -1).astype(np.float16) for x in (d, m)]
    return nibble_pair_rows(packed, *_finite(*scales))


def _q8_0(raw: np.ndarray) -> GroupedRows:
    """34 bytes: d f16, 32 int8. ``d q``."""
    blocks = raw.reshape(len(raw), -1, 34)
    return bytes_rows(blocks[..., 2:], *_finite(_f16(blocks[..., :2])[..., 0]))


DIRECT: Final[Mapping[tuple[str, str], Unpack]] = {
    ("w4", "Q4_0"): _q4_0,
    ("w4", "Q4_1"): _q4_1,
    ("w4", "Q4_K"): _q4_k,
    ("w8", "Q8_0"): _q8_0,
}
"""By packed kind and stored type."""


def _f16(raw: np.ndarray) -> np.ndarray:
    """Pairs of bytes as f16."""
    return np.ascontiguousarray(raw).view(np.float16)


def _words(raw: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(raw).view(np.uint32)


def _finite(*scales: np.ndarray) -> tuple[np.ndarray, ...]:
    for s in scales:
        if not np.isfinite(s).all():
            raise BadValue("scale", float(s[~np.isfinite(s)][0]), "a finite number that f16 holds")
    return scales
