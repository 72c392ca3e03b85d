"""The normalised Hadamard rotation: spreads what a few channels hold over all, and keeps lengths and dot products.

Sylvester's matrix divided by the root of its size is symmetric and orthogonal: it is its own inverse. The rule for any
row length:

* a power of two: one matrix for the whole row;
* a power of two from 256 up and an eighth of it more (512 + 64, 256 + 32: the latent of MLA and its rotary part): the
  power of two only, the rest is left alone;
* anything else: the largest power of two that divides the length, side by side (96 = 3 x 32, 80 = 5 x 16). Where that
  is below 16, rotation would spread too little to be worth its name: refused.

Butterflies run on neighbours at distance 1, 2, 4..., then one multiplication by the float32 nearest to 1 / root(size):
a row's result depends on nothing but the row.
"""

from __future__ import annotations

from typing import Final

import torch

LEAST_BLOCK: Final = 16
LEAST_LATENT: Final = 256


def tiling(dim: int) -> tuple[int, int]:
    """(size of a matrix, how many side by side) for rows of ``dim`` numbers; the rest of the row is left alone."""
    top = 1 << dim.bit_length() - 1
    if top >= LEAST_LATENT and dim == top + top // 8:
        return top, 1
    size = dim & -dim
    return size, dim // size


def refusal(dim: int) -> str:
    """Why rows of ``dim`` numbers are not rotated; empty: they are."""
    if dim < 1:
        return f"a row of {dim} numbers is no row"
    size, _ = tiling(dim)
    if size < LEAST_BLOCK:
        return f"{dim} numbers are cut into Hadamard blocks of {size}; the least is {LEAST_BLOCK}"
    return ""


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """``x`` float32 [..., dim] rotated; a second time gives ``x`` back, to rounding."""
    size, count = tiling(x.shape[-1])
    whole, rows = size * count, x.shape[:-1]
    y, rest = x[..., :whole], x[..., whole:]
    step = 1
    while step < size:
        pairs = y.reshape(*rows, whole // step // 2, 2, step)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        y = torch.stack([a + b, a - b], dim=-2)
        step *= 2
    return torch.cat([y.reshape(*rows, whole) * size**-0.5, rest], dim=-1)
