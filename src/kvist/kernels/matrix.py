"""A weight matrix as the kernels read it: plain floats, or packed integers with scales.

Packed kinds lie in tiles of 16 outputs by groups of 32 inputs, ``[tile][group]``, so that one vector register holds 16
outputs and every output adds its groups up in the same order for any number of rows:

* ``w4`` (4 bits and a scale and a minimum for each group: Q4_0, Q4_1, Q4_K): records of 320 bytes. Four vectors of 64
  bytes; byte ``16 lanes x 4`` of vector v holds inputs ``8 v + j`` (low nibble) and ``8 v + 4 + j`` (high nibble) of
  the group; then 16 scales d and 16 minima m in f16. A weight is ``d * q + m``.
* ``w8`` (8 bits and a scale for each group: Q8_0): records of 544 bytes. Eight vectors of 64 bytes; byte ``16 lanes x
  4`` of vector v holds ``q + 128`` of input ``4 v + j``; then 16 scales d. A weight is ``d * q``.

Outputs are padded to whole tiles with scales of zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from kvist.errors import BadValue
from kvist.spec.weight_kinds import GROUP, LANES, RECORD_BYTES
from kvist.units import ceil_div

__all__ = ["GROUP", "LANES", "PLAIN", "RECORD_BYTES", "Matrix", "records"]

PLAIN: Final = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


@dataclass(frozen=True, slots=True)
class Matrix:
    """``outputs x inputs`` weights. ``data``: [outputs, inputs] for a plain kind, else records of bytes in a row."""

    kind: str
    outputs: int
    inputs: int
    data: torch.Tensor

    @staticmethod
    def of(tensor: torch.Tensor) -> Matrix:
        """A plain [outputs, inputs] tensor of f32, f16 or bf16. Raises ``BadValue`` for another."""
        if tensor.ndim != 2 or tensor.dtype not in PLAIN or not tensor.is_contiguous():
            found = (tuple(tensor.shape), tensor.dtype)
            raise BadValue("matrix", found, "a contiguous [outputs, inputs] of f32, f16 or bf16")
        outputs, inputs = tensor.shape
        return Matrix(PLAIN[tensor.dtype], outputs, inputs, tensor)

    @property
    def bytes(self) -> int:
        """What it takes in memory."""
        return self.data.numel() * self.data.element_size()

    @property
    def readable(self) -> bool:
        """Whether kernels may read ``data``: whole, contiguous, of the kind's type, records on a cache line."""
        data, groups = self.data, self.inputs // GROUP
        if not data.is_contiguous() or data.device.type != "cpu":
            return False
        if self.kind not in RECORD_BYTES:
            return PLAIN.get(data.dtype) == self.kind and data.shape == (self.outputs, self.inputs)
        numel = ceil_div(self.outputs, LANES) * groups * RECORD_BYTES[self.kind]
        whole = data.dtype is torch.uint8 and data.numel() == numel and self.inputs == groups * GROUP
        return whole and data.data_ptr() % 64 == 0

    def rows(self, ids: Sequence[int] | np.ndarray) -> torch.Tensor:
        """Some outputs' weights, float32 [len(ids), inputs]: what an embedding looks up."""
        wanted = np.asarray(ids, dtype=np.int64)
        if self.kind in RECORD_BYTES:
            return torch.from_numpy(_unpacked(self, wanted))
        return self.data.index_select(0, torch.from_numpy(wanted)).float()

    def dequantised(self) -> torch.Tensor:
        """All weights, float32 [outputs, inputs]."""
        return self.rows(np.arange(self.outputs))


def records(matrix: Matrix) -> torch.Tensor:
    """A packed matrix as uint8 [tiles, groups, record bytes]."""
    return matrix.data.view(ceil_div(matrix.outputs, LANES), matrix.inputs // GROUP, RECORD_BYTES[matrix.kind])


def integers(matrix: Matrix, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A packed matrix's rows as float32: integers [len(ids), groups, 32], scales and minima [len(ids), groups]."""
    tile, lane, n = ids // LANES, ids % LANES, torch.arange(len(ids))
    record = records(matrix)[tile]  # [n, groups, bytes]
    n_vectors = 4 if matrix.kind == "w4" else 8
    body, tail = record[..., : n_vectors * 64], record[..., n_vectors * 64 :]
    groups = record.shape[1]
    packed = body.reshape(len(ids), groups, n_vectors, LANES, 4)[n, :, :, lane]  # [n, groups, vectors, 4]
    tail16 = tail.contiguous().view(torch.float16).view(len(ids), groups, -1, LANES)[n, :, :, lane].float()
    if matrix.kind == "w4":
        both = torch.stack([packed & 15, packed >> 4], dim=3)  # [n, groups, vectors, 2, 4]
        return both.reshape(len(ids), groups, GROUP).float(), tail16[..., 0], tail16[..., 1]
    d = tail16[..., 0]
    return packed.reshape(len(ids), groups, GROUP).float() - 128, d, torch.zeros_like(d)


def _unpacked(matrix: Matrix, ids: np.ndarray) -> np.ndarray:
    """Rows of a packed matrix, float32 [len(ids), inputs]. Reads those rows' lanes alone: an embedding is looked up."""
    record = matrix.data.numpy().reshape(-1, matrix.inputs // GROUP, RECORD_BYTES[matrix.kind])
    tile, lane = ids[:, None] // LANES, ids[:, None] % LANES
    if ids.size and not 0 <= ids.min() <= ids.max() < matrix.outputs:
        raise IndexError(f"rows {ids.min()} to {ids.max()} of {matrix.outputs}")
    n_vectors = 4 if matrix.kind == "w4" else 8
    words, halves = record.view(np.uint32), record.view(np.float16)
    at = lane + LANES * np.arange(n_vectors)  # [n, vectors]
    packed = words[tile, :, at]  # [n, vectors, groups]
    d = halves[tile[:, 0], :, lane[:, 0] + 32 * n_vectors].astype(np.float32)[..., None]  # [n, groups, 1]
    if matrix.kind == "w8":
        values = _bytes(packed).reshape(len(ids), -1, GROUP).astype(np.float32)
        values -= 128
        values *= d
        return values.reshape(len(ids), matrix.inputs)
    both = np.stack([packed & 0x0F0F0F0F, packed >> 4 & 0x0F0F0F0F], axis=2)  # [n, vectors, low | high, groups]
    values = _bytes(both.reshape(len(ids), 2 * n_vectors, -1)).reshape(len(ids), -1, GROUP).astype(np.float32)
    m = halves[tile[:, 0], :, lane[:, 0] + 32 * n_vectors + LANES].astype(np.float32)[..., None]
    values *= d
    values += m
    return values.reshape(len(ids), matrix.inputs)


def _bytes(words: np.ndarray) -> np.ndarray:
    """uint32 [n, words, groups] to uint8 [n, groups, 4 words]."""
    return np.ascontiguousarray(words.swapaxes(1, 2)).view(np.uint8)
