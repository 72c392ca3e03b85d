"""Multi-head attention over cached K and V: MHA, GQA, MQA, windows, chunks, and layers that read another's cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from kvist.kernels.attention.base import layer_view
from kvist.model.batch import Batch
from kvist.model.tools import Tools
from kvist.model.weights import LayerWeights
from kvist.spec.layer import LayerSpec, Shared


class SelfAttention:
    """One layer's attention, from normed hidden rows to what is added to the residual stream."""

    def __init__(self, layer: LayerSpec, weights: LayerWeights, tools: Tools) -> None:
        self._layer, self._w, self._t = layer, weights, tools
        owner = layer.mixer.with_layer if isinstance(layer.mixer, Shared) else layer.index
        self._writes = owner == layer.index
        self._view = layer_view(tools.layout, owner, value_dim=layer.value_dim)
        self._write_view = self._view if self._writes else replace(self._view, kv_heads=0)
        self._group = tools.layout.place_of(owner)[0].id
        self._kernel = tools.kernel_for(self._view)
        self._rope = tools.ropes.table(layer.attention.rope)
        self._norms_whole = layer.attention.qk_norm == "full"
        assert weights.qkv is not None
        self._qkv = weights.qkv

    def __call__(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        """``x [rows, hidden]`` -> scratch ``delta [rows, hidden]``."""
        t, layer, rows = self._t, self._layer, len(x)
        group = batch.groups[self._group]
        qkv = t.linear(x, self._qkv, self._w.qkv_bias, out=t.workspace.take("qkv", rows, self._qkv.outputs))
        if self._norms_whole:
            self._norm_projections(qkv)
        q = t.workspace.take("q", rows, layer.q_heads, layer.key_dim)
        t.ops.norm_rotate_write(
            qkv,
            t.pool,
            self._write_view,
            q_heads=layer.q_heads,
            cos=self._rope.cos if self._rope else None,
            sin=self._rope.sin if self._rope else None,
            positions=batch.positions,
            block=group.block if self._writes else np.full_like(group.block, -1),
            slot=group.slot,
            q_norm=None if self._norms_whole else self._w.q_norm,
            k_norm=None if self._norms_whole else self._w.k_norm,
            eps=t.norm_eps,
            q_out=q,
        )
        out = t.workspace.take("attended", rows, layer.q_heads, layer.value_dim)
        scale, softcap = layer.attention.scale, layer.attention.softcap
        self._kernel(q, t.pool, self._view, group.work, scale=scale, softcap=softcap, out=out)
        delta = t.workspace.take("delta", rows, self._w.o.outputs)
        return t.linear(out.view(rows, -1), self._w.o, self._w.o_bias, out=delta)

    def _norm_projections(self, qkv: torch.Tensor) -> None:
        """RMS norm over all heads at once, of q and of k, in place in ``qkv [rows, q | k | v]``."""
        q_width = self._layer.q_heads * self._layer.key_dim
        k_width = self._layer.kv_heads * self._layer.key_dim
        for start, width, norm in ((0, q_width, self._w.q_norm), (q_width, k_width, self._w.k_norm)):
            if norm is not None:
                part = qkv[:, start : start + width]
                part.copy_(self._t.ops.rms_norm(part.contiguous(), norm, self._t.norm_eps))
