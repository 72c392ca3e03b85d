"""Rows of one stream of one layer, as they were computed and as a codec reads them back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kvist.kernels.codec.base import Codec, Where


@dataclass(slots=True)
class Distortion:
    """Sums over rows, float64 [heads]: squared error of what is read back, squared rows. ``encode_s``: seconds."""

    error: torch.Tensor
    energy: torch.Tensor
    encode_s: float = 0.0

    @property
    def relative(self) -> float:
        """Error over energy, the mean over heads; 0 before anything was packed."""
        live = self.energy > 0
        return float((self.error[live] / self.energy[live]).mean()) if bool(live.any()) else 0.0


class Stream:
    """Room for ``length_tokens`` rows, ``exact`` and ``packed`` float32 [heads, tokens, dim].

    Every run of ``unit_tokens`` rows is encoded once, when it is whole, and what it decodes to is kept. Rows of a run
    that is not whole are zero in ``packed``: no query reads them there. Without a codec there is no ``packed``.
    """

    def __init__(
        self, heads: int, dim: int, length_tokens: int, codec: Codec | None, where: Callable[[int], Where] | None
    ) -> None:
        self.exact = torch.zeros(heads, length_tokens, dim)
        self.packed = torch.zeros_like(self.exact) if codec is not None else None
        self.distortion = Distortion(torch.zeros(heads, dtype=torch.float64), torch.zeros(heads, dtype=torch.float64))
        self._codec, self._where = codec, where
        self.length_tokens = self.packed_tokens = 0

    def take(self, rows: torch.Tensor) -> None:
        """The next rows, float32 [heads, tokens, dim]."""
        end = self.length_tokens + rows.shape[1]
        self.exact[:, self.length_tokens : end] = rows
        self.length_tokens = end
        if self._codec is not None:
            whole = end // self._codec.unit_tokens * self._codec.unit_tokens
            if whole > self.packed_tokens:
                self._pack(self._codec, self.packed_tokens, whole)

    def _pack(self, codec: Codec, start: int, end: int) -> None:
        assert self._where is not None and self.packed is not None
        rows, where = self.exact[:, start:end].contiguous(), self._where(start)
        begin = time.perf_counter()
        encoded = codec.encode(rows, where)
        self.distortion.encode_s += time.perf_counter() - begin
        read = codec.decode(encoded, where)
        self.packed[:, start:end] = read
        self.distortion.error += (read - rows).double().square().sum(dim=(1, 2))
        self.distortion.energy += rows.double().square().sum(dim=(1, 2))
        self.packed_tokens = end
