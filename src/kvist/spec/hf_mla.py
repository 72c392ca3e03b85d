"""Latent attention: DeepSeek-V2, V3, V3.2 (sparse), Kimi-K2, GLM-DSA, Mistral 4. One narrow row per token and layer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from kvist.spec import hf_moe
from kvist.spec.hf_fields import Fields
from kvist.spec.hf_heads import MAX_DIM, query_heads
from kvist.spec.hf_model import assemble, hidden_size, require_decoder
from kvist.spec.hf_rope import RopeFamily, kind_of, read_rope, scaling
from kvist.spec.layer import Attention, Latent, LayerSpec, Router
from kvist.spec.model import ModelSpec
from kvist.spec.rope import yarn_mscale

_REQUIRED: Final = ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
_INDEX: Final = ("index_head_dim", "index_n_heads", "index_topk")
_V3: Final = replace(hf_moe.SIGMOID, scale=2.5)
_ROUTERS: Final = {
    "deepseek_v2": hf_moe.SOFTMAX,
    "deepseek_v3": _V3,
    "deepseek_v32": _V3,
    "glm_moe_dsa": _V3,
    "mistral4": replace(hf_moe.SOFTMAX, normalize=True, group_score="top2"),
}
_INDEXED: Final = ("deepseek_v32", "glm_moe_dsa")


def _q_rank(f: Fields) -> int:
    """Rank of the query projection; null means none, and absence means nothing."""
    if "q_lora_rank" not in f.raw:
        f.require("q_lora_rank", remedy='add it; "q_lora_rank": null means that q is projected directly')
    return f.integer_or("q_lora_rank", 0)


def mla_scale(f: Fields, key_dim: int) -> float:
    """``1 / sqrt(key_dim)``, and YaRN's correction squared where the config asks for it in all dims."""
    params = scaling(f)
    all_dim = params.number_or("mscale_all_dim", 0.0)
    scale = math.pow(key_dim, -0.5)
    if kind_of(params) == "default" or not all_dim:
        return scale
    return scale * math.pow(yarn_mscale(params.number_or("factor", 1.0), all_dim), 2)


def mla_attention(f: Fields, *, rope: bool = True) -> Attention:
    """What an MLA layer computes; ``rope=False`` for Kimi's layers without positions."""
    nope, rope_dim = f.integer("qk_nope_head_dim", high=MAX_DIM), f.integer("qk_rope_head_dim", high=MAX_DIM)
    bias = f.flag("attention_bias", False)
    family = RopeFamily(interleaved=f.flag("rope_interleave", True))
    part = _without_partial(f)
    return Attention(
        scale=mla_scale(f, nope + rope_dim),
        rope=read_rope(part, rope_dim, family) if rope else None,
        qkv_bias=bias,
        out_bias=bias,
        q_rank=_q_rank(f),
        nope_dim=nope,
        top_rows=f.integer_or("index_topk", 0) if f.has("index_head_dim") else 0,
        index_heads=f.integer_or("index_n_heads", 0) if f.has("index_head_dim") else 0,
    )


def _without_partial(f: Fields) -> Fields:
    """The same fields for a rotation over the whole rope part of a head, whatever share of the head that is."""
    raw = {k: v for k, v in f.raw.items() if k not in ("partial_rotary_factor", "rotary_dim")}
    for name in ("rope_parameters", "rope_scaling"):
        params = raw.get(name)
        if isinstance(params, dict):
            raw[name] = {k: v for k, v in params.items() if k != "partial_rotary_factor"}
    out = Fields(raw, f.source, f.outer)
    out.assumed = f.assumed
    return out


def _indexer_elements(f: Fields, attention: Attention) -> int:
    """Query, key and weight projections of a sparse-attention indexer, and the norm of its key."""
    dim, hidden = f.integer_or("index_head_dim", 0), hidden_size(f)
    heads = attention.index_heads
    return (attention.q_rank or hidden) * heads * dim + hidden * dim + 2 * dim + hidden * heads


def index_layers(f: Fields) -> list[bool]:
    """True where a layer has an indexer of its own; GLM-5.2 lets layers share their neighbour's choice."""
    n = f.layers()
    if not f.has("index_head_dim"):
        return [False] * n
    types = f.texts("indexer_types", n)
    pattern = f.text_or("index_topk_pattern", "")
    if types is not None:
        return [t == "full" for t in types]
    if pattern:
        if len(pattern) < n:
            raise f.bad("index_topk_pattern", pattern, f"one letter for each of {n} layers")
        return [c == "F" for c in pattern[:n]]
    every = f.integer_or("index_topk_freq", 1, low=1)
    offset = f.integer_or("index_skip_topk_offset", 2)
    return [max(i - offset + 1, 0) % max(every, 1) == 0 for i in range(n)]


def latent_layer(
    f: Fields, i: int, attention: Attention, *, indexed: bool, router: Router = hf_moe.SIGMOID
) -> LayerSpec:
    """One MLA layer. It has one cache head; its query heads are the model's."""
    rank, rope_dim = f.integer("kv_lora_rank", high=MAX_DIM), f.integer("qk_rope_head_dim", high=MAX_DIM)
    index_dim = f.integer("index_head_dim", high=MAX_DIM) if indexed else 0
    return LayerSpec(
        index=i,
        mixer=Latent(rank, rope_dim, index_dim),
        q_heads=query_heads(f),
        kv_heads=1,
        key_dim=attention.nope_dim + rope_dim,
        value_dim=f.integer("v_head_dim", high=MAX_DIM),
        attention=attention if indexed else replace(attention, index_heads=0),
        ffn=hf_moe.deepseek(f, i, router),
        extra_elements=_indexer_elements(f, attention) if indexed else 0,
    )


def read_mla(f: Fields, architecture: str) -> ModelSpec:
    """A model whose every layer is MLA."""
    indexed = architecture in _INDEXED or f.has("|".join(_INDEX))
    wanted = (*_REQUIRED, *(_INDEX if indexed else ()))
    require_decoder(f, "num_attention_heads", "intermediate_size", *wanted, heads=False)
    attention = mla_attention(f)
    router = _ROUTERS.get(architecture, hf_moe.SIGMOID)
    layers = [latent_layer(f, i, attention, indexed=has, router=router) for i, has in enumerate(index_layers(f))]
    missing: list[str] = []
    if attention.top_rows:
        missing.append(f"sparse attention: queries read the {attention.top_rows} best rows only")
    if scaling(f).number_or("llama_4_scaling_beta", 0.0):
        missing.append("query scale that depends on position")
    if f.flag("qk_latent_norm", False):
        missing.append("norms of latent q and k")
    eps = 1e-5 if architecture in ("glm_moe_dsa",) else 1e-6
    return assemble(f, architecture, layers, eps=eps, unsupported=missing)
