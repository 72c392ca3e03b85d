"""How far from the best possible a codec is: its mean squared error on N(0, 1) against rate and distortion.

Shannon: no code of ``b`` bits a number errs less than ``4 ** -b`` on a normal source. A level for each number by itself
(Lloyd-Max) errs ``sqrt(3) * pi / 2 = 2.72`` times that when bits are many (Panter and Dite 1951).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch

from kvist.kernels.codec.base import Codec, Where
from kvist.kernels.codec.lloyd_max import distortion as lloyd_max
from kvist.kernels.codec.position import turned

PANTER_DITE: Final = math.sqrt(3) * math.pi / 2
"""What the ratio of Lloyd-Max to Shannon tends to."""
_MEAN_SPREAD: Final = 2.0


def shannon(bits: float) -> float:
    """The least mean squared error on N(0, 1) with ``bits`` a number."""
    return math.pow(4, -bits)


@dataclass(frozen=True, slots=True)
class Distortion:
    """``mse`` on numbers of variance 1. ``bits``: of one number, with its share of scales."""

    codec: str
    dim: int
    bits: float
    mse: float

    @property
    def over_shannon(self) -> float:
        """How many times the least error at as many bits: 1 is the limit."""
        return self.mse / shannon(self.bits)

    @property
    def wasted_bits(self) -> float:
        """Bits a number above what the same error needs at least; minus infinity without any error."""
        return math.log2(self.over_shannon) / 2 if self.mse else -math.inf

    @property
    def over_lloyd_max(self) -> float:
        """Error over that of the best levels for whole bits, scales not counted."""
        return self.mse / lloyd_max(int(self.bits))


def measure(codec: Codec, dim: int, tokens: int, seed: int) -> Distortion:
    """Error on ``tokens`` rows of one head, normal around the mean where the codec asks for one.

    ``tokens``: a multiple of ``codec.unit_tokens``.
    """
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(1, tokens, dim, generator=chance)
    mean = torch.randn(1, dim, generator=chance) * _MEAN_SPREAD if codec.needs else None
    frequencies = 10000.0 ** -torch.arange(0, 1, 2 / dim)
    where = Where(codec.sides[0], mean=mean, inverse_frequencies=frequencies)
    if codec.needs == "mean" and mean is not None:
        x = x + mean[:, None]
    elif mean is not None:
        x = x + turned(mean[:, None], 0, tokens, frequencies, interleaved=False)
    error = codec.decode(codec.encode(x, where), where).double() - x.double()
    return Distortion(codec.name, dim, codec.row_bits(dim) / dim, float(error.square().mean()))
