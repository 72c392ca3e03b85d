"""Gemma 1 to 3: scaled embeddings, norms on both sides, soft caps, windows of local layers."""

from __future__ import annotations

from dataclasses import replace

from kvist.spec import hf_moe
from kvist.spec.ffn import Ffn
from kvist.spec.hf_dense import dense_layers
from kvist.spec.hf_families import Family, alternating, typed_windows
from kvist.spec.hf_fields import Fields
from kvist.spec.hf_heads import read_heads
from kvist.spec.hf_model import assemble, every_nth_full, require_decoder
from kvist.spec.hf_rope import FULL, SLIDING, RopeFamily, read_rope
from kvist.spec.layer import LayerSpec, Window
from kvist.spec.model import ModelSpec

GEMMA_ROPE = RopeFamily(theta=1e6)


def gemma_ffn(f: Fields, i: int) -> Ffn:
    """A gated MLP; old files write ``gelu`` and mean its tanh form."""
    ffn = hf_moe.dense(f, i, default="gelu_tanh", bias=False)
    return replace(ffn, activation="gelu_tanh") if ffn.activation == "gelu" else ffn


def scaled(f: Fields, spec: ModelSpec, *, offset: float) -> ModelSpec:
    """What every Gemma shares: embeddings times ``sqrt(hidden)``, norm weights stored as ``w - offset``."""
    return replace(
        spec,
        embedding_scale=spec.hidden**0.5,
        norm_weight_offset=offset,
        logit_softcap=f.number_or("final_logit_softcapping", 0.0),
    )


def read_gemma(f: Fields) -> ModelSpec:
    """Gemma 1."""
    family = Family("gemma", ffn=gemma_ffn, derived_head_dim=False)
    require_decoder(f, "intermediate_size", "head_dim")
    heads = read_heads(f, derived=False)
    return scaled(f, assemble(f, "gemma", dense_layers(f, family, heads), is_tied=True), offset=1.0)


def read_gemma2(f: Fields) -> ModelSpec:
    """Gemma 2: every second layer is local; soft caps on scores and on logits."""
    family = Family("gemma2", ffn=gemma_ffn, windows=alternating, norms="sandwich")
    require_decoder(f, "intermediate_size", "head_dim")
    heads = read_heads(f, derived=False)
    scale = f.assume("query_pre_attn_scalar", 256.0) ** -0.5
    cap = f.number_or("attn_logit_softcapping", 0.0) if "attn_logit_softcapping" in f.raw else 50.0
    layers = [
        replace(x, attention=replace(x.attention, scale=scale, softcap=cap)) for x in dense_layers(f, family, heads)
    ]
    spec = scaled(f, assemble(f, "gemma2", layers, is_tied=True), offset=1.0)
    return spec if "final_logit_softcapping" in f.raw else replace(spec, logit_softcap=30.0)


def local_pattern(f: Fields, default: int) -> list[int | None]:
    """Windows of Gemma 3 on: ``layer_types``, or the last of every ``sliding_window_pattern`` layers is full."""
    pattern = f.integer_or("sliding_window_pattern|_sliding_window_pattern", default, low=1)
    return typed_windows(f, every_nth_full(f.layers(), pattern))


def pattern_notes(f: Fields, default: int) -> list[str]:
    """Say so when the family's pattern of local layers was used."""
    if f.has("layer_types|sliding_window_pattern|_sliding_window_pattern"):
        return []
    return [f"the config names no pattern: one layer in {default} is taken as full, the family's rule"]


def read_gemma3(f: Fields) -> ModelSpec:
    """Gemma 3 (text): five local layers to one global, each kind with its own rotary base; q and k are normed."""
    family = Family("gemma3", ffn=gemma_ffn, windows=lambda g: local_pattern(g, 6), norms="sandwich", qk_norm="head")
    require_decoder(f, "intermediate_size", "head_dim")
    heads = read_heads(f, derived=False)
    scale = f.assume("query_pre_attn_scalar", 256.0) ** -0.5
    cap = f.number_or("attn_logit_softcapping", 0.0)
    local_rope = read_rope(f, heads.dim, GEMMA_ROPE, SLIDING, local=True)
    global_rope = read_rope(f, heads.dim, GEMMA_ROPE, FULL)
    layers: list[LayerSpec] = []
    for x in dense_layers(f, replace(family, rope=GEMMA_ROPE), heads):
        rope = local_rope if isinstance(x.mixer, Window) else global_rope
        layers.append(replace(x, attention=replace(x.attention, scale=scale, softcap=cap, rope=rope)))
    both = ["bidirectional attention"] if f.flag("use_bidirectional_attention", False) else []
    spec = assemble(f, "gemma3", layers, is_tied=True, unsupported=both, extra_notes=pattern_notes(f, 6))
    return scaled(f, spec, offset=1.0)
