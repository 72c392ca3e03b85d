"""Nemotron NAS (DeciLM): a search gave every block its own attention and feed-forward, or none."""

from __future__ import annotations

from kvist.spec.ffn import Ffn
from kvist.spec.hf_fields import Fields
from kvist.spec.hf_heads import head_dim, query_heads
from kvist.spec.hf_model import activation, assemble, hidden_size, require_decoder
from kvist.spec.hf_rope import RopeFamily, read_rope
from kvist.spec.layer import Attention, Full, LayerSpec, Mixer, NoMixer, Window
from kvist.spec.model import ModelSpec
from kvist.units import round_up


def _kv_heads(block: Fields, q_heads: int) -> int:
    """KV heads from ``n_heads_in_group``, the number of query heads that share one."""
    group = block.integer("n_heads_in_group")
    if q_heads % group:
        raise block.bad("n_heads_in_group", group, f"a divisor of {q_heads} query heads")
    return q_heads // group


def _mixer(block: Fields) -> Mixer:
    """None for a removed or linear attention; a window where the search put one."""
    if block.flag("no_op", False) or block.flag("replace_with_linear", False):
        return NoMixer()
    window = block.integer_or("window_length", 0)
    return Window(window, block.integer_or("num_sink_tokens", 0)) if window else Full()


def _ffn(block: Fields, hidden: int, model: Fields) -> Ffn | None:
    """Width is two thirds of ``ffn_mult`` times the hidden width, up to a multiple of 256."""
    if block.flag("no_op", False) or block.flag("replace_with_linear", False):
        return None
    block.require("ffn_mult|intermediate_size")
    width = block.integer_or("intermediate_size", 0)
    if not width:
        width = round_up(int(2 * block.number_or("ffn_mult", 1.0) * hidden / 3), 256)
    return Ffn(width, activation=activation(model), bias=model.flag("mlp_bias", False))


def read_nas(f: Fields) -> ModelSpec:
    """A Llama whose ``block_configs`` say what each block is."""
    require_decoder(f, "num_attention_heads", "block_configs", heads=False)
    n, hidden, q = f.layers(), hidden_size(f), query_heads(f)
    dim = head_dim(f, q)
    bias = f.flag("attention_bias", False)
    attention = Attention(dim**-0.5, read_rope(f, dim, RopeFamily()), qkv_bias=bias, out_bias=bias)
    layers: list[LayerSpec] = []
    linear = 0
    for i, raw in enumerate(f.sequence("block_configs", n) or ()):
        if not isinstance(raw, dict):
            raise f.bad(f"block_configs[{i}]", raw, "an object")
        block = Fields(raw, f"{f.source} (block_configs[{i}])")
        block.require("attention", "ffn")
        own, mlp = block.sub("attention"), block.sub("ffn")
        mixer = _mixer(own)
        replaced = own.flag("replace_with_linear", False) + mlp.flag("replace_with_linear", False)
        linear += replaced
        heads = (0, 0, 0) if isinstance(mixer, NoMixer) else (q, _kv_heads(own, q), dim)
        layers.append(
            LayerSpec(
                index=i,
                mixer=mixer,
                q_heads=heads[0],
                kv_heads=heads[1],
                key_dim=heads[2],
                value_dim=heads[2],
                attention=attention,
                ffn=_ffn(mlp, hidden, f),
                extra_elements=replaced * (hidden * hidden + hidden),
            )
        )
    missing = ["blocks replaced by a linear map"] if linear else []
    return assemble(f, "nemotron_nas", layers, eps=1e-6, unsupported=missing)
