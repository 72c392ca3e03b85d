"""Older decoders for which kvist plans memory but has no decoder: OPT, GPT-BigCode, Falcon, GPT-NeoX, GPT-2."""

from __future__ import annotations

from dataclasses import replace

from kvist.spec.ffn import Ffn
from kvist.spec.hf_fields import Fields
from kvist.spec.hf_heads import Heads, head_dim, query_heads
from kvist.spec.hf_model import activation, assemble, hidden_size, require_decoder
from kvist.spec.layer import Attention, Full, LayerSpec
from kvist.spec.model import ModelSpec


def _plain(f: Fields, architecture: str, heads: Heads, width: int, missing: list[str]) -> ModelSpec:
    """Equal layers with biased projections, LayerNorm and a plain MLP."""
    attention = Attention(scale=heads.dim**-0.5, qkv_bias=True, out_bias=True)
    ffn = Ffn(width, activation=activation(f, "gelu"), gated=False, bias=True)
    layers = [
        LayerSpec(
            index=i,
            mixer=Full(),
            q_heads=heads.q,
            kv_heads=heads.kv,
            key_dim=heads.dim,
            value_dim=heads.dim,
            attention=attention,
            ffn=ffn,
            extra_elements=2 * hidden_size(f),
        )
        for i in range(f.layers())
    ]
    spec = assemble(f, architecture, layers, eps=1e-5, is_tied=True, unsupported=["LayerNorm with bias", *missing])
    return replace(spec, final_norm="layer", extra_elements=hidden_size(f))


def read_opt(f: Fields) -> ModelSpec:
    """OPT: multi-head attention by design, learned positions."""
    require_decoder(f, "num_attention_heads", "ffn_dim", heads=False)
    q = query_heads(f)
    spec = _plain(f, "opt", Heads(q, q, head_dim(f, q)), f.integer("ffn_dim"), ["learned positions"])
    return replace(spec, extra_elements=spec.extra_elements + (spec.context_tokens + 2) * spec.hidden)


def read_gpt2(f: Fields, architecture: str) -> ModelSpec:
    """GPT-2 and GPT-BigCode: the latter with one KV head (``multi_query``), which it has unless told otherwise."""
    require_decoder(f, "num_attention_heads|n_head", heads=False)
    q = query_heads(f)
    if architecture == "gpt_bigcode":
        f.require("multi_query")
    kv = 1 if architecture == "gpt_bigcode" and f.flag("multi_query", True) else q
    width = f.integer_or("n_inner", 4 * hidden_size(f))
    spec = _plain(f, architecture, Heads(q, kv, head_dim(f, q)), width, ["learned positions"])
    return replace(spec, extra_elements=spec.extra_elements + spec.context_tokens * spec.hidden)


def read_falcon(f: Fields) -> ModelSpec:
    """Falcon: one KV head (``multi_query``), or ``num_kv_heads`` in its newer architecture."""
    require_decoder(f, "num_attention_heads|n_head", "multi_query|new_decoder_architecture", heads=False)
    q = query_heads(f)
    if f.flag("new_decoder_architecture", False):
        f.require("num_kv_heads|n_head_kv")
        kv = f.integer("num_kv_heads|n_head_kv")
    else:
        kv = 1 if f.flag("multi_query", False) else q
    hidden = hidden_size(f)
    spec = _plain(f, "falcon", Heads(q, kv, head_dim(f, q)), f.integer_or("ffn_hidden_size", 4 * hidden), [])
    bias = f.flag("bias", False)
    layers = tuple(
        replace(
            x,
            attention=replace(x.attention, qkv_bias=bias, out_bias=bias),
            ffn=replace(x.ffn, bias=bias) if x.ffn is not None else None,
        )
        for x in spec.layers
    )
    return replace(spec, layers=layers, unsupported=(*spec.unsupported, "attention and feed-forward in parallel"))


def read_neox(f: Fields) -> ModelSpec:
    """GPT-NeoX (Pythia): multi-head attention by design, part of a head rotates."""
    require_decoder(f, "num_attention_heads", "intermediate_size", heads=False)
    q = query_heads(f)
    heads = Heads(q, q, head_dim(f, q))
    spec = _plain(f, "gpt_neox", heads, f.integer("intermediate_size"), ["attention and feed-forward in parallel"])
    return replace(spec, tied_embeddings=f.flag("tie_word_embeddings", False))
