"""Calibration: rows of K and V as they are cached go by, and leave their means and their largest magnitudes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from kvist.errors import BadValue, StateError
from kvist.kernels.codec.calibration import Calibration, LayerStatistics
from kvist.kernels.codec.fp8 import LARGEST
from kvist.kernels.codec.position import turned


class Calibrator:
    """Sums in double precision, for every layer and head. Not for several threads.

    ``model``: the digest of the weights. ``shapes``: (heads, key dim) of every layer that owns keys. Keys come rotated;
    the mean before rotation is that of the keys turned back (so a factor that a stretched rotation puts on keys is in
    both means).
    """

    def __init__(self, model: bytes, shapes: Mapping[int, tuple[int, int]]) -> None:
        self._model: Final = model
        self._sums: Final = {index: _Sums(*shape) for index, shape in shapes.items()}

    def add(
        self,
        layer: int,
        k: torch.Tensor,
        v: torch.Tensor | None,
        *,
        start: int,
        inverse_frequencies: torch.Tensor,
        interleaved: bool = False,
    ) -> None:
        """``k`` float32 [heads, tokens, key dim] at positions from ``start`` on, ``v`` [heads, tokens, value dim].

        ``v`` None: the layer has none (MLA). Without rotation ``inverse_frequencies`` are empty. Raises ``BadValue``
        that names layer and value for rows of another shape or with a NaN or an infinity; nothing is added then.
        """
        if layer not in self._sums:
            raise BadValue("layer", layer, f"one of {', '.join(map(str, self._sums))}")
        sums = self._sums[layer]
        shape = tuple(sums.after.shape)
        if k.ndim != 3 or (k.shape[0], k.shape[2]) != shape:
            raise BadValue(f"layer {layer} k", list(k.shape), f"[{shape[0]}, tokens, {shape[1]}]")
        for name, rows in (("k", k), ("v", v)):
            if rows is not None and not rows.isfinite().all():
                raise BadValue(f"layer {layer} {name}", float(rows[~rows.isfinite()][0]), "finite numbers")
        rows = k.double()
        frequencies = inverse_frequencies.double()
        before = turned(rows, start, k.shape[1], frequencies, interleaved=interleaved, back=True)
        sums.tokens += k.shape[1]
        sums.after += rows.sum(dim=1)
        sums.before += before.sum(dim=1)
        sums.k_peak = max(sums.k_peak, _peak(k))
        sums.v_peak = max(sums.v_peak, _peak(v))

    def finish(self) -> Calibration:
        """The statistics so far. Raises ``StateError`` unless every layer has seen the same number of tokens."""
        seen = {index: sums.tokens for index, sums in self._sums.items()}
        tokens = max(seen.values(), default=0)
        if short := {index: n for index, n in seen.items() if n < tokens or not n}:
            index, n = next(iter(short.items()))
            raise StateError(
                f"layer {index} has seen {n} tokens, others {tokens}", remedy="add the same rows of every layer"
            )
        return Calibration(self._model, tokens, {index: sums.statistics() for index, sums in self._sums.items()})


class _Sums:
    """Of one layer, float64 [heads, key dim]."""

    def __init__(self, heads: int, dim: int) -> None:
        self.tokens = 0
        self.after = torch.zeros(heads, dim, dtype=torch.float64)
        self.before = torch.zeros(heads, dim, dtype=torch.float64)
        self.k_peak = self.v_peak = 0.0

    def statistics(self) -> LayerStatistics:
        return LayerStatistics(
            (self.after / self.tokens).float(),
            (self.before / self.tokens).float(),
            _scale(self.k_peak),
            _scale(self.v_peak),
        )


def _peak(rows: torch.Tensor | None) -> float:
    return float(rows.abs().max()) if rows is not None and rows.numel() else 0.0


def _scale(peak: float) -> float:
    """What brings ``peak`` to the largest fp8 number, as float32; 1 where nothing was seen that could be divided."""
    scale = float(torch.tensor(peak / LARGEST, dtype=torch.float32))
    return scale if scale >= torch.finfo(torch.float32).tiny else 1.0
