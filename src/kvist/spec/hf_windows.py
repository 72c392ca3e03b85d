"""Decoders whose layers differ in what they see: Llama 4, MiMo-V2-Flash, Step-3.7, MiniMax-M3."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvist.spec import hf_moe
from kvist.spec.hf_dense import attention_of, dense_layers, unsupported_of
from kvist.spec.hf_families import Family, typed_windows
from kvist.spec.hf_fields import Fields
from kvist.spec.hf_heads import MAX_DIM, MAX_HEADS, Heads, read_heads
from kvist.spec.hf_model import assemble, hidden_size, layer_kinds, require_decoder
from kvist.spec.hf_rope import FULL, SLIDING, RopeFamily, read_rope
from kvist.spec.layer import Attention, Chunked, Full, LayerSpec, Mixer, Window
from kvist.spec.model import ModelSpec

_MOE: Final = (hf_moe.EXPERTS, hf_moe.ACTIVE)


def _roped_layers(f: Fields) -> list[bool]:
    """False for every fourth layer of Llama 4, unless ``no_rope_layers`` (1 = has positions) says otherwise."""
    n = f.layers()
    listed = f.integers("no_rope_layers", n) if f.get("no_rope_layers") else None
    interval = f.integer_or("no_rope_layer_interval", 4, low=1)
    return [bool(v) for v in listed] if listed is not None else [(i + 1) % interval != 0 for i in range(n)]


def read_llama4(f: Fields) -> ModelSpec:
    """Llama 4 (text): layers with positions see their chunk of ``attention_chunk_size``, the others everything."""
    require_decoder(f, "head_dim", "intermediate_size", "intermediate_size_mlp", "attention_chunk_size", *_MOE)
    heads = read_heads(f)
    family = Family("llama4", ffn=hf_moe.llama4, rope=RopeFamily(500_000.0, interleaved=True), eps=1e-5)
    chunk, roped = f.integer("attention_chunk_size"), _roped_layers(f)
    kinds = layer_kinds(f, (FULL, "chunked_attention"))
    chunked = [kind != FULL for kind in kinds] if kinds is not None else roped
    layers = [
        replace(
            x,
            mixer=Chunked(chunk) if chunked[x.index] else Full(),
            attention=x.attention if roped[x.index] else replace(x.attention, rope=None),
        )
        for x in dense_layers(f, family, heads)
    ]
    missing = ["experts that scale their input"]
    missing += ["L2 norm of q and k"] if f.flag("use_qk_norm", True) else []
    missing += ["query scale that depends on position"] if f.flag("attn_temperature_tuning", True) else []
    return assemble(f, "llama4", layers, eps=1e-5, unsupported=missing)


def _geometry(f: Fields, prefix: str) -> tuple[Heads, int]:
    """Heads and value width of MiMo-V2's full (``''``) or windowed (``'swa_'``) layers."""
    q = f.integer(f"{prefix}num_attention_heads", high=MAX_HEADS)
    kv = f.integer(f"{prefix}num_key_value_heads", high=MAX_HEADS)
    heads = Heads(q, kv, f.integer(f"{prefix}head_dim", high=MAX_DIM))
    return heads, f.integer(f"{prefix}v_head_dim", high=MAX_DIM)


def _mimo_windows(f: Fields) -> list[int | None]:
    """``hybrid_layer_pattern`` (1: windowed) or ``layer_types``. The window is the query and ``size`` before it."""
    pattern = f.integers("hybrid_layer_pattern", f.layers())
    if pattern is not None:
        f.require("sliding_window_size")
    size = f.integer("sliding_window_size") + 1 if f.has("sliding_window_size") else f.integer("sliding_window")
    if pattern is None:
        return [size if w else None for w in typed_windows(f, None)]
    return [size if local else None for local in pattern]


def read_mimo_v2(f: Fields) -> ModelSpec:
    """MiMo-V2-Flash: K and V differ in width, windowed layers have twice the KV heads and sink logits."""
    names = ("num_attention_heads", "num_key_value_heads", "head_dim", "v_head_dim")
    require_decoder(
        f,
        "hybrid_layer_pattern|layer_types",
        "sliding_window|sliding_window_size",
        *(f"{prefix}{name}" for prefix in ("", "swa_") for name in names),
        hf_moe.EXPERT_WIDTH,
        *_MOE,
    )
    geometry = {True: _geometry(f, "swa_"), False: _geometry(f, "")}
    rope = RopeFamily(5e6, partial=f.number_or("partial_rotary_factor", 1.0))
    local = Fields({**f.raw, "rope_theta": f.number_or("swa_rope_theta", 10_000.0)}, f.source, f.outer)
    ropes = {
        True: read_rope(local, geometry[True][0].dim, rope, SLIDING),
        False: read_rope(f, geometry[False][0].dim, rope, FULL),
    }
    sinks = {
        True: f.flag("add_swa_attention_sink_bias", True),
        False: f.flag("add_full_attention_sink_bias", False),
    }
    bias = f.flag("attention_bias", False)
    layers: list[LayerSpec] = []
    for i, window in enumerate(_mimo_windows(f)):
        is_local = window is not None
        heads, value_dim = geometry[is_local]
        attention = Attention(heads.dim**-0.5, ropes[is_local], qkv_bias=bias, sink_logits=sinks[is_local])
        mixer: Mixer = Window(window) if window is not None else Full()
        layers.append(LayerSpec(i, mixer, heads.q, heads.kv, heads.dim, value_dim, attention, hf_moe.deepseek(f, i)))
    scale = f.number_or("attention_value_scale", 1.0)
    return assemble(f, "mimo_v2_flash", layers, eps=1e-5, unsupported=[f"values scaled by {scale:g}"])


def read_step3(f: Fields) -> ModelSpec:
    """Step-3.7 (text): three windowed layers to one full, gated heads; windowed layers may have heads of their own."""
    require_decoder(f, "head_dim", "layer_types", "sliding_window", "intermediate_size", hf_moe.EXPERT_WIDTH, *_MOE)
    heads = read_heads(f, derived=False)
    family = Family("step3p7", ffn=hf_moe.step3, qk_norm="head", eps=1e-5, windows=lambda g: typed_windows(g, None))
    other = f.sub("attention_other_setting")
    local = Heads(
        other.integer_or("num_attention_heads", f.integer_or("num_sliding_attention_heads", heads.q)),
        other.integer_or("num_attention_groups|num_key_value_heads", heads.kv),
        other.integer_or("head_dim", heads.dim),
    )
    scalar = {"rope_theta": f.number_or("rope_theta", 10_000.0)} if not isinstance(f.get("rope_theta"), list) else {}
    flat = Fields({**f.raw, "rope_theta": 10_000.0, **scalar}, f.source, f.outer)
    hidden = hidden_size(f)
    layers: list[LayerSpec] = []
    for x in dense_layers(flat, family, heads):
        own = local if isinstance(x.mixer, Window) else heads
        shape = replace(x, q_heads=own.q, kv_heads=own.kv, key_dim=own.dim, value_dim=own.dim)
        layers.append(replace(shape, extra_elements=hidden * own.q))
    missing = ["gated heads", *unsupported_of(f, family)]
    if not scalar:
        missing.append("a rotary base for every layer")
    return replace(assemble(f, "step3p7", layers, eps=1e-5, unsupported=missing), norm_weight_offset=1.0)


def read_minimax_m3(f: Fields) -> ModelSpec:
    """MiniMax-M3 (text): sparse layers keep an indexer's key beside K and V and read the best blocks only."""
    require_decoder(f, "head_dim", "intermediate_size", "dense_intermediate_size", *_MOE)
    if "sparse_attention_config" not in f.raw:
        f.require("sparse_attention_config", remedy="add it; null means that no layer is sparse")
    heads, n = read_heads(f, derived=False), f.layers()
    family = Family("minimax_m3", ffn=hf_moe.minimax, qk_norm="head", qkv_bias=False, out_bias=False)
    sparse = f.sub("sparse_attention_config")
    frequency = sparse.integers("sparse_attention_freq", n) if sparse.flag("use_sparse_attention", True) else None
    index_dim, top_rows, index_heads = 0, 0, 0
    if frequency is not None and any(frequency):
        sparse.require("sparse_index_dim", "sparse_num_index_heads", "sparse_topk_blocks", "sparse_block_size")
        index_dim, index_heads = sparse.integer("sparse_index_dim"), sparse.integer("sparse_num_index_heads")
        top_rows = sparse.integer("sparse_topk_blocks") * sparse.integer("sparse_block_size")
    rope = read_rope(f, heads.dim, RopeFamily(5e6))
    extra = hidden_size(f) * index_dim * (index_heads + 1) + 2 * index_dim
    attention = replace(attention_of(f, family, heads), rope=rope)
    indexed = replace(attention, top_rows=top_rows, index_heads=index_heads)
    layers = [
        LayerSpec(
            index=i,
            mixer=Full(index_dim if on else 0),
            q_heads=heads.q,
            kv_heads=heads.kv,
            key_dim=heads.dim,
            value_dim=heads.dim,
            attention=indexed if on else attention,
            ffn=hf_moe.minimax(f, i),
            extra_elements=extra if on else 0,
        )
        for i, on in enumerate(frequency or [0] * n)
    ]
    missing = [f"sparse attention: queries read the {top_rows} best rows only"] if top_rows else []
    spec = assemble(f, "minimax_m3", layers, unsupported=missing)
    return replace(spec, norm_weight_offset=1.0 if f.flag("use_gemma_norm", False) else 0.0)
