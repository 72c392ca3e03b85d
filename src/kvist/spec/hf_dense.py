"""Plain decoders: attention with K and V heads, full or windowed, then a feed-forward part.

What a ``model_type`` implies and its config does not say stands in one ``Family`` row per type (``hf_families``); the
numbers come from the config.
"""

from __future__ import annotations

from dataclasses import replace

from kvist.spec.hf_families import Family, typed_windows
from kvist.spec.hf_fields import Fields
from kvist.spec.hf_heads import Heads, read_heads
from kvist.spec.hf_model import assemble, hidden_size, require_decoder
from kvist.spec.hf_rope import FULL, SLIDING, RopeFamily, read_rope, scaling
from kvist.spec.layer import Attention, Full, LayerSpec, Mixer, Window
from kvist.spec.model import ModelSpec


def attention_of(f: Fields, family: Family, heads: Heads) -> Attention:
    """The attention of a family's layers, without its rope."""
    bias = f.flag("attention_bias", family.bias_default)
    return Attention(
        scale=heads.dim**-0.5,
        qk_norm=family.qk_norm,
        qkv_bias=bias if family.qkv_bias is None else family.qkv_bias,
        out_bias=bias if family.out_bias is None else family.out_bias,
        sink_logits=family.sink_logits,
    )


def dense_layers(f: Fields, family: Family, heads: Heads) -> list[LayerSpec]:
    """All layers of a plain decoder; a rope of its own for every layer type."""
    attention = attention_of(f, family, heads)
    windows = family.windows(f) if family.windows is not None else [None] * f.layers()
    ropes = {kind: read_rope(f, heads.dim, family.rope, kind) for kind in (FULL, SLIDING)}
    layers: list[LayerSpec] = []
    for i, window in enumerate(windows):
        mixer: Mixer = Full() if window is None else Window(window)
        layers.append(
            LayerSpec(
                index=i,
                mixer=mixer,
                q_heads=heads.q,
                kv_heads=heads.kv,
                key_dim=heads.dim,
                value_dim=heads.dim,
                attention=replace(attention, rope=ropes[FULL if window is None else SLIDING]),
                ffn=family.ffn(f, i),
                norms=family.norms,
            )
        )
    return layers


def unsupported_of(f: Fields, family: Family) -> list[str]:
    """Features of a plain decoder that change its numbers and have no field in the spec."""
    found = list(family.unsupported)
    if scaling(f).number_or("llama_4_scaling_beta", 0.0):
        found.append("query scale that depends on position")
    if f.number_or("clip_qkv", 0.0):
        found.append("clipped q, k and v")
    if f.flag("use_bidirectional_attention", False):
        found.append("bidirectional attention")
    return found


def read_dense(f: Fields, family: Family) -> ModelSpec:
    """A plain decoder of ``family``."""
    require_decoder(f, *family.width_names, *([] if family.derived_head_dim else ["head_dim"]))
    heads = read_heads(f, derived=family.derived_head_dim)
    if family.name == "glm4_moe" and f.flag("use_qk_norm", False):
        family = replace(family, qk_norm="head")
    layers = dense_layers(f, family, heads)
    spec = assemble(
        f,
        family.name,
        layers,
        eps=family.eps,
        is_tied=family.tied,
        unsupported=unsupported_of(f, family),
    )
    if family.name in ("cohere", "cohere2"):
        return _cohere(f, spec)
    return _deepstack(spec) if family.name.startswith("qwen3_vl") else spec


def _deepstack(spec: ModelSpec) -> ModelSpec:
    return replace(spec, notes=(*spec.notes, "text only: image features enter several layers in this model"))


def _cohere(f: Fields, spec: ModelSpec) -> ModelSpec:
    """LayerNorm without bias, one per layer; no positions in Cohere 2's full layers; scaled logits."""
    layers = tuple(
        replace(
            layer,
            attention=replace(
                layer.attention,
                qk_norm="head" if f.flag("use_qk_norm", False) else "none",
                rope=layer.attention.rope if spec.architecture == "cohere" or isinstance(layer.mixer, Window) else None,
            ),
            extra_elements=-hidden_size(f),
        )
        for layer in spec.layers
    )
    scale = f.number_or("logit_scale", 0.0625)
    return replace(spec, layers=layers, final_norm="layer", logit_scale=scale)


def read_smollm3(f: Fields) -> ModelSpec:
    """SmolLM3: every fourth layer has no positions; windows, if used, hold for exactly those layers."""
    family = Family("smollm3", rope=RopeFamily(2e6), tied=True)
    require_decoder(f, *family.width_names)
    heads = read_heads(f)
    n = f.layers()
    roped = _roped_layers(f, n)
    windows: list[int | None] = [None] * n
    if f.has("layer_types") or (f.flag("use_sliding_window", False) and f.has("sliding_window")):
        windows = typed_windows(f, [bool(r) for r in roped])
    family = replace(family, windows=lambda _: windows)
    layers = [
        layer if roped[layer.index] else replace(layer, attention=replace(layer.attention, rope=None))
        for layer in dense_layers(f, family, heads)
    ]
    return assemble(f, "smollm3", layers, eps=family.eps, is_tied=family.tied)


def _roped_layers(f: Fields, n: int) -> list[int]:
    """1 where a layer has rotary positions (``no_rope_layers`` is written the other way round than it sounds)."""
    listed = f.integers("no_rope_layers", n) if f.get("no_rope_layers") else None
    interval = f.integer_or("no_rope_layer_interval", 4, low=1)
    return listed if listed is not None else [int((i + 1) % interval != 0) for i in range(n)]


def read_granite(f: Fields) -> ModelSpec:
    """Granite: four multipliers, of which the one on residuals has no field in the spec."""
    family = Family("granite")
    require_decoder(f, *family.width_names)
    heads = read_heads(f)
    scale = f.number_or("attention_multiplier", 1.0)
    layers = [replace(x, attention=replace(x.attention, scale=scale)) for x in dense_layers(f, family, heads)]
    residual = f.number_or("residual_multiplier", 1.0)
    spec = assemble(f, "granite", layers, unsupported=[] if residual == 1 else [f"residuals scaled by {residual:g}"])
    return replace(
        spec,
        embedding_scale=f.number_or("embedding_multiplier", 1.0),
        logit_scale=1.0 / (f.number_or("logits_scaling", 1.0) or 1.0),
    )
