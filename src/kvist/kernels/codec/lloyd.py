"""``lm4``, ``lm3``, ``lm2``: a Hadamard rotation makes a row's numbers about normal; each goes to the nearest of the
best levels for N(0, 1), times one float16 scale for the row.

The MSE variant of TurboQuant (arXiv 2504.19874), DRIVE and HIGGS: the residual's second stage is left out.
``scales``: one tensor [heads, tokens]. Levels are whole numbers up to 127, so that kernels multiply integers; a scale
is what one of them stands for.

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
from kvist.kernels.codec.lloyd_max import midpoints, whole_levels
from kvist.kernels.codec.rows import folded_sum, nan_unless

Keeps = Literal["distance", "norm"]


@dataclass(frozen=True, slots=True)
class Lloyd:
    """``bits``: 2, 3 or 4. ``keeps``: least squares (``distance``) or the row's length (``norm``); None: by side."""

    bits: int
    keeps: Keeps | None = None
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
        keeps = self.keeps or ("distance" if where.side == "k" else "norm")
        codes, scale = encode_rotated(hadamard(x), self.bits, keeps)
        return Encoded(codes, (scale,))

    def decode(self, encoded: Encoded, where: Where) -> torch.Tensor:
        """See the contract."""
        return hadamard(decode_rotated(encoded.codes, encoded.scales[0], self.bits))


def encode_rotated(y: torch.Tensor, bits: int, keeps: Keeps) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes uint8 of the shape of ``y`` float32 [..., dim], rows rotated already, and float16 scales [...]."""
    squares = folded_sum(y * y)
    deviation = (squares / y.shape[-1]).sqrt()
    usable = (deviation > 0) & deviation.isfinite()
    spread = torch.where(usable[..., None], y / deviation[..., None], 0.0)
    codes = (spread[..., None] > torch.tensor(midpoints(bits))).sum(dim=-1).to(torch.uint8)
    level = torch.tensor(whole_levels(bits), dtype=torch.float32)[codes.int()]
    length = folded_sum(level * level)
    scale = ((squares / length).sqrt() if keeps == "norm" else folded_sum(y * level) / length).half()
    return codes, nan_unless(scale.isfinite(), scale)


def decode_rotated(codes: torch.Tensor, scales: torch.Tensor, bits: int) -> torch.Tensor:
    """float32 [..., dim] of codes and scales: rows that are rotated still."""
    level = torch.tensor(whole_levels(bits), dtype=torch.float32)[codes.int()]
    return level * scales.float()[..., None]
