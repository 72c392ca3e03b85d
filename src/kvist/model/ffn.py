"""The dense feed-forward part: one merged product, the gate, one product back."""

from __future__ import annotations

import torch

from kvist.model.tools import Tools
from kvist.model.weights import LayerWeights
from kvist.spec.layer import LayerSpec


class FeedForward:
    """``down(act(gate x) * up x)``."""

    def __init__(self, layer: LayerSpec, weights: LayerWeights, tools: Tools) -> None:
        assert layer.ffn is not None
        self._ffn, self._w, self._t = layer.ffn, weights, tools

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """``x [rows, hidden]`` -> scratch ``delta [rows, hidden]``."""
        t, w, rows, width = self._t, self._w, len(x), self._ffn.width
        gate_up = t.linear(x, w.gate_up, w.gate_up_bias, out=t.workspace.take("gate_up", rows, 2 * width))
        inner = t.ops.gated(gate_up, self._ffn.activation, out=t.workspace.take("inner", rows, width))
        return t.linear(inner, w.down, w.down_bias, out=t.workspace.take("delta", rows, w.down.outputs))
