"""``sm`` and ``ms``: most of the energy of keys is a mean that never changes; what remains needs fewer bits.

Both are for keys only, subtract a mean that calibration gave, write the rest as ``lm`` does, and add the mean again
when they read: exactly what was subtracted.

* ``sm`` (shifted): the mean of keys after rotation by position. Its product with a query is the same for every key, so
  the softmax cancels it: a kernel that shifts *every* key (the exact ones too) need not add it again, unless the rows
  are values too (MLA).
* ``ms`` (mean-shifted): the mean mu before rotation, turned to the key's position: R(n) mu. Its product with a query is
  one sum of cosines and sines over the pairs of the rotation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from kvist.errors import BadValue
from kvist.kernels.codec.base import Encoded, Side, Where
from kvist.kernels.codec.hadamard import tiling
from kvist.kernels.codec.lloyd import Lloyd
from kvist.kernels.codec.position import turned


@dataclass(frozen=True, slots=True)
class CentredLloyd:
    """``bits``: 2, 3 or 4. ``turning``: the mean is one before rotation by position (``ms``), or after it (``sm``)."""

    bits: int
    turning: bool
    unit_tokens: ClassVar[int] = 1
    sides: ClassVar[tuple[Side, ...]] = ("k",)
    always_packed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.rest  # noqa: B018 (refuses other bits)

    @property
    def rest(self) -> Lloyd:
        """How rows without their mean are written."""
        return Lloyd(self.bits)

    @property
    def name(self) -> str:
        """With its bits."""
        return f"{'ms' if self.turning else 'sm'}{self.bits}"

    @property
    def needs(self) -> Literal["mean", "pre_rope_mean"]:
        """A mean."""
        return "pre_rope_mean" if self.turning else "mean"

    def refuses(self, dim: int) -> str:
        """What ``lm`` refuses; for ``ms`` also the rows of MLA, of which the last dims are rotated, not the first."""
        if why := self.rest.refuses(dim):
            return why
        size, count = tiling(dim)
        if self.turning and size * count < dim:
            return f"of a latent row only the last {dim - size * count} numbers are rotated by position"
        return ""

    def row_bits(self, dim: int) -> float:
        """As ``lm``: the mean belongs to the layer, not to a row."""
        return self.rest.row_bits(dim)

    def encode(self, x: torch.Tensor, where: Where) -> Encoded:
        """See the contract. Raises ``BadValue`` where ``where`` lacks the mean or the rotation."""
        return self.rest.encode(x - self._mean(where, x), where)

    def decode(self, encoded: Encoded, where: Where) -> torch.Tensor:
        """See the contract. Raises ``BadValue`` where ``where`` lacks the mean or the rotation."""
        return self.rest.decode(encoded, where) + self._mean(where, encoded.codes)

    def _mean(self, where: Where, rows: torch.Tensor) -> torch.Tensor:
        """What is subtracted from ``rows`` [heads, tokens, dim]: float32 [heads, tokens or 1, dim]."""
        heads, tokens, dim = rows.shape
        mean, frequencies = where.mean, where.inverse_frequencies
        if mean is None or mean.shape != (heads, dim) or mean.dtype != torch.float32:
            found = None if mean is None else f"{mean.dtype} {list(mean.shape)}"
            raise BadValue("mean", found, f"for {self.name}, float32 {[heads, dim]} from a calibration")
        if not mean.isfinite().all():
            raise BadValue("mean", float(mean[~mean.isfinite()][0]), "finite numbers", remedy="calibrate again")
        if not self.turning:
            return mean[:, None]
        if frequencies is None or 2 * len(frequencies) > dim:
            found = None if frequencies is None else str(list(frequencies.shape))
            raise BadValue("inverse_frequencies", found, f"for {self.name}, those of the rotation, at most {dim // 2}")
        return turned(mean[:, None], where.start, tokens, frequencies, interleaved=where.interleaved)
