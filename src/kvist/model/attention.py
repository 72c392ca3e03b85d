"""Multi-head attention over cached K and V: MHA, GQA, MQA, windows, chunks, and layers that read another's cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from kvist.kernels.attention.base import Carry
from kvist.kernels.ops.base import Near
from kvist.model.batch import Batch
from kvist.model.kept import kept_of
from kvist.model.tools import Tools
from kvist.model.weights import LayerWeights
from kvist.spec.layer import LayerSpec


class SelfAttention:
    """One layer's attention, from normed hidden rows to what is added to the residual stream."""

    def __init__(self, layer: LayerSpec, weights: LayerWeights, tools: Tools) -> None:
        self._layer, self._w, self._t = layer, weights, tools
        self._kept = kept = kept_of(tools.layout, layer)
        self._write_view = kept.view if kept.writes else replace(kept.view, kv_heads=0)
        self._kernel = tools.kernel_for(*kept.views)
        self._rope = tools.ropes.table(layer.attention.rope)
        self._norms_whole = layer.attention.qk_norm == "full"
        assert weights.qkv is not None
        self._qkv = weights.qkv

    def __call__(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        """``x [rows, hidden]`` -> scratch ``delta [rows, hidden]``."""
        t, layer, rows = self._t, self._layer, len(x)
        group = batch.groups[self._kept.group]
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
            block=group.block if self._kept.writes else np.full_like(group.block, -1),
            slot=group.slot,
            q_norm=None if self._norms_whole else self._w.q_norm,
            k_norm=None if self._norms_whole else self._w.k_norm,
            eps=t.norm_eps,
            q_out=q,
            basis=self._kept.basis,
            near=self._near(batch),
        )
        out = t.workspace.take("attended", rows, layer.q_heads, layer.value_dim)
        self._attend(q, batch, out)
        if self._kept.basis.v_rotated:
            t.ops.rotate_heads(out)
        delta = t.workspace.take("delta", rows, self._w.o.outputs)
        return t.linear(out.view(rows, -1), self._w.o, self._w.o_bias, out=delta)

    def _near(self, batch: Batch) -> Near | None:
        """Where the exact copies of the rows go; None: there are none, or another layer writes them."""
        kept = self._kept
        if kept.near_view is None or not kept.writes:
            return None
        group = batch.groups[kept.near_group]
        return Near(kept.near_view, group.block, group.slot)

    def _attend(self, q: torch.Tensor, batch: Batch, out: torch.Tensor) -> None:
        """Packed rows first, then sinks and the queries' own cells, where these are kept apart."""
        t, kept, scale, softcap = self._t, self._kept, self._layer.attention.scale, self._layer.attention.softcap
        work = batch.groups[kept.group].work
        if kept.near_view is None:
            self._kernel(q, t.pool, kept.view, work, scale=scale, softcap=softcap, out=out)
            return
        state = t.workspace.take("attention state", len(q), self._layer.q_heads, 2)
        first, last = Carry(state, first=True, last=False), Carry(state, first=False, last=True)
        self._kernel(q, t.pool, kept.view, work, scale=scale, softcap=softcap, out=out, carry=first)
        near = batch.groups[kept.near_group].work
        self._kernel(q, t.pool, kept.near_view, near, scale=scale, softcap=softcap, out=out, carry=last)

    def _norm_projections(self, qkv: torch.Tensor) -> None:
        """RMS norm over all heads at once, of q and of k, in place in ``qkv [rows, q | k | v]``."""
        q_width = self._layer.q_heads * self._layer.key_dim
        k_width = self._layer.kv_heads * self._layer.key_dim
        for start, width, norm in ((0, q_width, self._w.q_norm), (q_width, k_width, self._w.k_norm)):
            if norm is not None:
                part = qkv[:, start : start + width]
                part.copy_(self._t.ops.rms_norm(part.contiguous(), norm, self._t.norm_eps))
