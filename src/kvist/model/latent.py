"""Multi-head latent attention in absorbed form (DeepSeek-V2, arXiv 2405.04434): the cache holds one latent a token.

``k_nope = w_uk c`` and ``v = w_uv c`` are never made: ``q_nope . (w_uk c) = (w_uk^T q_nope) . c``, and the weighted sum
of latents goes through ``w_uv`` once, after attention. To the kernel this is attention with one KV head.
"""

from __future__ import annotations

import numpy as np
import torch

from kvist.kernels.attention.base import layer_view
from kvist.kernels.attention.tiles import write_keys
from kvist.kernels.matrix import Matrix
from kvist.model.batch import Batch, GroupRows
from kvist.model.rope import rotate
from kvist.model.tools import Tools
from kvist.model.weights import LayerWeights
from kvist.spec.layer import Latent, LayerSpec


class LatentAttention:
    """One MLA layer. A cached row is the normed latent followed by the rotated, shared part of the key."""

    def __init__(self, layer: LayerSpec, weights: LayerWeights, tools: Tools) -> None:
        assert isinstance(layer.mixer, Latent)
        assert weights.kv_a is not None and weights.kv_a_norm is not None
        assert weights.w_uk and weights.w_uv
        self._layer, self._w, self._t = layer, weights, tools
        self._rank, self._rope_dim = layer.mixer.rank, layer.mixer.rope_dim
        self._kv_a, self._kv_a_norm = weights.kv_a, weights.kv_a_norm
        self._w_uk, self._w_uv = weights.w_uk, weights.w_uv
        self._view = layer_view(tools.layout, layer.index, value_dim=self._rank)
        self._group = tools.layout.place_of(layer.index)[0].id
        self._kernel = tools.kernel_for(self._view)
        self._rope = tools.ropes.table(layer.attention.rope)

    def __call__(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        """``x [rows, hidden]`` -> scratch ``delta [rows, hidden]``."""
        t, layer, rows, heads = self._t, self._layer, len(x), self._layer.q_heads
        group = batch.groups[self._group]
        positions = torch.from_numpy(batch.positions).long()
        self._write(self._latent_rows(x, positions), group)
        q = self._absorbed_queries(self._queries(x), positions)
        out = t.workspace.take("attended", rows, heads, self._rank)
        scale, softcap = layer.attention.scale, layer.attention.softcap
        self._kernel(q, t.pool, self._view, group.work, scale=scale, softcap=softcap, out=out)
        values = self._per_head(out, self._w_uv, "values").transpose(0, 1).reshape(rows, heads * layer.value_dim)
        return t.linear(values, self._w.o, None, out=t.workspace.take("delta", rows, self._w.o.outputs))

    def _queries(self, x: torch.Tensor) -> torch.Tensor:
        """Query heads [rows, q_heads, nope + rope], straight or through the narrow ``q_a``."""
        t, w = self._t, self._w
        if w.q is not None:
            q = t.linear(x, w.q)
        else:
            assert w.q_a is not None and w.q_a_norm is not None and w.q_b is not None
            q = t.linear(t.ops.rms_norm(t.linear(x, w.q_a), w.q_a_norm, t.norm_eps), w.q_b)
        return q.view(len(x), self._layer.q_heads, -1)

    def _latent_rows(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """What the cache keeps of each row: float32 [rows, rank + rope_dim]."""
        kv = self._t.linear(x, self._kv_a)
        latent = self._t.ops.rms_norm(kv[:, : self._rank].contiguous(), self._kv_a_norm, self._t.norm_eps)
        key = kv[:, None, self._rank :]
        key = key if self._rope is None else rotate(key, self._rope, positions)
        return torch.cat([latent, key[:, 0]], dim=1)

    def _write(self, latent: torch.Tensor, group: GroupRows) -> None:
        keep = np.flatnonzero(group.block >= 0)
        block = torch.from_numpy(group.block[keep]).long()
        slot = torch.from_numpy(group.slot[keep]).long()
        write_keys(self._t.pool, self._view, block, slot, latent[keep, None])

    def _absorbed_queries(self, q: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """``[w_uk^T q_nope, rotated q_rope]``: scratch [rows, q_heads, rank + rope_dim]."""
        rows, heads, nope = len(q), self._layer.q_heads, self._layer.attention.nope_dim
        out = self._t.workspace.take("q", rows, heads, self._rank + self._rope_dim)
        out[..., : self._rank] = self._per_head(q[..., :nope], self._w_uk, "absorbed").transpose(0, 1)
        turning = q[..., nope:]
        out[..., self._rank :] = turning if self._rope is None else rotate(turning, self._rope, positions)
        return out

    def _per_head(self, x: torch.Tensor, weights: tuple[Matrix, ...], name: str) -> torch.Tensor:
        """``x [rows, heads, in]`` by each head's [out, in]: scratch [heads, rows, out]."""
        by_head = x.transpose(0, 1).contiguous()
        out = self._t.workspace.take(name, len(weights), len(x), weights[0].outputs)
        for head, weight in enumerate(weights):
            self._t.linear(by_head[head], weight, out=out[head])
        return out
