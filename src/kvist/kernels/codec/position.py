"""A fixed vector rotated to given positions: what the mean of keys looks like after rotary positions."""

from __future__ import annotations

import numpy as np
import torch


def turned(
    x: torch.Tensor,
    start: int,
    tokens: int,
    inverse_frequencies: torch.Tensor,
    *,
    interleaved: bool,
    back: bool = False,
) -> torch.Tensor:
    """``x`` [heads, tokens or 1, dim] rotated to positions ``[start, start + tokens)``, of ``x``'s type.

    Dim i pairs with i + half (``interleaved``: 2i with 2i + 1); dims beyond the rotation stay. Angles, cosines and
    sines are made in double precision. ``back``: the other way round.
    """
    positions = np.arange(start, start + tokens, dtype=np.float64)
    angles = np.outer(-positions if back else positions, inverse_frequencies.double().numpy())
    cos, sin = (torch.from_numpy(f(angles)).to(x.dtype) for f in (np.cos, np.sin))  # [tokens, half]
    half = cos.shape[-1]
    turning, rest = x[..., : 2 * half], x[..., 2 * half :]
    a, b = (turning[..., ::2], turning[..., 1::2]) if interleaved else (turning[..., :half], turning[..., half:])
    pair = (a * cos - b * sin, b * cos + a * sin)
    moved = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return torch.cat([moved, rest.expand(*moved.shape[:-1], -1)], dim=-1)
