"""Tables of cosines and sines, one per distinct rotation of the model, grown as positions are reached."""

from __future__ import annotations

import numpy as np
import torch

from kvist.spec.rope import Rope

_FIRST_ROWS = 1024


class RopeTable:
    """``cos`` and ``sin`` float32 [positions, dim / 2], from float64 angles, times the attention factor."""

    def __init__(self, rope: Rope) -> None:
        self._frequencies = rope.inverse_frequencies()
        self._factor = rope.attention_factor
        self.cos = self.sin = torch.empty((0, len(self._frequencies)), dtype=torch.float32)

    def cover(self, n_positions: int) -> None:
        """Make rows ``[0, n_positions)`` exist; room doubles."""
        if n_positions <= len(self.cos):
            return
        rows = max(_FIRST_ROWS, 1 << (n_positions - 1).bit_length())
        angles = np.outer(np.arange(rows, dtype=np.float64), self._frequencies)
        self.cos = torch.from_numpy((np.cos(angles) * self._factor).astype(np.float32))
        self.sin = torch.from_numpy((np.sin(angles) * self._factor).astype(np.float32))


class RopeTables:
    """Tables by value: layers with equal rotations share one. Owner: the decoder."""

    def __init__(self) -> None:
        self._tables: dict[Rope, RopeTable] = {}

    def table(self, rope: Rope | None) -> RopeTable | None:
        """The table of a rotation; None for layers without positions."""
        if rope is None:
            return None
        return self._tables.setdefault(rope, RopeTable(rope))

    def cover(self, n_positions: int) -> None:
        """Grow every table."""
        for table in self._tables.values():
            table.cover(n_positions)


def rotate(x: torch.Tensor, table: RopeTable, positions: torch.Tensor) -> torch.Tensor:
    """Rotate all dims of ``x [rows, heads, dim]`` at ``positions`` int64 [rows], dim i with dim i + dim / 2."""
    cos, sin = table.cos[positions][:, None], table.sin[positions][:, None]
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
