"""What a codec is: how the rows of one stream (K or V of one layer) are written with few bits, and read back.

A codec is pure: the same rows at the same positions give the same numbers, whatever else is in the batch. What it
knows beside the rows is in ``Where``, and is static. It sees K after rotation by position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch

Side = Literal["k", "v"]


@dataclass(frozen=True, slots=True)
class Where:
    """Which rows these are. ``start``: the absolute position of the first; the others follow one by one.

    ``mean``: float32 [heads, dim], what calibration gives for this layer and side: the mean of K after rotation
    (``needs == "mean"``) or before it (``needs == "pre_rope_mean"``); None where the codec needs none.
    ``inverse_frequencies``: float32 [rotary dims / 2] of this layer's rotation, for codecs that need it.
    """

    side: Side
    start: int = 0
    mean: torch.Tensor | None = None
    inverse_frequencies: torch.Tensor | None = None
    interleaved: bool = False
    """Rotation pairs dims (2i, 2i + 1) instead of (i, i + rotary dims / 2)."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Rows as numbers of few bits: ``codes`` uint8 [heads, tokens, dim], each below ``2 ** bits``, and what turns them
    back into values: ``scales``, float16 tensors whose shapes are the codec's own.
    """

    codes: torch.Tensor
    scales: tuple[torch.Tensor, ...]


class Codec(Protocol):
    """One way to write rows.

    It is given whole runs of ``unit_tokens`` rows that begin at a multiple of it (1: any). One that is not
    ``always_packed`` leaves sinks and the query's own cell exact.
    """

    @property
    def name(self) -> str:
        """As specs spell it."""
        ...

    @property
    def bits(self) -> int:
        """Of one number."""
        ...

    @property
    def unit_tokens(self) -> int:
        """Rows that are written together."""
        ...

    @property
    def needs(self) -> Literal["", "mean", "pre_rope_mean"]:
        """What ``Where`` must bring."""
        ...

    @property
    def sides(self) -> tuple[Side, ...]:
        """Streams that it is for."""
        ...

    @property
    def always_packed(self) -> bool:
        """Whether every query may read every row packed."""
        ...

    def refuses(self, dim: int) -> str:
        """Why rows of ``dim`` numbers cannot be written; empty: they can."""
        ...

    def row_bits(self, dim: int) -> float:
        """Bits of one row of ``dim`` numbers, scales included (a codec with units: its share of the unit's)."""
        ...

    def encode(self, x: torch.Tensor, where: Where) -> Encoded:
        """``x`` float32 [heads, tokens, dim]. A row with a NaN or an infinity reads back as NaN."""
        ...

    def decode(self, encoded: Encoded, where: Where) -> torch.Tensor:
        """float32 [heads, tokens, dim]."""
        ...
