"""``int4t_h``: after a Hadamard rotation, sixteen equal steps from a row's least number to its largest.

The group is the whole row of a token and head, whatever its length: one float16 scale and one float16 zero, both
tensors [heads, tokens].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from kvist.kernels.codec.asymmetric import steps, values
from kvist.kernels.codec.base import Encoded, Side, Where
from kvist.kernels.codec.hadamard import hadamard, refusal
from kvist.kernels.codec.rows import nan_unless


@dataclass(frozen=True, slots=True)
class Int4tH:
    """No knobs."""

    name: ClassVar[str] = "int4t_h"
    bits: ClassVar[int] = 4
    unit_tokens: ClassVar[int] = 1
    needs: ClassVar[Literal[""]] = ""
    sides: ClassVar[tuple[Side, ...]] = ("k", "v")
    always_packed: ClassVar[bool] = False

    def refuses(self, dim: int) -> str:
        """Lengths that cannot be rotated."""
        return refusal(dim)

    def row_bits(self, dim: int) -> float:
        """4 bits a number, 32 for scale and zero."""
        return self.bits * dim + 32

    def encode(self, x: torch.Tensor, where: Where) -> Encoded:
        """See the contract."""
        codes, scale, zero = steps(hadamard(x), self.bits)
        return Encoded(codes, (nan_unless(scale.isfinite() & zero.isfinite(), scale), zero))

    def decode(self, encoded: Encoded, where: Where) -> torch.Tensor:
        """See the contract."""
        return hadamard(values(encoded.codes, *encoded.scales))
