"""One decoder for every model kvist runs: what differs between families is in the ``ModelSpec``.

All rows of all sequences of a step go through the layers as one [rows, hidden] batch. Rows meet only inside
attention, and there only through the cache, by the work list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from kvist.errors import BadValue, StateError
from kvist.kernels.attention.base import AttentionKernel
from kvist.kernels.ops.base import Ops
from kvist.model.attention import SelfAttention
from kvist.model.batch import Batch, check_batch
from kvist.model.ffn import FeedForward
from kvist.model.latent import LatentAttention
from kvist.model.program import StepProgram, why_not
from kvist.model.rope import RopeTables
from kvist.model.support import refuse_unsupported
from kvist.model.tools import Tools, Workspace
from kvist.model.weights import LayerWeights, Weights
from kvist.spec.layer import Latent, LayerSpec
from kvist.spec.layout import CacheLayout
from kvist.spec.model import ModelSpec

Numerics = Literal["fast", "invariant"]


@dataclass(slots=True)
class Steps:
    """Steps by how they ran: in one native call, or layer by layer."""

    native: int = 0
    by_layer: int = 0


class Decoder:
    """Owns scratch memory and rope tables; reads weights; reads and writes ``pool`` uint8 [blocks, block_bytes].

    ``kernels`` in order of preference: each layer takes the first that supports it. ``numerics``: ``invariant``
    answers do not depend on which other rows are computed; ``fast`` may use library products. ``native_steps``: a step
    is one native call wherever that gives the same bits; otherwise, and where it cannot be, layers are called one by
    one. Raises ``ModelError`` for a model that cannot be run.

    ``layers_reason`` is why no step is native (empty: they are); ``steps`` counts steps by how they ran.
    """

    def __init__(
        self,
        spec: ModelSpec,
        weights: Weights,
        *,
        ops: Ops,
        kernels: Sequence[AttentionKernel],
        layout: CacheLayout,
        pool: torch.Tensor,
        numerics: Numerics = "fast",
        native_steps: bool = True,
    ) -> None:
        refuse_unsupported(spec)
        if numerics not in ("fast", "invariant"):
            raise BadValue("numerics", numerics, "fast or invariant")
        if pool.dtype != torch.uint8 or pool.ndim != 2 or pool.shape[1] != layout.block_bytes:
            raise StateError(f"a pool of {list(pool.shape)} {pool.dtype} for blocks of {layout.block_bytes} bytes")
        self.spec, self.layout = spec, layout
        self._weights = weights
        self._ropes = RopeTables()
        self._workspace = Workspace()
        self._tools = Tools(
            ops=ops,
            linear=ops.linear if numerics == "invariant" else ops.linear_fast,
            kernels=kernels,
            workspace=self._workspace,
            layout=layout,
            pool=pool,
            ropes=self._ropes,
            norm_eps=spec.norm_eps,
        )
        pairs = zip(spec.layers, weights.layers, strict=True)
        self._layers = tuple(_Layer.build(layer, w, self._tools) for layer, w in pairs)
        self.layers_reason = why_not(spec, self._tools) if native_steps else "switched off"
        self._program = (
            None if self.layers_reason else StepProgram(spec, weights, self._tools, invariant=numerics == "invariant")
        )
        self.steps = Steps()

    def forward(self, batch: Batch) -> torch.Tensor:
        """Compute every row, write its K and V; float32 logits [len(logit_rows), vocab] of the rows asked for."""
        check_batch(batch, self.layout.groups, self.spec.vocab)
        self._ropes.cover(int(batch.positions.max()) + 1)
        if self._program is not None and self._program.takes(batch.rows):
            self.steps.native += 1
            return self._shaped(self._program.run(batch))
        self.steps.by_layer += 1
        return self._shaped(self._through_layers(batch))

    def _through_layers(self, batch: Batch) -> torch.Tensor:
        x = self._embed(batch)
        delta = None
        for layer in self._layers:
            delta = layer.attention(self._enter(x, delta, layer.weights.attn_norm), batch)
            delta = self._leave(delta, layer.weights.attn_post_norm)
            delta = layer.feed_forward(self._enter(x, delta, layer.weights.ffn_norm))
            delta = self._leave(delta, layer.weights.ffn_post_norm)
        assert delta is not None
        return self._logits(x, delta, torch.from_numpy(batch.logit_rows))

    def _embed(self, batch: Batch) -> torch.Tensor:
        x = self._workspace.take("x", batch.rows, self.spec.hidden)
        x.copy_(self._weights.embed.rows(batch.tokens))
        return x if self.spec.embedding_scale == 1.0 else x.mul_(self.spec.embedding_scale)

    def _enter(self, x: torch.Tensor, delta: torch.Tensor | None, norm: torch.Tensor | None) -> torch.Tensor:
        """Add what the part before left to ``x``, in place, and norm the sum for the next part."""
        if norm is None:
            return x if delta is None else x.add_(delta)
        out = self._workspace.take("normed", *x.shape)
        if delta is None:
            return self._tools.ops.rms_norm(x, norm, self.spec.norm_eps, out=out)
        return self._tools.ops.add_rms_norm(x, delta, norm, self.spec.norm_eps, out=out)

    def _leave(self, delta: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        """The norm between a part and the residual stream, for models that have one."""
        if norm is None:
            return delta
        return self._tools.ops.rms_norm(delta, norm, self.spec.norm_eps, out=self._workspace.take("left", *delta.shape))

    def _logits(self, x: torch.Tensor, delta: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """Final norm and head for the rows asked for. The tensor is the caller's."""
        last, added = x.index_select(0, rows), delta.index_select(0, rows)
        normed = self._tools.ops.add_rms_norm(last, added, self._weights.final_norm, self.spec.norm_eps)
        return self._tools.linear(normed, self._weights.head)

    def _shaped(self, logits: torch.Tensor) -> torch.Tensor:
        """The model's scale and cap of its logits, in place."""
        if self.spec.logit_scale != 1.0:
            logits.mul_(self.spec.logit_scale)
        if self.spec.logit_softcap:
            logits.div_(self.spec.logit_softcap).tanh_().mul_(self.spec.logit_softcap)
        return logits


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's two parts and its weights (the norms around them)."""

    attention: SelfAttention | LatentAttention
    feed_forward: FeedForward
    weights: LayerWeights

    @staticmethod
    def build(layer: LayerSpec, weights: LayerWeights, tools: Tools) -> _Layer:
        attention = LatentAttention if isinstance(layer.mixer, Latent) else SelfAttention
        return _Layer(attention(layer, weights, tools), FeedForward(layer, weights, tools), weights)
