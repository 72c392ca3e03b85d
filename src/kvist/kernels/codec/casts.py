"""``f32``, ``f16`` and ``bf16``: rows as they are, rounded to the element.

``Encoded.codes`` holds the values themselves, [heads, tokens, dim] in the element's own type, and there are no scales.
A row with a number that the element cannot hold (a NaN, an infinity, more than 65504 in float16) is NaN throughout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import torch

from kvist.kernels.codec.base import Encoded, Side, Where
from kvist.kernels.codec.rows import finite_rows, nan_unless
from kvist.spec.format import ELEMENTS

_TYPES: Final = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Cast:
    """``name``: the element."""

    name: Literal["f32", "f16", "bf16"]
    unit_tokens: ClassVar[int] = 1
    needs: ClassVar[Literal[""]] = ""
    sides: ClassVar[tuple[Side, ...]] = ("k", "v")
    always_packed: ClassVar[bool] = True

    @property
    def bits(self) -> int:
        """Of the element."""
        return ELEMENTS[self.name].bits

    def refuses(self, dim: int) -> str:
        """Nothing."""
        return "" if dim > 0 else f"a row of {dim} numbers is no row"

    def row_bits(self, dim: int) -> float:
        """The numbers and nothing else."""
        return self.bits * dim

    def encode(self, x: torch.Tensor, where: Where) -> Encoded:
        """See the contract."""
        values = x.to(_TYPES[self.name])
        return Encoded(nan_unless(finite_rows(values)[..., None], values), ())

    def decode(self, encoded: Encoded, where: Where) -> torch.Tensor:
        """See the contract."""
        return encoded.codes.float()
