"""Kimi Linear and K3: delta attention with a gate per channel, and MLA without positions every fourth layer."""

from __future__ import annotations

from dataclasses import replace

from kvist.spec import hf_moe
from kvist.spec.ffn import Ffn
from kvist.spec.hf_fields import Fields
from kvist.spec.hf_heads import query_heads
from kvist.spec.hf_hybrid import other_layer
from kvist.spec.hf_mla import latent_layer, mla_attention
from kvist.spec.hf_model import assemble, hidden_size, require_decoder
from kvist.spec.layer import LayerSpec, Recurrent
from kvist.spec.model import ModelSpec


def _pattern(f: Fields, linear: Fields) -> list[bool]:
    """True for MLA. The config counts layers from 1."""
    n = f.layers()
    kinds = f.texts("layer_types", n)
    if kinds is not None:
        return [kind == "full_attention" for kind in kinds]
    linear.require("full_attn_layers", "kda_layers")
    full = set(_numbers(linear, "full_attn_layers"))
    delta = set(_numbers(linear, "kda_layers"))
    if full & delta or full | delta != set(range(1, n + 1)):
        raise f.bad("linear_attn_config", len(full) + len(delta), f"lists that name each of {n} layers once")
    return [i + 1 in full for i in range(n)]


def _numbers(f: Fields, name: str) -> list[int]:
    value = f.get(name)
    if not isinstance(value, list) or not all(isinstance(v, int) for v in value):
        raise f.bad(name, value, "a list of layer numbers")
    return [int(v) for v in value]


def delta_attention(heads: int, dim: int, kernel: int) -> Recurrent:
    """State of a Kimi delta attention layer: key times value for every head, and short filters on q, k and v."""
    filters = 3 * heads * dim * (kernel - 1)
    return Recurrent("kimi_delta", heads * dim * dim, conv_elements=filters, conv_steps=max(1, kernel - 1))


def _delta_elements(hidden: int, heads: int, dim: int, kernel: int, *, full_gate: bool) -> int:
    wide = heads * dim
    gate = hidden * wide if full_gate else hidden * dim + dim * wide
    decay = hidden * dim + dim * wide + wide + heads
    return 4 * hidden * wide + 3 * wide * kernel + decay + hidden * heads + gate + dim


def _ffn(f: Fields, i: int) -> Ffn:
    ffn = hf_moe.deepseek(f, i)
    latent = f.integer_or("routed_expert_hidden_size", 0)
    if not ffn.experts or not latent:
        return ffn
    return replace(ffn, expert_dim=latent)


def read_kimi_linear(f: Fields) -> ModelSpec:
    """Kimi Linear; K3 adds experts in a narrower space, an output gate and residual attention."""
    wanted = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "intermediate_size")
    require_decoder(f, "num_attention_heads", "linear_attn_config|linear_num_heads", *wanted, heads=False)
    linear = f.sub("linear_attn_config") if f.has("linear_attn_config") else f
    linear.require("num_heads|linear_num_heads", "head_dim|linear_head_dim")
    linear.require("short_conv_kernel_size|linear_conv_kernel_dim")
    heads, dim = linear.integer("num_heads|linear_num_heads"), linear.integer("head_dim|linear_head_dim")
    kernel = linear.integer("short_conv_kernel_size|linear_conv_kernel_dim")
    state = delta_attention(heads, dim, kernel)
    full_gate = linear.flag("use_full_rank_gate", False)
    hidden, attention = hidden_size(f), mla_attention(f, rope=False)
    gate = hidden * query_heads(f) * f.integer("v_head_dim") if f.flag("mla_use_output_gate", False) else 0
    weights = _delta_elements(hidden, heads, dim, kernel, full_gate=full_gate)
    layers: list[LayerSpec] = []
    for i, full in enumerate(_pattern(f, linear)):
        if full:
            layer = replace(latent_layer(f, i, attention, indexed=False), ffn=_ffn(f, i), extra_elements=gate)
        else:
            layer = other_layer(i, state, _ffn(f, i), extra=weights)
        layers.append(layer)
    missing = ["Kimi delta attention"]
    missing += ["gate on attention output"] if gate else []
    missing += ["attention over earlier residuals"] if f.has("attn_res_block_size") else []
    return assemble(f, "kimi_linear", layers, eps=1e-5, unsupported=missing)
