"""What several codecs do to rows: sums whose order is fixed, and float16 numbers rounded to a known side.

Sums are folded (the upper half is added to the lower until one number is left), never reduced by the library: so a
row's sum depends on that row alone, to the bit, whatever the shape of the batch.
"""

from __future__ import annotations

import torch


def folded_sum(x: torch.Tensor) -> torch.Tensor:
    """Sum over the last axis, float32 [...]."""
    while (n := x.shape[-1]) > 1:
        kept = 1 << (n - 1).bit_length() - 1  # the largest power of two below n
        x = torch.cat([x[..., : n - kept] + x[..., kept:], x[..., n - kept : kept]], dim=-1)
    return x[..., 0]


def finite_rows(x: torch.Tensor) -> torch.Tensor:
    """Which rows, bool [...]: those of ``x`` [..., dim] without a NaN or an infinity."""
    return x.isfinite().all(dim=-1)


def nan_unless(fine: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """``scale`` where ``fine``, NaN elsewhere; of ``scale``'s type."""
    return torch.where(fine, scale, torch.nan)


def half_up(x: torch.Tensor) -> torch.Tensor:
    """The smallest float16 not below ``x`` float32 >= 0; infinity above 65504."""
    near = x.half()
    return torch.where(near.float() < x, near.view(torch.int16) + 1, near.view(torch.int16)).view(torch.float16)


def half_down(x: torch.Tensor) -> torch.Tensor:
    """The largest float16 not above ``x`` float32; minus infinity below -65504."""
    near = x.half()
    towards = torch.where(near.signbit(), 1, -1).to(torch.int16)
    bits = near.view(torch.int16)
    return torch.where(near.float() > x, bits + towards, bits).view(torch.float16)
