"""Read the header of a GGUF file into a ``ModelSpec``. Only the ``gguf*`` files know GGUF's key names.

What differs from the same model's Hugging Face files: Gemma's norm weights already include the 1 (offset 0), rows of Q
and K of Llama-like models are stored for neighbouring pairs (``Rope.interleaved``), biases and q/k norms are seen from
the tensors, and Llama 3's stretched positions are a tensor of divisors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Literal

from kvist.errors import CorruptFile, UnknownArchitecture
from kvist.gguf_header import Header, read_header
from kvist.spec.ffn import Activation
from kvist.spec.gguf_fields import Keys
from kvist.spec.gguf_moe import ffns_of
from kvist.spec.gguf_rope import read_rope
from kvist.spec.layer import Attention, Full, Latent, LayerSpec, Mixer, NoMixer, Window
from kvist.spec.model import ModelSpec
from kvist.spec.rope import yarn_mscale

_MAX_HEADS: Final = 65_536
_MAX_DIM: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class _Family:
    """What an architecture implies beyond its keys. ``pattern``: the last of so many layers is full (0: none is)."""

    architecture: str
    interleaved: bool = False
    norms: Literal["pre", "sandwich", "post"] = "pre"
    activation: Activation = "silu"
    pattern: int = 0
    window: int = 0
    gemma: bool = False
    score_cap: float = 0.0
    logit_cap: float = 0.0
    local_theta: float = 0.0
    wide_heads_at: int = 0
    no_rope_every: int = 0


_FAMILIES: Final[dict[str, _Family]] = {
    "llama": _Family("llama", interleaved=True),
    "qwen2": _Family("qwen2"),
    "qwen2moe": _Family("qwen2_moe"),
    "qwen3": _Family("qwen3"),
    "qwen3moe": _Family("qwen3_moe"),
    "smollm3": _Family("smollm3", interleaved=True, no_rope_every=4),
    "olmo2": _Family("olmo2", norms="post"),
    "gemma": _Family("gemma", gemma=True, activation="gelu_tanh"),
    "gemma2": _Family(
        "gemma2",
        norms="sandwich",
        activation="gelu_tanh",
        pattern=2,
        window=4096,
        gemma=True,
        score_cap=50.0,
        logit_cap=30.0,
        wide_heads_at=46,
    ),
    "gemma3": _Family(
        "gemma3",
        norms="sandwich",
        activation="gelu_tanh",
        pattern=6,
        gemma=True,
        local_theta=10_000.0,
        wide_heads_at=62,
    ),
    "gpt-oss": _Family("gpt_oss", pattern=2, activation="swiglu_oai"),
    "deepseek2": _Family("deepseek_v2", interleaved=True),
}


def known_gguf_architectures() -> tuple[str, ...]:
    """Names, as GGUF files write them, of every architecture ``read_gguf`` knows."""
    return tuple(sorted(_FAMILIES))


def read_gguf(path: str | Path, *, name: str = "") -> ModelSpec:
    """Describe the model in a GGUF file from its header alone. Raises ``ModelError`` subclasses only."""
    return spec_of(read_header(path), name=name)


def spec_of(header: Header, *, name: str = "") -> ModelSpec:
    """Describe a model from a header that was read already."""
    architecture = header.values.get("general.architecture")
    if not isinstance(architecture, str):
        raise CorruptFile(f"{header.path.name} names no architecture", remedy="convert the model again")
    if architecture not in _FAMILIES:
        near = get_close_matches(architecture, list(_FAMILIES), n=5, cutoff=0.5)
        raise UnknownArchitecture(architecture, tuple(near) or known_gguf_architectures(), source=header.path.name)
    keys, family = Keys(header, architecture), _FAMILIES[architecture]
    keys.require("block_count", "context_length", "embedding_length", "attention.head_count")
    _check_blocks(keys)
    build: Callable[[Keys, _Family], list[LayerSpec]] = _latent if keys.has("attention.kv_lora_rank") else _plain
    given = header.values.get("general.name")
    return _model(keys, family, build(keys, family), name or (given if isinstance(given, str) else ""))


def _check_blocks(keys: Keys) -> None:
    """The last block must have a tensor, unless the model is split over several files."""
    last, parts = f"blk.{keys.layers() - 1}.", keys.header.values.get("split.count", 0)
    if not (isinstance(parts, int) and parts > 1) and not any(name.startswith(last) for name in keys.header.tensors):
        raise keys.bad("block_count", keys.layers(), f"the number of blocks in the file: it has no tensor {last}*")


def _model(keys: Keys, family: _Family, layers: list[LayerSpec], name: str) -> ModelSpec:
    hidden, tensors = keys.integer("embedding_length", high=_MAX_DIM), keys.header.tensors
    kinds = {x.attention.rope.kind for x in layers if x.attention.rope is not None}
    unsupported = [f"rotary positions of kind {k[12:]}" for k in sorted(kinds) if k.startswith("unsupported:")]
    notes = []
    parts = keys.header.values.get("split.count", 0)
    if isinstance(parts, int) and parts > 1:
        notes.append(f"one of {parts} files: weight bytes are this file's only")
    architecture = family.architecture
    if architecture == "deepseek_v2" and any(x.ffn and x.ffn.router and x.ffn.router.choice_bias for x in layers):
        architecture = "deepseek_v3"
    return ModelSpec(
        architecture=architecture,
        hidden=hidden,
        layers=tuple(layers),
        vocab=keys.vocab(),
        context_tokens=keys.integer("context_length"),
        norm_eps=keys.number_or("attention.layer_norm_rms_epsilon", 1e-5),
        tied_embeddings="output.weight" not in tensors,
        embedding_scale=hidden**0.5 if family.gemma else 1.0,
        logit_softcap=keys.number_or("final_logit_softcapping", family.logit_cap),
        weight_bytes=sum(t.n_bytes for t in tensors.values()),
        name=name,
        notes=tuple(notes),
        unsupported=tuple(unsupported),
    )


def _windows(keys: Keys, family: _Family) -> list[int]:
    """Window of every layer, 0 for full. A pattern in the file (one flag per layer, or a period) goes first."""
    n = keys.layers()
    size = keys.integer_or("attention.sliding_window", family.window)
    if not size:
        return [0] * n
    flags = keys.get("attention.sliding_window_pattern")
    if isinstance(flags, tuple):
        if len(flags) < n:
            raise keys.bad("attention.sliding_window_pattern", f"{len(flags)} entries", f"one for each of {n} layers")
        return [size if local else 0 for local in flags[:n]]
    period = keys.integer_or("attention.sliding_window_pattern", family.pattern)
    return [0 if period and (i + 1) % period == 0 else size for i in range(n)]


def _attention(keys: Keys, family: _Family, q_heads: int, key_dim: int) -> Attention:
    """What the first block's tensors and the keys say about attention; positions are added per layer."""
    norm = keys.header.tensors.get("blk.0.attn_q_norm.weight")
    kind: Literal["none", "head", "full"] = "none"
    if norm is not None:
        kind = "head" if norm.elements == key_dim else "full"
    hidden = keys.integer("embedding_length", high=_MAX_DIM)
    width = hidden / q_heads if keys.layers() == family.wide_heads_at else key_dim
    return Attention(
        scale=keys.number_or("attention.scale", 0.0) or float(width) ** -0.5,
        softcap=keys.number_or("attn_logit_softcapping", family.score_cap),
        qk_norm=kind,
        qkv_bias=keys.tensor("blk.0.attn_q.bias"),
        out_bias=keys.tensor("blk.0.attn_output.bias"),
        sink_logits=keys.tensor("blk.0.attn_sinks.weight"),
    )


def _plain(keys: Keys, family: _Family) -> list[LayerSpec]:
    """Layers with K and V heads; a layer with no KV heads has no attention."""
    q_heads = keys.per_layer("attention.head_count")
    kv_heads = keys.get("attention.head_count_kv")
    kv = keys.per_layer("attention.head_count_kv") if kv_heads is not None else q_heads
    most = max(q_heads)
    hidden = keys.integer("embedding_length", high=_MAX_DIM)
    if not 0 < most <= _MAX_HEADS or (hidden % most and not keys.has("attention.key_length")):
        raise keys.bad("attention.head_count", most, f"a divisor of the width ({hidden})")
    key_dim = keys.integer_or("attention.key_length", hidden // most, low=1)
    value_dim = keys.integer_or("attention.value_length", hidden // most, low=1)
    if max(key_dim, value_dim) > _MAX_DIM:
        raise keys.bad("attention.key_length", key_dim, f"at most {_MAX_DIM}")
    attention = _attention(keys, family, most, key_dim)
    full_rope = read_rope(keys, key_dim, interleaved=family.interleaved)
    local_rope = full_rope
    if family.local_theta:
        theta = keys.number_or("rope.freq_base_swa", family.local_theta)
        local_rope = replace(full_rope, theta=theta, kind="default", factor=1.0)
    layers: list[LayerSpec] = []
    ffns = ffns_of(keys, family.activation)
    for i, window in enumerate(_windows(keys, family)):
        if kv[i] and q_heads[i] % kv[i]:
            raise keys.bad("attention.head_count_kv", kv[i], f"a divisor of {q_heads[i]} query heads")
        mixer: Mixer = (Window(window) if window else Full()) if kv[i] else NoMixer()
        silent = bool(family.no_rope_every) and (i + 1) % family.no_rope_every == 0
        rope = None if silent else local_rope if window else full_rope
        layers.append(
            LayerSpec(
                index=i,
                mixer=mixer,
                q_heads=q_heads[i] if kv[i] else 0,
                kv_heads=kv[i],
                key_dim=key_dim if kv[i] else 0,
                value_dim=value_dim if kv[i] else 0,
                attention=replace(attention, rope=rope),
                ffn=ffns[i],
                norms=family.norms,
            )
        )
    return layers


def _latent(keys: Keys, family: _Family) -> list[LayerSpec]:
    """MLA layers. Newer files state the expanded head widths under ``*_mla`` keys and one KV head."""
    keys.require("attention.key_length", "attention.value_length", "rope.dimension_count")
    rank = keys.integer("attention.kv_lora_rank", high=_MAX_DIM)
    rope_dim = keys.integer("rope.dimension_count", high=_MAX_DIM)
    key_dim = keys.integer_or("attention.key_length_mla", keys.integer("attention.key_length"), low=1)
    value_dim = keys.integer_or("attention.value_length_mla", keys.integer("attention.value_length"), low=1)
    if not rope_dim < key_dim <= _MAX_DIM or value_dim > _MAX_DIM:
        raise keys.bad("attention.key_length_mla", key_dim, f"more than the {rope_dim} rotated dims")
    rope = read_rope(keys, rope_dim, interleaved=family.interleaved)
    weight = keys.number_or("rope.scaling.yarn_log_multiplier", 0.0) * 10
    mscale = yarn_mscale(rope.factor, weight) if rope.kind == "yarn" and weight else 1.0
    if rope.kind == "yarn" and weight:
        rope = replace(rope, attention_factor=1.0)
    attention = Attention(
        scale=float(key_dim) ** -0.5 * mscale * mscale,
        rope=rope,
        q_rank=keys.integer_or("attention.q_lora_rank", 0),
        nope_dim=key_dim - rope_dim,
    )
    ffns = ffns_of(keys, family.activation)
    return [
        LayerSpec(
            index=i,
            mixer=Latent(rank, rope_dim),
            q_heads=heads,
            kv_heads=1,
            key_dim=key_dim,
            value_dim=value_dim,
            attention=attention,
            ffn=ffns[i],
            norms=family.norms,
        )
        for i, heads in enumerate(keys.per_layer("attention.head_count", low=1))
    ]
