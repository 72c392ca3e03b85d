"""Where and how one layer's K and V are kept: one view, or two in a format with cells."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.kernels.attention.base import LayerView, layer_view
from kvist.kernels.attention.basis import PLAIN, Basis
from kvist.spec.layer import LayerSpec, Shared
from kvist.spec.layout import CacheLayout


@dataclass(frozen=True, slots=True)
class Kept:
    """``view`` and ``group`` of a layer's rows; ``near_view`` and ``near_group`` of exact copies of its sinks and
    current cell, where ``view`` is of packed rows (None, -1: there are none); ``writes``: the cache is its own.
    """

    view: LayerView
    group: int
    near_view: LayerView | None
    near_group: int
    basis: Basis
    writes: bool

    @property
    def views(self) -> tuple[LayerView, ...]:
        """All that its attention reads."""
        return (self.view,) if self.near_view is None else (self.view, self.near_view)


def kept_of(layout: CacheLayout, layer: LayerSpec) -> Kept:
    """How a layer's rows (or those of the layer whose cache it reads) are kept."""
    owner = layer.mixer.with_layer if isinstance(layer.mixer, Shared) else layer.index
    (group, _), *more = layout.places_of(owner)
    return Kept(
        view=layer_view(layout, owner, value_dim=layer.value_dim),
        group=group.id,
        near_view=layer_view(layout, owner, value_dim=layer.value_dim, exact=True) if more else None,
        near_group=more[0][0].id if more else -1,
        basis=PLAIN if group.exact else Basis.of(layout.format),
        writes=owner == layer.index,
    )
