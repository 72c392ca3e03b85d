"""Calibration for a measurement: means of K over a text that is not the one measured."""

from __future__ import annotations

from collections.abc import Sequence

from kvist.kernels.codec.calibrate import Calibrator
from kvist.kernels.codec.calibration import Calibration
from kvist.lab.quality.forward import Pace, Pass
from kvist.lab.quality.method import inverse_frequencies, owners
from kvist.lab.rig import Model


def calibrate(model: Model, digest: bytes, tokens: Sequence[int], pace: Pace | None = None) -> Calibration:
    """What one exact pass over ``tokens`` leaves. ``digest``: of the weights."""
    run = Pass(model, tokens, pace=pace)
    for _ in run.run():
        pass
    layers = owners(model.spec)
    means = Calibrator(digest, {layer.index: (layer.kv_heads, layer.key_dim) for layer in layers})
    for layer in layers:
        kept = run.layers[layer.index]
        frequencies = inverse_frequencies(layer)
        means.add(layer.index, kept.k.exact, kept.v.exact, start=0, inverse_frequencies=frequencies)
    return means.finish()
