"""A way to write K and V that is measured: a codec for each, and what calibration gave them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import torch

from kvist.errors import BadValue, ModelError, UsageError
from kvist.kernels.codec.base import Codec, Side, Where
from kvist.kernels.codec.calibration import Calibration
from kvist.spec.layer import LayerSpec
from kvist.spec.model import ModelSpec

SIDES: Final[tuple[Side, Side]] = ("k", "v")


@dataclass(frozen=True, slots=True)
class Method:
    """``calibration``: None where no codec needs a mean. One codec object may serve both sides."""

    name: str
    k: Codec
    v: Codec
    calibration: Calibration | None = None

    @property
    def codecs(self) -> tuple[Codec, Codec]:
        """K's and V's."""
        return self.k, self.v

    @property
    def needs_mean(self) -> bool:
        """Whether calibration must bring one."""
        return any(codec.needs for codec in self.codecs)

    def given(self, calibration: Calibration) -> Method:
        """The same with what calibration brought."""
        return replace(self, calibration=calibration)

    def check_shapes(self, spec: ModelSpec) -> None:
        """Refuse what the codecs cannot write. Raises ``BadValue`` or ``ModelError``."""
        for layer in owners(spec):
            for side, codec, dim in zip(SIDES, self.codecs, (layer.key_dim, layer.value_dim), strict=True):
                if side not in codec.sides:
                    raise BadValue("spec", self.name, f"a codec for {side.upper()}: {codec.name} is not one")
                reason = codec.refuses(dim)
                if reason:
                    raise BadValue(
                        "spec", self.name, f"rows that {codec.name} can write: layer {layer.index}, {reason}"
                    )

    def check_mean(self) -> None:
        """Raises ``UsageError`` while calibration has not brought what the codecs need."""
        if self.needs_mean and self.calibration is None:
            raise UsageError(
                f"{self.name} needs the mean of keys, which is learnt from a text, and none was given",
                remedy="name another text than those measured with --calibrate FILE",
            )

    def where(self, layer: LayerSpec, side: Side, start: int) -> Where:
        """Which rows of a layer begin at position ``start``."""
        codec = self.k if side == "k" else self.v
        mean = self.calibration.layers[layer.index].mean_for(codec.needs) if self.calibration is not None else None
        return Where(side, start, mean, inverse_frequencies(layer))


def inverse_frequencies(layer: LayerSpec) -> torch.Tensor:
    """float32 [rotary dims / 2]: empty for a layer without positions."""
    rope = layer.attention.rope
    return torch.empty(0) if rope is None else torch.from_numpy(rope.inverse_frequencies()).float()


def owners(spec: ModelSpec) -> tuple[LayerSpec, ...]:
    """Layers that keep K and V. Raises ``ModelError`` for a model that keeps something else."""
    found = tuple(layer for layer in spec.layers if layer.owns_cache)
    for layer in found:
        if [row.name for row in layer.stream_rows] != ["k", "v"]:
            kept = ", ".join(row.name for row in layer.stream_rows)
            raise ModelError(
                f"layer {layer.index} keeps {kept}: only layers that keep K and V can be measured",
                remedy="take a model with full or windowed attention",
            )
    return found
