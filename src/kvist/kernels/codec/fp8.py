"""``fp8_e4m3``: 8-bit floats, 4 bits of exponent and 3 of mantissa, times one float32 scale for each layer and side.

The scale is given, never measured on the way: ``value = scale * code``. Numbers beyond 448 scales saturate. A row with
a NaN or an infinity is NaN throughout. ``codes`` are the bytes of the floats; there are no scales beside them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import torch

from kvist.errors import BadValue
from kvist.kernels.codec.base import Encoded, Side, Where
from kvist.kernels.codec.rows import finite_rows

LARGEST: Final = 448.0
_FLOAT32: Final = torch.finfo(torch.float32)


def check_scale(scale: float, name: str = "scale") -> None:
    """Raises ``BadValue`` unless ``scale`` is above zero and a normal float32; ``name`` says whose it is."""
    if not (math.isfinite(scale) and _FLOAT32.tiny <= scale <= _FLOAT32.max):
        raise BadValue(
            name, scale, f"a finite number from {_FLOAT32.tiny:.3g} to {_FLOAT32.max:.3g}", remedy="calibrate again"
        )


@dataclass(frozen=True, slots=True)
class Fp8E4M3:
    """``scale``: of this layer and side."""

    scale: float = 1.0
    name: ClassVar[str] = "fp8_e4m3"
    bits: ClassVar[int] = 8
    unit_tokens: ClassVar[int] = 1
    needs: ClassVar[Literal[""]] = ""
    sides: ClassVar[tuple[Side, ...]] = ("k", "v")
    always_packed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_scale(self.scale)

    def refuses(self, dim: int) -> str:
        """Nothing."""
        return "" if dim > 0 else f"a row of {dim} numbers is no row"

    def row_bits(self, dim: int) -> float:
        """8 bits a number: the scale belongs to the layer, not to a row."""
        return self.bits * dim

    def encode(self, x: torch.Tensor, where: Where) -> Encoded:
        """See the contract."""
        held = torch.where(finite_rows(x)[..., None], (x / self.scale).clamp(-LARGEST, LARGEST), torch.nan)
        return Encoded(held.to(torch.float8_e4m3fn).view(torch.uint8), ())

    def decode(self, encoded: Encoded, where: Where) -> torch.Tensor:
        """See the contract."""
        return encoded.codes.view(torch.float8_e4m3fn).float() * self.scale
