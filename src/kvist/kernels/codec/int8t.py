"""``int8t``: one float16 scale for each token and head. The rule is that of ``kvist.kernels.attention.tiles``.

``codes`` are the bytes of the 8-bit integers (two's complement), ``scales`` one tensor [heads, tokens].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from kvist.kernels.attention.tiles import pack_rows
from kvist.kernels.codec.base import Encoded, Side, Where
from kvist.spec.format import INT8T


@dataclass(frozen=True, slots=True)
class Int8t:
    """No knobs."""

    name: ClassVar[str] = "int8t"
    bits: ClassVar[int] = 8
    unit_tokens: ClassVar[int] = 1
    needs: ClassVar[Literal[""]] = ""
    sides: ClassVar[tuple[Side, ...]] = ("k", "v")
    always_packed: ClassVar[bool] = True

    def refuses(self, dim: int) -> str:
        """Dims come in pairs, as the tiles hold them."""
        return "" if dim > 0 and dim % INT8T.dim_step == 0 else f"{dim} numbers are not a multiple of {INT8T.dim_step}"

    def row_bits(self, dim: int) -> float:
        """8 bits a number and the scale."""
        return self.bits * dim + 16

    def encode(self, x: torch.Tensor, where: Where) -> Encoded:
        """See the contract."""
        data, scale = pack_rows(x)
        return Encoded(data.view(torch.uint8), (scale,))

    def decode(self, encoded: Encoded, where: Where) -> torch.Tensor:
        """See the contract."""
        return encoded.codes.view(torch.int8).float() * encoded.scales[0].float()[..., None]
