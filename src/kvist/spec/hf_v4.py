"""DeepSeek-V4: a window of shared key-value rows in every layer, and compressed rows of everything older.

Layers with ratio 4 keep one row, and an indexer's key, for every 4 tokens, those with ratio 128 one row for every 128,
and a few keep only their window. The compressor overlaps windows at ratio 4, which doubles its buffer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvist.spec import hf_moe
from kvist.spec.ffn import Ffn, Router
from kvist.spec.hf_fields import Fields
from kvist.spec.hf_heads import HEAD_DIM, MAX_DIM, query_heads
from kvist.spec.hf_model import assemble, hidden_size, require_decoder
from kvist.spec.hf_rope import RopeFamily, read_rope
from kvist.spec.layer import Attention, Compressed, LayerSpec
from kvist.spec.model import ModelSpec
from kvist.spec.rope import Rope

_RATIO_OF_TYPE: Final = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}
_OVERLAPPED: Final = 4
_ROUTER: Final = Router("sqrtsoftplus", scale=1.5, choice_bias=True)
_REQUIRED: Final = (
    HEAD_DIM,
    "sliding_window",
    "q_lora_rank",
    "o_lora_rank",
    "o_groups",
    "qk_rope_head_dim",
    "index_head_dim",
    "index_n_heads",
    "index_topk",
    hf_moe.EXPERT_WIDTH,
    hf_moe.EXPERTS,
    hf_moe.ACTIVE,
)


def _ratios(f: Fields) -> list[int]:
    n = f.layers()
    kinds = f.texts("layer_types", n)
    if kinds is None:
        f.require("compress_ratios|layer_types")
        return f.integers("compress_ratios", n) or []
    rates = {**_RATIO_OF_TYPE, **{k: v for k, v in f.mapping("compress_rates").items() if isinstance(v, int)}}
    unknown = [kind for kind in kinds if kind not in rates]
    if unknown:
        raise f.bad("layer_types", unknown[0], f"one of {', '.join(rates)}")
    return [rates[kind] for kind in kinds]


def _buffer(ratio: int, dim: int) -> int:
    """Keys and gates of tokens on their way into a compressed row."""
    overlap = 2 if ratio == _OVERLAPPED else 1
    return 2 * overlap * ratio * overlap * dim if ratio else 0


def _mixer_elements(f: Fields, ratio: int) -> int:
    """Projections of a V4 attention layer: query, shared key-value, grouped output, compressor, indexer, streams."""
    hidden, heads, dim = hidden_size(f), query_heads(f), f.integer(HEAD_DIM)
    q_rank, o_rank, groups = f.integer("q_lora_rank"), f.integer("o_lora_rank"), f.integer("o_groups")
    elements = hidden * q_rank + q_rank + q_rank * heads * dim + hidden * dim + dim + heads
    elements += heads * dim * o_rank + groups * o_rank * hidden
    width = 2 if ratio == _OVERLAPPED else 1
    if ratio:
        elements += 2 * hidden * width * dim + ratio * width * dim + dim
    if ratio == _OVERLAPPED:
        index_dim, index_heads = f.integer("index_head_dim"), f.integer("index_n_heads")
        elements += 2 * hidden * 2 * index_dim + ratio * 2 * index_dim + index_dim
        elements += q_rank * index_heads * index_dim + hidden * index_heads
    streams = f.integer_or("hc_mult", 4)
    mix = (2 + streams) * streams
    return elements + 2 * (mix * streams * hidden + mix + 3)


def _ropes(f: Fields) -> dict[bool, Rope]:
    """Rotations of compressed layers (True: own base, YaRN without its scale) and of window-only layers."""
    dim = f.integer("qk_rope_head_dim")
    plain = Fields({k: v for k, v in f.raw.items() if k not in ("rope_scaling", "rope_parameters")}, f.source, f.outer)
    plain.assumed = f.assumed
    compressed = read_rope(f, dim, RopeFamily(interleaved=True))
    theta = f.assume("compress_rope_theta", 160_000.0)
    return {
        False: read_rope(plain, dim, RopeFamily(interleaved=True)),
        True: replace(compressed, theta=theta, attention_factor=1.0),
    }


def _ffn(f: Fields, i: int) -> Ffn:
    """Experts in every layer; the first ``num_hash_layers`` route by token id and have no bias for the choice."""
    ffn = hf_moe.deepseek(f, i, _ROUTER)
    kinds = f.texts("mlp_layer_types", f.layers())
    hashed = kinds[i] == "hash_moe" if kinds else i < f.integer_or("num_hash_layers", 3)
    if hashed and ffn.router is not None:
        ffn = replace(ffn, router=replace(ffn.router, choice_bias=False))
    return replace(ffn, clamp=f.number_or("swiglu_limit", 0.0))


def read_v4(f: Fields) -> ModelSpec:
    """DeepSeek-V4 Flash and Pro, also in the reference style that leaves decoder details out."""
    require_decoder(f, "num_attention_heads", *_REQUIRED, heads=False)
    dim, ropes = f.integer(HEAD_DIM, high=MAX_DIM), _ropes(f)
    index_dim, index_heads = f.integer("index_head_dim"), f.integer("index_n_heads")
    attention = Attention(scale=1.0 / dim**0.5, qk_norm="head", sink_logits=True, q_rank=f.integer("q_lora_rank"))
    layers: list[LayerSpec] = []
    for i, ratio in enumerate(_ratios(f)):
        indexed = ratio == _OVERLAPPED
        buffers = _buffer(ratio, dim) + (_buffer(ratio, index_dim) if indexed else 0)
        own = replace(attention, rope=ropes[ratio > 0])
        if indexed:
            own = replace(own, top_rows=f.integer("index_topk"), index_heads=index_heads)
        layers.append(
            LayerSpec(
                index=i,
                mixer=Compressed(f.integer("sliding_window"), ratio, index_dim if indexed else 0, buffers),
                q_heads=query_heads(f),
                kv_heads=1,
                key_dim=dim,
                value_dim=dim,
                attention=own,
                ffn=_ffn(f, i),
                extra_elements=_mixer_elements(f, ratio),
            )
        )
    missing = ["compressed rows", "several residual streams", "grouped output projection", "routing by token id"]
    spec = assemble(f, "deepseek_v4", layers, unsupported=missing)
    streams = f.integer_or("hc_mult", 4)
    return replace(spec, extra_elements=streams * streams * spec.hidden + streams + 1)
