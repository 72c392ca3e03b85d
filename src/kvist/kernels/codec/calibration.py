"""What calibration knows about a model's keys and values: checked wherever it comes from, and named by a digest."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

from kvist.errors import BadValue
from kvist.kernels.codec.base import Side
from kvist.kernels.codec.fp8 import check_scale

DIGEST_BYTES: Final = 16
MEANS: Final = ("mean", "pre_rope_mean")
SCALES: Final = ("k_scale", "v_scale")
REMEDY: Final = "calibrate this model again"


@dataclass(frozen=True, slots=True, eq=False)
class LayerStatistics:
    """``mean``: of keys as they are cached, after rotation by position; ``pre_rope_mean``: of keys rotated back first.

    Both float32 [heads, key_dim]. ``k_scale``, ``v_scale``: what ``fp8_e4m3`` multiplies its codes by.
    """

    mean: torch.Tensor
    pre_rope_mean: torch.Tensor
    k_scale: float
    v_scale: float

    def scale_of(self, side: Side) -> float:
        """Of one side."""
        return self.k_scale if side == "k" else self.v_scale

    def mean_for(self, needs: str) -> torch.Tensor | None:
        """The mean that ``Codec.needs`` asks for; None where it asks for nothing."""
        return {"mean": self.mean, "pre_rope_mean": self.pre_rope_mean}.get(needs)


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Statistics of every layer that owns keys, by index. ``model``: the digest of the weights they came from.

    Raises ``BadValue`` that names layer and value for a mean that is not finite or a scale that is none.
    """

    model: bytes
    tokens: int
    layers: Mapping[int, LayerStatistics]

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise BadValue("tokens", self.tokens, "at least 1 seen")
        for index, layer in self.layers.items():
            for name in MEANS:
                _check_mean(f"layer {index} {name}", getattr(layer, name), layer.mean.shape)
            check_scale(layer.k_scale, f"layer {index} k_scale")
            check_scale(layer.v_scale, f"layer {index} v_scale")

    @property
    def digest(self) -> bytes:
        """16 bytes of BLAKE2b over the model's digest, the tokens, and every name, shape and value."""
        total = hashlib.blake2b(digest_size=DIGEST_BYTES, person=b"kvist.calib.1")
        parts = [self.model, str(self.tokens).encode()]
        for name, tensor in self.tensors().items():
            parts += [name.encode(), repr(tuple(tensor.shape)).encode(), tensor.numpy().astype("<f4").tobytes()]
        for part in parts:
            total.update(len(part).to_bytes(8, "little") + part)
        return total.digest()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything by name (``3.mean``), float32; a scale is one number of shape [1]."""
        out: dict[str, torch.Tensor] = {}
        for index, layer in sorted(self.layers.items()):
            out |= {f"{index}.{name}": getattr(layer, name).contiguous() for name in MEANS}
            out |= {f"{index}.{name}": torch.tensor([getattr(layer, name)], dtype=torch.float32) for name in SCALES}
        return out


def _check_mean(name: str, mean: torch.Tensor, shape: torch.Size) -> None:
    if mean.dtype != torch.float32 or mean.ndim != 2 or mean.shape != shape:
        raise BadValue(name, f"{mean.dtype} {list(mean.shape)}", "float32 [heads, key dim]", remedy=REMEDY)
    if not mean.isfinite().all():
        raise BadValue(name, float(mean[~mean.isfinite()][0]), "finite numbers", remedy=REMEDY)
