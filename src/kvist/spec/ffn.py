"""The feed-forward part of a layer: a gated or plain MLP, or a mixture of experts with its router."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Activation = Literal["silu", "gelu_tanh", "gelu", "relu", "relu2", "swiglu_oai", "other"]
"""``swiglu_oai``: ``(up + 1) * gate * sigmoid(1.702 * gate)`` on clamped inputs. ``other``: the decoder refuses."""

Scoring = Literal["softmax", "sigmoid", "softmax_of_top", "sqrtsoftplus"]


@dataclass(frozen=True, slots=True)
class Router:
    """How experts are chosen and weighed.

    ``scoring``: ``softmax`` or ``sigmoid`` over all experts, then the best are taken; ``softmax_of_top``: the best
    logits are taken first, then a softmax over them. ``normalize`` divides the chosen scores by their sum, ``scale``
    multiplies them. ``choice_bias``: a per-expert bias is added for the choice only (DeepSeek-V3). ``linear_bias``:
    the router's linear layer has a bias (gpt-oss). With ``groups`` > 1 only experts of the ``top_groups`` best groups
    compete; a group's score is the ``max`` of its experts (DeepSeek-V2) or the sum of its best two (``top2``).
    """

    scoring: Scoring = "softmax"
    normalize: bool = True
    scale: float = 1.0
    choice_bias: bool = False
    linear_bias: bool = False
    groups: int = 1
    top_groups: int = 1
    group_score: Literal["max", "top2"] = "max"


@dataclass(frozen=True, slots=True)
class Ffn:
    """Feed-forward part. ``experts == 0`` means dense with ``width``; ``gated`` has gate and up projections.

    With experts, ``expert_width`` is one expert's inner width, ``shared_width`` that of what always runs beside them
    (``shared_gate``: weighed by a learned sigmoid), ``expert_dim`` the width experts read and write (0: the hidden
    width). ``clamp`` bounds the inputs of the activation (0: not at all).
    """

    width: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    experts: int = 0
    active: int = 0
    expert_width: int = 0
    shared_width: int = 0
    router: Router | None = None
    shared_gate: bool = False
    expert_dim: int = 0
    clamp: float = 0.0

    def _mlp(self, hidden: int, width: int) -> int:
        matrices = 3 if self.gated else 2
        return matrices * hidden * width + (((matrices - 1) * width + hidden) if self.bias else 0)

    def dense_elements(self, hidden: int) -> int:
        """Weights that every token passes: the dense MLP, shared experts, the router."""
        if not self.experts:
            return self._mlp(hidden, self.width)
        shared = self._mlp(hidden, self.shared_width) if self.shared_width else 0
        linear_bias = self.experts if self.router is not None and self.router.linear_bias else 0
        choice_bias = self.experts if self.router is not None and self.router.choice_bias else 0
        latent = 2 * hidden * self.expert_dim if self.expert_dim else 0
        gate = hidden if self.shared_gate else 0
        return shared + hidden * self.experts + linear_bias + choice_bias + latent + gate

    def expert_elements(self, hidden: int) -> int:
        """Weights of one routed expert."""
        return self._mlp(self.expert_dim or hidden, self.expert_width) if self.experts else 0
