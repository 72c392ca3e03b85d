"""The feed-forward part in GGUF headers: dense widths per layer, experts, and the router's rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvist.spec.ffn import Activation, Ffn, Router, Scoring
from kvist.spec.gguf_fields import Keys

_GATING: Final[dict[int, Scoring]] = {1: "softmax", 2: "sigmoid", 3: "softmax_of_top"}
_DEFAULT_GATING: Final = {"gpt-oss": 3}
_NORMALIZED: Final = ("llama", "qwen3moe")
_OAI_CLAMP: Final = 7.0


def _router(keys: Keys) -> Router:
    gating = keys.integer_or("expert_gating_func", 0) or _DEFAULT_GATING.get(keys.name, 1)
    if gating not in _GATING:
        raise keys.bad("expert_gating_func", gating, f"one of {', '.join(map(str, _GATING))}")
    first = next((t for t in keys.header.tensors if t.endswith("exp_probs_b.bias")), None)
    groups = keys.integer_or("expert_group_count", 1, low=1)
    return Router(
        scoring=_GATING[gating],
        normalize=keys.flag("expert_weights_norm", keys.name in _NORMALIZED or gating == 3),
        scale=keys.number_or("expert_weights_scale", 1.0) or 1.0,
        choice_bias=first is not None,
        linear_bias=any(t.endswith("ffn_gate_inp.bias") for t in keys.header.tensors),
        groups=groups,
        top_groups=keys.integer_or("expert_group_used_count", groups, low=1),
        group_score="top2" if first is not None else "max",
    )


def ffns_of(keys: Keys, activation: Activation) -> list[Ffn | None]:
    """The feed-forward part of every layer; None where its width is 0."""
    n = keys.layers()
    dense_first = keys.integer_or("leading_dense_block_count", 0) if keys.integer_or("expert_count", 0) else n
    widths = keys.per_layer("feed_forward_length", None if dense_first else 0)
    dense = [Ffn(width, activation=activation) if width else None for width in widths[:dense_first]]
    if dense_first >= n:
        return dense
    experts = _experts(keys, activation)
    gated = [keys.tensor(f"blk.{i}.ffn_gate_inp_shexp.weight") for i in range(dense_first, n)]
    return [*dense, *(replace(experts, shared_gate=gate) for gate in gated)]


def _experts(keys: Keys, activation: Activation) -> Ffn:
    experts, active = keys.integer("expert_count"), keys.integer("expert_used_count")
    if active > experts:
        raise keys.bad("expert_used_count", active, f"at most the {experts} experts")
    wide = keys.integer_or("feed_forward_length", 0) if not isinstance(keys.get("feed_forward_length"), tuple) else 0
    width = keys.integer_or("expert_feed_forward_length", wide)
    if not width:
        keys.require("expert_feed_forward_length")
    shared = keys.integer_or("expert_shared_feed_forward_length", keys.integer_or("expert_shared_count", 0) * width)
    oai = activation == "swiglu_oai"
    return Ffn(
        width=0,
        activation=activation,
        bias=oai,
        experts=experts,
        active=active,
        expert_width=width,
        shared_width=shared,
        router=_router(keys),
        clamp=_OAI_CLAMP if oai else 0.0,
    )
