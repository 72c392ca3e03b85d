"""``kivi4`` and ``kivi2`` (KIVI, arXiv 2402.02750): steps of their own for a channel of keys, for a token of values.

K: for each head and channel, the 32 rows of one unit (aligned to a multiple of 32 positions) share a float16 scale and
zero: outliers sit in channels, and there they cost nobody else precision. V: 32 neighbouring numbers of a row share
them (a row's last group may be shorter). Both asymmetric.

Scales and zeros: K [heads, tokens / 32, dim], V [heads, tokens, groups]. A NaN, an infinity or more than float16 holds
makes all 32 rows of that head's unit NaN in K, and that row in V.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import torch

from kvist.errors import BadValue
from kvist.kernels.codec.asymmetric import steps, values
from kvist.kernels.codec.base import Encoded, Side, Where
from kvist.kernels.codec.rows import finite_rows, nan_unless

GROUP: Final = 32


@dataclass(frozen=True, slots=True)
class KiviKeys:
    """``bits``: 2 or 4."""

    bits: int
    unit_tokens: ClassVar[int] = GROUP
    needs: ClassVar[Literal[""]] = ""
    sides: ClassVar[tuple[Side, ...]] = ("k",)
    always_packed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_bits(self.bits)

    @property
    def name(self) -> str:
        """With its bits."""
        return f"kivi{self.bits}"

    def refuses(self, dim: int) -> str:
        """Nothing: channels stand alone."""
        return "" if dim > 0 else f"a row of {dim} numbers is no row"

    def row_bits(self, dim: int) -> float:
        """A number's bits, and its share of the unit's scale and zero: one bit a number."""
        return self.bits * dim + dim * 32 / GROUP

    def encode(self, x: torch.Tensor, where: Where) -> Encoded:
        """See the contract. Raises ``BadValue`` unless ``x`` is whole units."""
        heads, tokens, dim = x.shape
        if where.start % GROUP or tokens % GROUP:
            raise BadValue("rows", f"[{where.start}, {where.start + tokens})", f"whole units of {GROUP} positions")
        units = x.reshape(heads, tokens // GROUP, GROUP, dim).transpose(-1, -2)  # [heads, units, dim, 32]
        codes, scale, zero = steps(units, self.bits)
        fine = finite_rows(scale) & finite_rows(zero)
        return Encoded(codes.transpose(-1, -2).reshape(x.shape), (nan_unless(fine[..., None], scale), zero))

    def decode(self, encoded: Encoded, where: Where) -> torch.Tensor:
        """See the contract."""
        heads, tokens, dim = encoded.codes.shape
        units = encoded.codes.reshape(heads, tokens // GROUP, GROUP, dim).transpose(-1, -2)
        return values(units, *encoded.scales).transpose(-1, -2).reshape(encoded.codes.shape)


@dataclass(frozen=True, slots=True)
class KiviValues:
    """``bits``: 2 or 4."""

    bits: int
    unit_tokens: ClassVar[int] = 1
    needs: ClassVar[Literal[""]] = ""
    sides: ClassVar[tuple[Side, ...]] = ("v",)
    always_packed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_bits(self.bits)

    @property
    def name(self) -> str:
        """With its bits."""
        return f"kivi{self.bits}"

    def refuses(self, dim: int) -> str:
        """Nothing: the last group may be short."""
        return "" if dim > 0 else f"a row of {dim} numbers is no row"

    def row_bits(self, dim: int) -> float:
        """A number's bits, and 32 for each group begun."""
        return self.bits * dim + -(-dim // GROUP) * 32

    def encode(self, x: torch.Tensor, where: Where) -> Encoded:
        """See the contract."""
        codes, scales, zeros = zip(*(steps(group, self.bits) for group in torch.split(x, GROUP, dim=-1)), strict=True)
        scale, zero = torch.stack(scales, dim=-1), torch.stack(zeros, dim=-1)
        fine = finite_rows(scale) & finite_rows(zero)
        return Encoded(torch.cat(codes, dim=-1), (nan_unless(fine[..., None], scale), zero))

    def decode(self, encoded: Encoded, where: Where) -> torch.Tensor:
        """See the contract."""
        scale, zero = encoded.scales
        groups = torch.split(encoded.codes, GROUP, dim=-1)
        return torch.cat([values(g, scale[..., i], zero[..., i]) for i, g in enumerate(groups)], dim=-1)


def _check_bits(bits: int) -> None:
    if bits not in (2, 4):
        raise BadValue("bits", bits, "2 or 4")
