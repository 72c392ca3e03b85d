"""Hybrids: most layers keep a state of fixed size, a few keep K and V. Qwen3-Next and 3.5, Nemotron-H, Granite, Kimi.

A state's size is exact; so are the weights of the recurrent mixers (``extra_elements``). A decoder that knows no
recurrent mixer refuses these models by their layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kvist.spec import hf_moe
from kvist.spec.ffn import Ffn, Router
from kvist.spec.hf_dense import attention_of
from kvist.spec.hf_families import Family
from kvist.spec.hf_fields import Fields
from kvist.spec.hf_heads import Heads, read_heads
from kvist.spec.hf_model import activation, assemble, every_nth_full, hidden_size, layer_kinds, require_decoder
from kvist.spec.hf_rope import RopeFamily, read_rope
from kvist.spec.layer import Attention, Full, LayerSpec, Mixer, NoMixer, Recurrent
from kvist.spec.model import ModelSpec

_LINEAR: Final = (
    "linear_num_value_heads",
    "linear_num_key_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
)


def full_layer(i: int, heads: Heads, attention: Attention, ffn: Ffn | None, *, extra: int = 0) -> LayerSpec:
    """An ordinary attention layer of a hybrid."""
    return LayerSpec(
        index=i,
        mixer=Full(),
        q_heads=heads.q,
        kv_heads=heads.kv,
        key_dim=heads.dim,
        value_dim=heads.dim,
        attention=attention,
        ffn=ffn,
        extra_elements=extra,
    )


def other_layer(i: int, mixer: Mixer, ffn: Ffn | None, *, extra: int = 0) -> LayerSpec:
    """A layer without attention: a recurrent mixer, or none at all."""
    return LayerSpec(i, mixer, q_heads=0, kv_heads=0, key_dim=0, value_dim=0, ffn=ffn, extra_elements=extra)


def gated_delta(f: Fields) -> Recurrent:
    """State of a gated delta rule layer: an outer product of key and value for every value head, and a short filter."""
    f.require(*_LINEAR)
    key = f.integer("linear_num_key_heads") * f.integer("linear_key_head_dim")
    value = f.integer("linear_num_value_heads") * f.integer("linear_value_head_dim")
    return Recurrent(
        kind="gated_delta",
        state_elements=value * f.integer("linear_key_head_dim"),
        conv_elements=(2 * key + value) * (f.integer("linear_conv_kernel_dim") - 1),
        conv_steps=max(1, f.integer("linear_conv_kernel_dim") - 1),
    )


def _gated_delta_elements(f: Fields) -> int:
    key = f.integer("linear_num_key_heads") * f.integer("linear_key_head_dim")
    heads, dim = f.integer("linear_num_value_heads"), f.integer("linear_value_head_dim")
    value, hidden = heads * dim, hidden_size(f)
    projections = hidden * (2 * key + value) + hidden * value + 2 * hidden * heads + value * hidden
    return projections + (2 * key + value) * f.integer("linear_conv_kernel_dim") + 2 * heads + dim


def delta_pattern(f: Fields) -> list[bool]:
    """True for full attention; from ``layer_types`` or ``full_attention_interval``."""
    kinds = layer_kinds(f, ("linear_attention", "full_attention"))
    if kinds is not None:
        return [kind == "full_attention" for kind in kinds]
    f.require("layer_types|full_attention_interval")
    return every_nth_full(f.layers(), f.integer("full_attention_interval"))


def read_qwen_next(f: Fields, architecture: str) -> ModelSpec:
    """Qwen3-Next and Qwen3.5 (dense or with experts): gated delta rule, every fourth layer full with a gated output."""
    moe = f.has(hf_moe.EXPERTS)
    widths = (hf_moe.EXPERT_WIDTH, hf_moe.ACTIVE) if moe else ("intermediate_size",)
    require_decoder(f, "head_dim", *widths, *_LINEAR)
    heads = read_heads(f, derived=False)
    family = Family(architecture, qk_norm="head")
    rope = read_rope(f, heads.dim, RopeFamily(partial=0.25))
    attention = replace(attention_of(f, family, heads), rope=rope)
    gate = hidden_size(f) * heads.q * heads.dim
    layers = [
        full_layer(i, heads, attention, hf_moe.qwen_next_moe(f, i), extra=gate)
        if full
        else other_layer(i, gated_delta(f), hf_moe.qwen_next_moe(f, i), extra=_gated_delta_elements(f))
        for i, full in enumerate(delta_pattern(f))
    ]
    spec = assemble(f, architecture, layers, unsupported=["gate on attention output", "gated delta rule"])
    return replace(spec, norm_weight_offset=1.0)


def mamba2(heads: int, dim: int, state: int, groups: int, kernel: int) -> Recurrent:
    """State of a Mamba-2 layer (arXiv 2405.21060)."""
    channels = heads * dim + 2 * groups * state
    steps = max(kernel - 1, 0)
    return Recurrent("mamba2", heads * dim * state, conv_elements=channels * steps, conv_steps=max(1, steps))


def mamba2_elements(hidden: int, heads: int, dim: int, state: int, groups: int, kernel: int, *, bias: bool) -> int:
    """Weights of a Mamba-2 layer."""
    inner = heads * dim
    channels = inner + 2 * groups * state
    conv = channels * kernel + (channels if bias else 0)
    return hidden * (inner + channels + heads) + conv + 3 * heads + inner + inner * hidden


_BLOCKS: Final = {
    "M": "mamba",
    "*": "attention",
    "-": "mlp",
    "E": "moe",
    "linear_attention": "mamba",
    "full_attention": "attention",
}


def _blocks(f: Fields) -> list[str]:
    """What each layer of a Nemotron-H model is: one letter or one word per layer."""
    pattern = f.get("layers_block_type|layer_types|hybrid_override_pattern")
    if pattern is None:
        f.require("hybrid_override_pattern|layers_block_type")
    if not isinstance(pattern, str | list):
        raise f.bad("hybrid_override_pattern", pattern, "a string or a list")
    blocks = [_BLOCKS.get(str(block), str(block)) for block in pattern]
    unknown = [block for block in blocks if block not in ("mamba", "attention", "mlp", "moe")]
    if unknown or not blocks:
        raise f.bad("hybrid_override_pattern", unknown[:1] or pattern, "made of M (mamba), *, - (MLP) and E (experts)")
    if f.has("num_hidden_layers") and f.layers() != len(blocks):
        raise f.bad("num_hidden_layers", f.layers(), f"the length of the layer pattern ({len(blocks)})")
    return blocks


def _nemotron_ffn(f: Fields, kind: str) -> Ffn | None:
    if kind == "mlp":
        plain = Ffn(f.integer("intermediate_size"), gated=False, bias=f.flag("mlp_bias", False))
        return replace(plain, activation=activation(f, "relu2"))
    if kind != "moe":
        return None
    f.require(hf_moe.EXPERTS, hf_moe.ACTIVE, "moe_intermediate_size", "moe_shared_expert_intermediate_size")
    return Ffn(
        width=0,
        activation=activation(f, "relu2"),
        gated=False,
        experts=f.integer(hf_moe.EXPERTS),
        active=f.integer(hf_moe.ACTIVE),
        expert_width=f.integer("moe_intermediate_size"),
        shared_width=f.integer("moe_shared_expert_intermediate_size", low=0),
        expert_dim=f.integer_or("moe_latent_size", 0),
        router=Router(
            scoring="sigmoid",
            normalize=f.flag("norm_topk_prob", True),
            scale=f.number_or("routed_scaling_factor", 1.0),
            choice_bias=True,
            groups=f.integer_or("n_group", 1, low=1),
            top_groups=f.integer_or("topk_group", 1, low=1),
            group_score="top2",
        ),
    )


def read_nemotron_h(f: Fields) -> ModelSpec:
    """Nemotron-H and Nemotron 3: every layer is one block: Mamba-2, attention without positions, MLP or experts."""
    blocks = _blocks(f)
    f = Fields({**f.raw, "num_hidden_layers": len(blocks)}, f.source, f.outer)
    mamba = ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups|mamba_n_groups", "conv_kernel")
    require_decoder(f, "head_dim|attention_head_dim", *(mamba if "mamba" in blocks else ()))
    heads = read_heads(f, derived=False)
    attention = attention_of(f, Family("nemotron_h", qkv_bias=False, out_bias=False), heads)
    layers: list[LayerSpec] = []
    for i, kind in enumerate(blocks):
        if kind == "attention":
            layers.append(full_layer(i, heads, attention, None))
        elif kind == "mamba":
            shape = [f.integer(name) for name in mamba]
            extra = mamba2_elements(hidden_size(f), *shape, bias=f.flag("use_conv_bias", True))
            layers.append(other_layer(i, mamba2(*shape), None, extra=extra))
        else:
            layers.append(other_layer(i, NoMixer(), _nemotron_ffn(f, kind)))
    return assemble(f, "nemotron_h", layers, eps=1e-5, unsupported=["Mamba-2 layers"])


_GRANITE_ATTENTION: Final = ("attention", "full_attention")


def _granite_ffn(f: Fields) -> Ffn:
    shared = f.integer("shared_intermediate_size")
    if not f.integer_or("num_local_experts", 0):
        return Ffn(shared, activation=activation(f))
    return Ffn(
        width=0,
        activation=activation(f),
        experts=f.integer("num_local_experts"),
        active=f.integer("num_experts_per_tok"),
        expert_width=f.integer("intermediate_size"),
        shared_width=shared,
        router=Router(scoring="softmax_of_top"),
    )


def read_granite_hybrid(f: Fields) -> ModelSpec:
    """Granite 4: Mamba-2 and attention (usually without positions), experts beside a shared MLP, four multipliers."""
    mamba = ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv")
    require_decoder(f, "layer_types|layers_block_type", "shared_intermediate_size", *mamba)
    if f.get("mamba_d_head") == "auto":
        inner = f.integer("mamba_expand") * hidden_size(f)
        f = Fields({**f.raw, "mamba_d_head": inner // f.integer("mamba_n_heads")}, f.source, f.outer)
    heads = read_heads(f)
    kinds: Sequence[str] = f.texts("layer_types|layers_block_type", f.layers()) or ()
    unknown = [kind for kind in kinds if kind not in (*_GRANITE_ATTENTION, "mamba", "linear_attention")]
    if unknown:
        raise f.bad("layer_types", unknown[0], "attention or mamba")
    attention = attention_of(f, Family("granitemoehybrid"), heads)
    attention = replace(attention, scale=f.number_or("attention_multiplier", 1.0))
    if f.text_or("position_embedding_type", "") == "rope":
        attention = replace(attention, rope=read_rope(f, heads.dim, RopeFamily()))
    shape = [f.integer(name) for name in mamba]
    extra = mamba2_elements(hidden_size(f), *shape, bias=f.flag("mamba_conv_bias", True))
    layers = [
        full_layer(i, heads, attention, _granite_ffn(f))
        if kind in _GRANITE_ATTENTION
        else other_layer(i, mamba2(*shape), _granite_ffn(f), extra=extra)
        for i, kind in enumerate(kinds)
    ]
    spec = assemble(f, "granitemoehybrid", layers, unsupported=["Mamba-2 layers", "scaled residuals"])
    return replace(
        spec,
        embedding_scale=f.number_or("embedding_multiplier", 1.0),
        logit_scale=1.0 / (f.number_or("logits_scaling", 1.0) or 1.0),
    )
