"""Reads the tensors of a file into the weights that the decoder wants: merged, reordered, plain or packed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
import torch

from kvist.errors import CorruptFile
from kvist.kernels.matrix import LANES, RECORD_BYTES, Matrix
from kvist.kernels.packing import GroupedRows, Packer
from kvist.model.names import HalfOrder, Piece, Want
from kvist.model.source import READ_ELEMENTS, Source
from kvist.spec.weight_kinds import matrix_kind

Tensor = torch.Tensor
Progress = Callable[[int, int], None]
"""Called with (bytes read, bytes in all) after every tensor of the file."""

_TORCH: Final = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
_CUT_UP: Final = ("kv_b", "w_uk", "w_uv")
"""Become one matrix a head, transposed: groups along their rows would not survive it."""


class Reader:
    """Reads wants one after the other and tells how far it is."""

    def __init__(self, source: Source, dtype: str, on_tensor: Progress | None, wants: Iterable[Want]) -> None:
        self._source, self._dtype, self._on_tensor = source, dtype, on_tensor
        self._done = 0
        self._total = sum(source.stored_bytes(p.name) for w in wants for p in w.pieces)

    def __call__(self, want: Want) -> Tensor | Matrix | tuple[Matrix, ...]:
        """A vector, a matrix, or one matrix a head."""
        if want.small:
            return self._floats(want, torch.float32)
        types = [self._source.type_of(piece.name) for piece in want.pieces]
        kind = matrix_kind(types, want.shape[-1], self._dtype, plain=want.slot in _CUT_UP)
        if kind in RECORD_BYTES:
            return self._packed(want, kind)
        out = self._floats(want, _TORCH[kind])
        return Matrix.of(out) if out.ndim == 2 else tuple(map(Matrix.of, out))

    def _floats(self, want: Want, dtype: torch.dtype) -> Tensor:
        out = torch.empty(want.shape, dtype=dtype)
        row = 0
        for piece in want.pieces:
            part = out[row : row + piece.rows]
            self._source.read_into(piece.name, part)
            if not torch.isfinite(part).all():
                raise CorruptFile(
                    f"{piece.name} has numbers that are NaN or infinite: the file is damaged",
                    remedy="fetch the file again",
                )
            if piece.half is not None:
                _to_half_order(part, piece.half)
            row += piece.rows
            self._tell(piece)
        return out.add_(want.offset) if want.offset else out

    def _packed(self, want: Want, kind: str) -> Matrix:
        """Some tiles at a time; a tile may hold the end of one piece and the start of the next."""
        outputs, inputs = want.shape
        packer, step = Packer(kind, outputs, inputs), max(LANES, READ_ELEMENTS // inputs // LANES * LANES)
        starts = np.cumsum([0, *(piece.rows for piece in want.pieces)])
        placed = [(int(at), piece, _order(piece)) for at, piece in zip(starts, want.pieces, strict=False)]
        for start in range(0, outputs, step):
            stop = min(start + step, outputs)
            parts = []
            for at, piece, order in placed:
                rows = order[max(start - at, 0) : max(stop - at, 0)]
                if len(rows):
                    parts.append(self._source.grouped(piece.name, rows, kind))
                    if stop >= at + piece.rows:
                        self._tell(piece)
            packer.put(start, _joined(parts))
        return packer.matrix

    def _tell(self, piece: Piece) -> None:
        self._done += self._source.stored_bytes(piece.name)
        if self._on_tensor is not None:
            self._on_tensor(self._done, self._total)


def _joined(parts: list[GroupedRows]) -> GroupedRows:
    if len(parts) == 1:
        return parts[0]
    scales = zip(*(part.scales for part in parts), strict=True)
    return GroupedRows(np.concatenate([p.words for p in parts]), tuple(np.concatenate(s) for s in scales))


def _order(piece: Piece) -> np.ndarray:
    """The stored row of each wanted row."""
    rows = torch.arange(piece.rows)
    if piece.half is not None:
        _to_half_order(rows, piece.half)
    return rows.numpy()


def _to_half_order(rows: Tensor, half: HalfOrder) -> None:
    """Move rows that rotate together from neighbours (0, 1), (2, 3), ... to halves (0, n/2), (1, n/2 + 1), ..."""
    heads = rows.view(half.heads, half.head_dim, -1)
    turning = heads[:, half.offset : half.offset + half.rope_dim]
    turning.copy_(torch.cat([turning[:, 0::2], turning[:, 1::2]], dim=1))
