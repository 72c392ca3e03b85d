"""Whether a decoder's steps can run as one native call, and the program that does it."""

from __future__ import annotations

import torch

from kvist.kernels.program import Product, Program, ProgramLayer, ProgramModel
from kvist.model.batch import Batch
from kvist.model.kept import kept_of
from kvist.model.rope import RopeTable
from kvist.model.tools import Tools
from kvist.model.weights import LayerWeights, Weights
from kvist.spec.layer import Latent, LayerSpec
from kvist.spec.model import ModelSpec


def why_not(spec: ModelSpec, tools: Tools) -> str:
    """Why the layers are called one by one from Python; empty when a step can be one native call."""
    if tools.ops.name != "native":
        return f"the dense operations are the {tools.ops.name} ones"
    for layer in spec.layers:
        if isinstance(layer.mixer, Latent):
            return f"layer {layer.index} has latent attention (MLA)"
        kernel = tools.kernel_for(*kept_of(tools.layout, layer).views)
        if kernel.name != "native":
            return f"layer {layer.index} has the {kernel.name} attention"
    return ""


class StepProgram:
    """One decoder's steps. Reads the decoder's tables of cosines as they grow."""

    def __init__(self, spec: ModelSpec, weights: Weights, tools: Tools, *, invariant: bool) -> None:
        model = ProgramModel(
            hidden=spec.hidden,
            norm_eps=spec.norm_eps,
            embedding_scale=spec.embedding_scale,
            embed=weights.embed,
            head=weights.head,
            final_norm=weights.final_norm,
        )
        self._ropes: list[RopeTable] = []
        layers = [self._layer(layer, w, tools) for layer, w in zip(spec.layers, weights.layers, strict=True)]
        self._program = Program(model, layers, tools.pool)
        self._known = torch.empty(0, dtype=torch.float32)
        self._invariant = invariant

    def takes(self, rows: int) -> bool:
        """Whether a step of ``rows`` rows is the program's: in the fast class some products may be the library's."""
        return self._invariant or self._program.is_fast(rows)

    def run(self, batch: Batch) -> torch.Tensor:
        """The head's output float32 [logit rows, vocab]: no scale and no cap yet."""
        if self._ropes and self._ropes[0].cos is not self._known:
            self._program.set_ropes([(table.cos, table.sin) for table in self._ropes])
            self._known = self._ropes[0].cos
        groups = [(group.work, group.block, group.slot) for group in batch.groups]
        return self._program.run(batch.tokens, batch.positions, groups, batch.logit_rows)

    def _layer(self, layer: LayerSpec, w: LayerWeights, tools: Tools) -> ProgramLayer:
        kept = kept_of(tools.layout, layer)
        assert w.qkv is not None and layer.ffn is not None
        return ProgramLayer(
            view=kept.view,
            writes=kept.writes,
            group=kept.group,
            near_view=kept.near_view,
            near_group=kept.near_group,
            basis=kept.basis,
            rope=self._rope(tools.ropes.table(layer.attention.rope)),
            q_heads=layer.q_heads,
            scale=layer.attention.scale,
            softcap=layer.attention.softcap,
            activation=layer.ffn.activation,
            norms_whole=layer.attention.qk_norm == "full",
            qkv=Product(w.qkv, w.qkv_bias),
            o=Product(w.o, w.o_bias),
            gate_up=Product(w.gate_up, w.gate_up_bias),
            down=Product(w.down, w.down_bias),
            attn_norm=w.attn_norm,
            attn_post_norm=w.attn_post_norm,
            ffn_norm=w.ffn_norm,
            ffn_post_norm=w.ffn_post_norm,
            q_norm=w.q_norm,
            k_norm=w.k_norm,
        )

    def _rope(self, table: RopeTable | None) -> int:
        """Number of a rotation, given when it is first met; -1 for none."""
        if table is None:
            return -1
        if table not in self._ropes:
            self._ropes.append(table)
        return self._ropes.index(table)
