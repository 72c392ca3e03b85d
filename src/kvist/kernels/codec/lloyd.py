"""``lm4``, ``lm3``, ``lm2``: a Hadamard rotation makes a row's numbers about normal; each goes to the nearest of the
best levels for N(0, 1), times one float16 scale for the row.

The MSE variant of TurboQuant (arXiv 2504.19874), DRIVE and HIGGS: the residual's second stage is left out.
``scales``: one tensor [heads, tokens], in units of one number (a norm would be root(dim) times as large).

The scale is chosen by side. For K the one of least squares: no other brings the decoded row nearer to the row. For V
the one that keeps the row's length: least squares shrinks every row by its error, and where attention averages many
rows, their errors cancel and the shrinking stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from kvist.errors import BadValue
from kvist.kernels.codec.base import Encoded, Side, Where
from kvist.kernels.codec.hadamard import hadamard, refusal
from kvist.kernels.codec.lloyd_max import levels, midpoints
from kvist.kernels.codec.rows import folded_sum, nan_unless


@dataclass(frozen=True, slots=True)
class Lloyd:
    """``bits``: 2, 3 or 4. ``keeps``: least squares (``distance``) or the row's length (``norm``); None: by side."""

    bits: int
    keeps: Literal["distance", "norm"] | None = None
    unit_tokens: ClassVar[int] = 1
    needs: ClassVar[Literal[""]] = ""
    sides: ClassVar[tuple[Side, ...]] = ("k", "v")
    always_packed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.bits not in (2, 3, 4):
            raise BadValue("bits", self.bits, "2, 3 or 4")

    @property
    def name(self) -> str:
        """With its bits."""
        return f"lm{self.bits}"

    def refuses(self, dim: int) -> str:
        """Lengths that cannot be rotated."""
        return refusal(dim)

    def row_bits(self, dim: int) -> float:
        """A number's bits, and 16 for the scale."""
        return self.bits * dim + 16

    def encode(self, x: torch.Tensor, where: Where) -> Encoded:
        """See the contract."""
        y = hadamard(x)
        squares = folded_sum(y * y)
        deviation = (squares / x.shape[-1]).sqrt()
        usable = (deviation > 0) & deviation.isfinite()
        spread = torch.where(usable[..., None], y / deviation[..., None], 0.0)
        codes = (spread[..., None] > torch.tensor(midpoints(self.bits))).sum(dim=-1).to(torch.uint8)
        level = self._levels(codes)
        length = folded_sum(level * level)
        keeps = self.keeps or ("distance" if where.side == "k" else "norm")
        scale = ((squares / length).sqrt() if keeps == "norm" else folded_sum(y * level) / length).half()
        return Encoded(codes, (nan_unless(scale.isfinite(), scale),))

    def decode(self, encoded: Encoded, where: Where) -> torch.Tensor:
        """See the contract."""
        return hadamard(self._levels(encoded.codes) * encoded.scales[0].float()[..., None])

    def _levels(self, codes: torch.Tensor) -> torch.Tensor:
        return torch.tensor(levels(self.bits))[codes.int()]
