"""Equal steps from the least to the largest number of a group: ``value = scale * code + zero``.

``zero`` is the group's least number rounded down to float16, ``scale`` the least float16 with which the largest is
reached: so nothing is cut off, and no number is further than half a step from its code's value.
"""

from __future__ import annotations

import torch

from kvist.kernels.codec.rows import half_down, half_up


def steps(x: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(codes uint8 [..., n], scale float16 [...], zero float16 [...]) of groups ``x`` float32 [..., n].

    A group with a NaN, an infinity or more than float16 holds has a scale or a zero that is not finite.
    """
    zero = half_down(x.amin(dim=-1))
    scale = half_up((x.amax(dim=-1) - zero.float()) / (2**bits - 1))
    step, start = scale.float()[..., None], zero.float()[..., None]
    usable = (step > 0) & step.isfinite() & start.isfinite()
    return torch.where(usable, ((x - start) / step).round(), 0.0).to(torch.uint8), scale, zero


def values(codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """float32 [..., n] of what :func:`steps` gave."""
    return codes.float() * scale.float()[..., None] + zero.float()[..., None]
