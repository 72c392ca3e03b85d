"""Mixtures of experts in Hugging Face configs: which layers have them, how wide, and how tokens are routed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kvist.spec.ffn import Activation, Ffn, Router, Scoring
from kvist.spec.hf_fields import Fields
from kvist.spec.hf_model import activation

FfnOf = Callable[[Fields, int], Ffn]
"""The feed-forward part of layer ``i``."""

EXPERTS: Final = "num_local_experts|num_experts|n_routed_experts|moe_num_experts"
ACTIVE: Final = "num_experts_per_tok|num_experts_per_token|moe_top_k|experts_per_token|top_k_experts"
EXPERT_WIDTH: Final = "moe_intermediate_size|expert_ffn_hidden_size"

_SCORING: Final[dict[str, Scoring]] = {"softmax": "softmax", "sigmoid": "sigmoid", "sqrtsoftplus": "sqrtsoftplus"}


def dense(f: Fields, i: int = 0, *, default: Activation = "silu", bias: bool | None = None) -> Ffn:
    """A gated MLP of ``intermediate_size`` (which may be a list with one entry per layer)."""
    widths = f.get("intermediate_size")
    if isinstance(widths, list):
        width = (f.integers("intermediate_size", f.layers(), low=1) or [0])[i]
    else:
        width = f.integer("intermediate_size")
    with_bias = f.flag("mlp_bias", False) if bias is None else bias
    return Ffn(width, activation=activation(f, default), bias=with_bias)


def _experts(f: Fields, width: int, router: Router, *, shared: int = 0, shared_gate: bool = False) -> Ffn:
    experts, active = f.integer(EXPERTS), f.integer(ACTIVE)
    if active > experts:
        raise f.bad("num_experts_per_tok", active, f"at most the {experts} experts")
    return Ffn(
        width=0,
        activation=activation(f),
        experts=experts,
        active=active,
        expert_width=width,
        shared_width=shared,
        router=router,
        shared_gate=shared_gate,
    )


def mixtral(f: Fields, i: int) -> Ffn:
    """Every layer sparse; scores are a softmax over the chosen experts."""
    return _experts(f, f.integer("intermediate_size"), Router())


def olmoe(f: Fields, i: int) -> Ffn:
    """As Mixtral, but chosen scores are left as they are unless the config says otherwise."""
    return _experts(f, f.integer("intermediate_size"), Router(normalize=f.flag("norm_topk_prob", False)))


def qwen_next_moe(f: Fields, i: int) -> Ffn:
    """Qwen3-Next and Qwen3.5: as ``qwen_moe``, and chosen scores are divided by their sum unless the config objects."""
    return qwen_moe(f, i, normalize=True)


def qwen_moe(f: Fields, i: int, *, normalize: bool = False) -> Ffn:
    """Qwen2-MoE on: dense where ``mlp_only_layers`` or the step says so; sometimes a gated shared expert."""
    only_dense = f.get("mlp_only_layers") or []
    if not isinstance(only_dense, list):
        raise f.bad("mlp_only_layers", only_dense, "a list")
    step = f.integer_or("decoder_sparse_step", 1, low=1)
    if i in only_dense or not f.has(EXPERTS) or (i + 1) % step:
        return dense(f, i)
    f.require(EXPERT_WIDTH, ACTIVE)
    shared = f.integer_or("shared_expert_intermediate_size", 0)
    router = Router(normalize=f.flag("norm_topk_prob", normalize))
    return _experts(f, f.integer(EXPERT_WIDTH), router, shared=shared, shared_gate=shared > 0)


def gpt_oss(f: Fields, i: int) -> Ffn:
    """Biased experts with a clamped activation; the softmax comes after the choice."""
    ffn = _experts(f, f.integer("intermediate_size"), Router(scoring="softmax_of_top", linear_bias=True))
    return replace(ffn, activation="swiglu_oai", bias=True, clamp=f.number_or("swiglu_limit", 7.0))


def is_sparse(f: Fields, i: int) -> bool:
    """DeepSeek's rule: the first layers are dense, then every ``moe_layer_freq``-th has experts; or a list says it."""
    n = f.layers()
    kinds = f.texts("mlp_layer_types", n)
    if kinds is not None:
        return kinds[i] != "dense"
    frequency = f.get("moe_layer_freq")
    if isinstance(frequency, list):
        return (f.integers("moe_layer_freq", n) or [])[i] > 0
    if not f.has(EXPERTS):
        return False
    every = f.integer_or("moe_layer_freq", 1)
    return every > 0 and i >= f.integer_or("first_k_dense_replace", 0) and i % every == 0


SOFTMAX: Final = Router(normalize=False)
"""DeepSeek-V2's router, as far as its config is silent; a group's score is its best expert's."""

SIGMOID: Final = Router("sigmoid", choice_bias=True, group_score="top2")
"""DeepSeek-V3's router and its many relatives'."""


def _deepseek_router(f: Fields, implied: Router) -> Router:
    scoring = f.text_or("scoring_func|moe_router_activation_func", implied.scoring)
    if scoring not in _SCORING:
        raise f.bad("scoring_func", scoring, f"one of {', '.join(_SCORING)}")
    greedy = f.text_or("topk_method", "" if implied.choice_bias or implied.normalize else "greedy") == "greedy"
    return replace(
        implied,
        scoring=_SCORING[scoring],
        normalize=f.flag("norm_topk_prob|moe_renormalize", implied.normalize),
        scale=f.number_or("routed_scaling_factor|moe_router_scaling_factor", implied.scale),
        groups=1 if greedy else f.integer_or("n_group|num_expert_group", 1, low=1),
        top_groups=1 if greedy else f.integer_or("topk_group", 1, low=1),
    )


def deepseek(f: Fields, i: int, implied: Router = SIGMOID) -> Ffn:
    """DeepSeek-V2 to V4, Kimi, GLM, MiMo: shared experts beside routed ones, the first layers dense."""
    if not is_sparse(f, i):
        return dense(f, i, bias=False)
    width = f.integer(EXPERT_WIDTH)
    shared = f.integer_or("n_shared_experts|num_shared_experts", 0) * width
    return _experts(f, width, _deepseek_router(f, implied), shared=shared)


def minimax(f: Fields, i: int) -> Ffn:
    """MiniMax-M2 and M3: sigmoid scores with a bias for the choice; M3 adds dense layers, a shared MLP, a clamp."""
    router = Router(scoring="sigmoid", scale=f.number_or("routed_scaling_factor", 1.0), choice_bias=True)
    if f.get("moe_layer_freq") is not None and not is_sparse(f, i):
        return replace(dense(f, i), width=f.integer("dense_intermediate_size"), clamp=f.number_or("swiglu_limit", 0.0))
    shared = f.integer_or("shared_intermediate_size", 0)
    ffn = _experts(f, f.integer("intermediate_size"), router, shared=shared)
    return replace(ffn, clamp=f.number_or("swiglu_limit", 0.0))


def llama4(f: Fields, i: int) -> Ffn:
    """Experts every ``interleave_moe_layer_step`` layers, a shared MLP of one expert's width beside them."""
    step = f.integer_or("interleave_moe_layer_step", 1, low=1)
    listed = f.get("moe_layers")
    sparse = i in listed if isinstance(listed, list) else (i + 1) % step == 0
    if not sparse:
        return Ffn(f.integer("intermediate_size_mlp"), activation=activation(f))
    width = f.integer("intermediate_size")
    return _experts(f, width, Router(scoring="sigmoid", normalize=False), shared=width)


def step3(f: Fields, i: int) -> Ffn:
    """Step-3.7: sigmoid routing with a bias, one shared MLP."""
    enum = f.get("moe_layers_enum")
    if isinstance(enum, str):
        sparse = str(i) in [part.strip() for part in enum.split(",")]
    else:
        sparse = is_sparse(f, i)
    if not sparse:
        return dense(f, i)
    router = Router(scoring="sigmoid", scale=f.number_or("moe_router_scaling_factor", 1.0), choice_bias=True)
    return _experts(f, f.integer(EXPERT_WIDTH), router, shared=f.integer_or("share_expert_dim|share_expert_dims", 0))
