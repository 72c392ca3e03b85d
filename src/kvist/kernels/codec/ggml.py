"""``q8_0`` and ``q4_0``: ggml's blocks of 32 numbers with one float16 scale, and ``q4_0h``: after a Hadamard rotation.

The arithmetic is ggml's (``quantize_row_q8_0_ref``, ``quantize_row_q4_0_ref``), so decoded numbers are the same. Two
things are settled that ggml leaves open: a scale that float16 rounds to zero gives codes of zero, and a row with a
number or a scale that cannot be held is NaN in all its blocks.

``codes``: for 8 bits the bytes of the integers (two's complement), for 4 bits the integer + 8. ``scales``: one tensor
[heads, tokens, dim / 32].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import torch

from kvist.errors import BadValue
from kvist.kernels.codec.base import Encoded, Side, Where
from kvist.kernels.codec.hadamard import hadamard, refusal
from kvist.kernels.codec.rows import finite_rows, nan_unless

GROUP: Final = 32


@dataclass(frozen=True, slots=True)
class Q8_0:
    """Scale = largest magnitude / 127; integers rounded to nearest, halves away from zero."""

    name: ClassVar[str] = "q8_0"
    bits: ClassVar[int] = 8
    unit_tokens: ClassVar[int] = 1
    needs: ClassVar[Literal[""]] = ""
    sides: ClassVar[tuple[Side, ...]] = ("k", "v")
    always_packed: ClassVar[bool] = True

    def refuses(self, dim: int) -> str:
        """Whole blocks only."""
        return _uneven(dim)

    def row_bits(self, dim: int) -> float:
        """8 bits a number, 16 a block."""
        return self.bits * dim + dim // GROUP * 16

    def encode(self, x: torch.Tensor, where: Where) -> Encoded:
        """See the contract."""
        blocks = _blocks(x)
        scale = blocks.abs().amax(dim=-1) / 127
        spread = _spread(blocks, scale)
        whole = spread.abs().floor()
        codes = torch.copysign(whole + (2 * (spread.abs() - whole)).floor(), spread)
        return Encoded(codes.to(torch.int8).view(torch.uint8).flatten(-2), (_scales(scale),))

    def decode(self, encoded: Encoded, where: Where) -> torch.Tensor:
        """See the contract."""
        integers = encoded.codes.view(torch.int8).float()
        return (_blocks(integers) * encoded.scales[0].float()[..., None]).flatten(-2)


@dataclass(frozen=True, slots=True)
class Q4_0:
    """Scale = the number of largest magnitude / -8, so that this one falls on a level. ``rotated``: ``q4_0h``."""

    rotated: bool
    bits: ClassVar[int] = 4
    unit_tokens: ClassVar[int] = 1
    needs: ClassVar[Literal[""]] = ""
    sides: ClassVar[tuple[Side, ...]] = ("k", "v")
    always_packed: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """With ``h`` for Hadamard."""
        return "q4_0h" if self.rotated else "q4_0"

    def refuses(self, dim: int) -> str:
        """Whole blocks only, and lengths that can be rotated."""
        return _uneven(dim) or (refusal(dim) if self.rotated else "")

    def row_bits(self, dim: int) -> float:
        """4 bits a number, 16 a block."""
        return self.bits * dim + dim // GROUP * 16

    def encode(self, x: torch.Tensor, where: Where) -> Encoded:
        """See the contract."""
        blocks = _blocks(hadamard(x) if self.rotated else x)
        largest = blocks.gather(-1, blocks.abs().argmax(dim=-1, keepdim=True))[..., 0]
        scale = largest / -8
        codes = (_spread(blocks, scale) + 8.5).clamp(max=15)  # cut off below, not rounded
        return Encoded(codes.to(torch.uint8).flatten(-2), (_scales(scale),))

    def decode(self, encoded: Encoded, where: Where) -> torch.Tensor:
        """See the contract."""
        blocks = _blocks(encoded.codes.float() - 8) * encoded.scales[0].float()[..., None]
        return hadamard(blocks.flatten(-2)) if self.rotated else blocks.flatten(-2)


def _uneven(dim: int) -> str:
    return "" if dim > 0 and dim % GROUP == 0 else f"{dim} numbers are not whole blocks of {GROUP}"


def _blocks(x: torch.Tensor) -> torch.Tensor:
    """[heads, tokens, dim / 32, 32]."""
    if why := _uneven(x.shape[-1]):
        raise BadValue("dim", x.shape[-1], f"a multiple of {GROUP}: {why}")
    return x.reshape(*x.shape[:-1], x.shape[-1] // GROUP, GROUP)


def _spread(blocks: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Blocks times 1 / scale; 0 where the stored scale is zero or cannot be held."""
    held = scale.half().abs()
    usable = (held > 0) & held.isfinite()
    return torch.where(usable[..., None], blocks * (1 / scale)[..., None], 0.0)


def _scales(scale: torch.Tensor) -> torch.Tensor:
    """float16 [..., blocks]; NaN in all blocks of a row that has one which cannot be held."""
    held = scale.half()
    return nan_unless(finite_rows(held)[..., None], held)
