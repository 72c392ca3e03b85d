"""What every layer of a decoder works with, and the scratch memory they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kvist.errors import BadValue
from kvist.kernels.attention.base import AttentionKernel, LayerView
from kvist.kernels.ops.base import Ops
from kvist.model.rope import RopeTables
from kvist.spec.layout import CacheLayout

_MAX_VIEWS = 4096


class Workspace:
    """Scratch tensors by name: contiguous float32 views of buffers that only grow. Owner: the decoder.

    A view is valid until the next ``take`` of the same name; whoever takes it knows who used the name before.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}
        self._views: dict[tuple[str, tuple[int, ...]], torch.Tensor] = {}

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """An uninitialised tensor of ``shape``."""
        key = (name, shape)
        view = self._views.get(key)
        return self._make(name, shape) if view is None else view

    def _make(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        n = torch.Size(shape).numel()
        if name not in self._buffers or self._buffers[name].numel() < n:
            self._buffers[name] = torch.empty(n, dtype=torch.float32)
            self._views = {k: v for k, v in self._views.items() if k[0] != name}
        if len(self._views) >= _MAX_VIEWS:
            self._views.clear()
        view = self._views[name, shape] = self._buffers[name][:n].view(shape)
        return view


@dataclass(frozen=True, slots=True)
class Tools:
    """Kernels and shared memory of one decoder. ``linear`` is the product of the chosen numerics class."""

    ops: Ops
    linear: Callable[..., torch.Tensor]
    kernels: Sequence[AttentionKernel]
    workspace: Workspace
    layout: CacheLayout
    pool: torch.Tensor
    ropes: RopeTables
    norm_eps: float

    def kernel_for(self, *views: LayerView) -> AttentionKernel:
        """The first of the kernels that can read all that the layer keeps."""
        for kernel in self.kernels:
            if all(kernel.supports(view) for view in views):
                return kernel
        names = ", ".join(k.name for k in self.kernels)
        kinds = ", ".join(f"{view.k_element}/{view.v_element}" for view in views)
        raise BadValue("attention", names, f"a kernel that reads {kinds} tiles: {views}")
