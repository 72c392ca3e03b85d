"""Rotary positions (arXiv 2104.09864) and their stretched variants: parameters only, and the frequencies they give.

The rotation pairs dimension ``i`` with ``i + rotary_dim / 2`` (the "half" order); readers permute weights that were
trained or stored with neighbouring pairs, so that one rotation serves every model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvist.errors import ModelError


def yarn_mscale(factor: float, weight: float = 1.0) -> float:
    """YaRN's correction of attention for a context stretched ``factor`` times: ``0.1 * weight * ln(factor) + 1``."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


@dataclass(frozen=True, slots=True)
class Rope:
    """``dim`` leading dims of a head rotate with base ``theta``.

    ``kind``: ``default``; ``linear`` (positions divided by ``factor``); ``llama3`` (smooth blend between plain and
    divided frequencies); ``yarn`` (arXiv 2309.00071); ``factors`` (every frequency has its own divisor, stored in the
    weights file); ``unsupported:NAME`` is planned but refused by the decoder. ``attention_factor`` multiplies the
    rotated part of q and of k. ``interleaved`` says how the *weights* pair dims before the reader permuted them.
    """

    dim: int
    theta: float
    kind: str = "default"
    factor: float = 1.0
    original_context_tokens: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True
    interleaved: bool = False
    layout: Literal["half"] = "half"
    factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.dim < 0 or self.dim % 2 or not (math.isfinite(self.theta) and self.theta > 0):
            raise ModelError(
                f"rotary positions over {self.dim} dims with base {self.theta:g} make no sense",
                remedy="the config is wrong: an even number of dims and a base above 0 are needed",
            )
        if not (math.isfinite(self.factor) and self.factor > 0):
            raise ModelError(
                f"rotary positions stretched by {self.factor:g} make no sense", remedy="the factor must be above 0"
            )

    @property
    def supported(self) -> bool:
        """False when the decoder has to refuse this rotation."""
        return not self.kind.startswith("unsupported:")

    def inverse_frequencies(self) -> np.ndarray:
        """float64 [dim / 2]: radians per position. Raises ``ModelError`` for a kind that is not supported."""
        if not self.supported:
            name = self.kind.partition(":")[2]
            raise ModelError(
                f"rotary positions of kind {name!r} cannot be computed",
                remedy="kvist model shows its cache; running it is not possible",
            )
        base: np.ndarray = 1.0 / self.theta ** (np.arange(0, self.dim, 2, dtype=np.float64) / self.dim)
        if self.kind == "linear":
            return base / self.factor
        if self.kind == "llama3":
            return self._llama3(base)
        if self.kind == "yarn":
            return self._yarn(base)
        if self.kind == "factors":
            scaled: np.ndarray = np.divide(base, np.asarray(self.factors, dtype=np.float64))
            return scaled
        return base

    def _llama3(self, base: np.ndarray) -> np.ndarray:
        wavelength = 2 * math.pi / base
        low = self.original_context_tokens / self.low_freq_factor
        high = self.original_context_tokens / self.high_freq_factor
        width = self.high_freq_factor - self.low_freq_factor
        smooth = (self.original_context_tokens / wavelength - self.low_freq_factor) / (width or 1.0)
        blend = (1 - smooth) * base / self.factor + smooth * base
        return np.where(wavelength > low, base / self.factor, np.where(wavelength < high, base, blend))

    def _yarn(self, base: np.ndarray) -> np.ndarray:
        def dim_of(rotations: float) -> float:
            full = self.original_context_tokens / (rotations * 2 * math.pi)
            return self.dim * math.log(full) / (2 * math.log(self.theta))

        low, high = dim_of(self.beta_fast), dim_of(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dim - 1)
        if low == high:
            high += 0.001
        ramp = np.clip((np.arange(self.dim // 2) - low) / (high - low), 0, 1)
        blend: np.ndarray = base / self.factor * ramp + base * (1 - ramp)
        return blend
