"""A whole decoder step as one native call: ``csrc/step.cpp`` does the work, this file checks tensors and keeps them.

The numbers are those of the native operations called one by one, bit for bit: it calls the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kvist.errors import BadValue
from kvist.kernels.attention.base import LayerView, WorkList
from kvist.kernels.attention.basis import Basis
from kvist.kernels.attention.native import plan_of
from kvist.kernels.matrix import Matrix
from kvist.kernels.native_module import Views, load
from kvist.kernels.ops import native as native_ops
from kvist.kernels.ops.native import ACTIVATION, WEIGHT_ELEMENT

Rows = tuple[WorkList, np.ndarray, np.ndarray]
"""One layer group's part of a step: its work list, and int32 [rows] blocks (-1: nowhere) and slots to write to."""


@dataclass(frozen=True, slots=True)
class Product:
    """Weights and, for some models, a bias float32 [outputs]."""

    matrix: Matrix
    bias: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class ProgramLayer:
    """One layer. ``writes`` is false for one that reads another's cache: its ``qkv`` holds q alone.

    ``group`` and ``rope`` are indices (rope -1: no rotation). ``near_view`` and ``near_group`` are of exact rows beside
    packed ones (None, -1: none), ``basis`` that of both. Norms are float32 [hidden]; ``q_norm`` and ``k_norm``
    [key_dim], or as wide as all their heads where ``norms_whole``.
    """

    view: LayerView
    writes: bool
    group: int
    rope: int
    q_heads: int
    near_view: LayerView | None
    near_group: int
    basis: Basis
    scale: float
    softcap: float
    activation: str
    norms_whole: bool
    qkv: Product
    o: Product
    gate_up: Product
    down: Product
    attn_norm: torch.Tensor | None
    attn_post_norm: torch.Tensor | None
    ffn_norm: torch.Tensor | None
    ffn_post_norm: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class ProgramModel:
    """What a step needs beside the layers."""

    hidden: int
    norm_eps: float
    embedding_scale: float
    embed: Matrix
    head: Matrix
    final_norm: torch.Tensor


class Program:
    """A model's step over ``pool`` uint8 [blocks, block_bytes]. One instance serves one thread at a time.

    Raises ``BadValue`` for tensors of another shape or type, ``ValueError`` for layers that do not fit together.
    """

    def __init__(self, model: ProgramModel, layers: Sequence[ProgramLayer], pool: torch.Tensor) -> None:
        native = load()
        self._pool, self._vocab = pool, model.head.outputs
        self._kept: list[object] = [model, *layers]  # the native side holds addresses only
        self._ropes: tuple[torch.Tensor, ...] = ()
        products = [m for layer in layers for m in (layer.qkv, layer.o, layer.gate_up, layer.down)]
        self._has_f32 = "f32" in {model.head.kind, *(p.matrix.kind for p in products)}
        views = Views()
        self._native = native.Program(
            model.hidden,
            model.norm_eps,
            model.embedding_scale,
            _product(native, Product(model.embed)),
            _product(native, Product(model.head)),
            _vector(model.final_norm, model.hidden),
        )
        for layer in layers:
            self._native.add(**_fields(native, views, model.hidden, layer))

    def set_ropes(self, tables: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Cosines and sines float32 [positions, rotary_dim / 2] of each rotation, by index; again when grown."""
        self._ropes = tuple(t for pair in tables for t in pair)
        for t in self._ropes:
            if t.dtype is not torch.float32 or t.ndim != 2 or not t.is_contiguous():
                raise BadValue("cos, sin", (tuple(t.shape), t.dtype), "contiguous float32 [positions, rotary_dim / 2]")
        self._native.set_ropes([(cos.data_ptr(), sin.data_ptr(), *cos.shape) for cos, sin in tables])

    def is_fast(self, rows: int) -> bool:
        """Whether ``linear_fast`` would do the products of a step of ``rows`` rows as the program does: natively."""
        return not self._has_f32 or rows < native_ops.library_rows()

    def run(
        self, tokens: np.ndarray, positions: np.ndarray, groups: Sequence[Rows], logit_rows: np.ndarray
    ) -> torch.Tensor:
        """Compute all rows, write their K and V; the head's output float32 [len(logit_rows), vocab].

        ``tokens``, ``positions`` and ``logit_rows`` are int32. Raises ``ValueError`` for what lies outside of the
        pool, the vocabulary or the tables of cosines, before anything is written.
        """
        out = torch.empty((len(logit_rows), self._vocab), dtype=torch.float32, device="cpu")
        blocks, block_bytes = self._pool.shape
        parts = [(plan_of(work), block, slot) for work, block, slot in groups]
        self._native.run(
            tokens, positions, parts, logit_rows, self._pool.data_ptr(), blocks, block_bytes, out.data_ptr()
        )
        return out


def _fields(native: Any, views: Views, hidden: int, layer: ProgramLayer) -> dict[str, Any]:
    """The arguments of the native ``add``."""
    heads = (layer.q_heads, layer.view.kv_heads) if layer.norms_whole else (1, 1)
    products = {name: _product(native, getattr(layer, name)) for name in ("qkv", "o", "gate_up", "down")}
    around = ("attn_norm", "attn_post_norm", "ffn_norm", "ffn_post_norm")
    return {
        "view": views.of(layer.view),
        "writes": layer.writes,
        "group": layer.group,
        "rope": layer.rope,
        "q_heads": layer.q_heads,
        "near_view": views.of(layer.near_view or layer.view),
        "near_group": layer.near_group,
        "k_rotated": layer.basis.k_rotated,
        "v_rotated": layer.basis.v_rotated,
        "k_mean": _mean(layer),
        "scale": layer.scale,
        "softcap": layer.softcap,
        "activation": ACTIVATION[layer.activation],
        "norms_whole": layer.norms_whole,
        **products,
        **{name: _vector(getattr(layer, name), hidden) for name in around},
        "q_norm": _vector(layer.q_norm, heads[0] * layer.view.key_dim),
        "k_norm": _vector(layer.k_norm, heads[1] * layer.view.key_dim),
    }


def _mean(layer: ProgramLayer) -> int:
    """Address of a layer's mean of K."""
    mean = layer.basis.k_mean
    if mean is None:
        return 0
    if mean.shape != (layer.view.kv_heads, layer.view.key_dim):
        raise BadValue("k_mean", tuple(mean.shape), f"[{layer.view.kv_heads}, {layer.view.key_dim}]")
    return _vector(mean.view(-1), mean.numel())


def _product(native: Any, product: Product) -> Any:
    m = product.matrix
    if m.kind not in WEIGHT_ELEMENT or not m.readable:
        found = (m.kind, m.outputs, m.inputs, tuple(m.data.shape), m.data.dtype)
        raise BadValue("matrix", found, f"whole and contiguous, of {', '.join(WEIGHT_ELEMENT)}")
    return native.Product(
        m.data.data_ptr(), WEIGHT_ELEMENT[m.kind], m.outputs, m.inputs, _vector(product.bias, m.outputs)
    )


def _vector(t: torch.Tensor | None, width: int) -> int:
    """Address of a float32 [width]; 0 for none."""
    if t is None:
        return 0
    if t.dtype is not torch.float32 or t.shape != (width,) or not t.is_contiguous():
        raise BadValue("tensor", (tuple(t.shape), t.dtype), f"contiguous float32 [{width}]")
    return t.data_ptr()
