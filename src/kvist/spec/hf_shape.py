"""The shape of a cache from a minimal description: a handful of fields, no vocabulary, no widths.

Every field that a rule below needs must be there. A family that keeps more than plain K and V (windows, latents,
states) must show the fields for it, or the description is refused: a plain reading would be wrong by a factor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kvist.spec.hf_fields import Fields
from kvist.spec.hf_gemma_shared import shared_mixers
from kvist.spec.hf_heads import HEAD_DIM, HIDDEN, KV_HEADS, MAX_DIM, MAX_HEADS, Q_HEADS, Heads, head_dim
from kvist.spec.hf_hybrid import delta_pattern, gated_delta, mamba2
from kvist.spec.hf_model import CONTEXT, VOCAB, every_nth_full
from kvist.spec.layer import Full, Latent, LayerSpec, Mixer, NoMixer, Shared
from kvist.spec.model import ModelSpec

_MHA: Final = ("opt", "gpt2", "gpt_neox")
"""Families in which every query head has a KV head of its own, by design."""

_KEPT_BESIDE_KV: Final = {
    "gemma2": "sliding_window",
    "gemma3": "sliding_window",
    "gemma3n": "num_kv_shared_layers",
    "gemma4": "global_head_dim",
    "gpt_oss": "sliding_window",
    "step3p7": "sliding_window",
    "qwen3_next": "linear_num_value_heads",
    "qwen3_5": "linear_num_value_heads",
    "qwen3_5_moe": "linear_num_value_heads",
    "granitemoehybrid": "mamba_n_heads",
    "deepseek_v2": "kv_lora_rank",
    "deepseek_v3": "kv_lora_rank",
    "deepseek_v32": "kv_lora_rank",
    "kimi_k2": "kv_lora_rank",
    "nemotron_nas": "num_key_value_heads_per_layer",
}
_NEVER_MINIMAL: Final = ("deepseek_v4", "nemotron_h", "kimi_linear", "llama4", "mimo_v2_flash", "minimax_m3")


def _heads(f: Fields, architecture: str) -> Heads:
    """KV heads and head width; query heads only if stated (memory does not depend on them)."""
    q = f.integer_or(Q_HEADS, 0)
    absent = []
    if not f.has(f"{KV_HEADS}|multi_query") and architecture not in _MHA:
        absent.append("num_key_value_heads")
    if architecture in _MHA:
        absent.append(Q_HEADS)
    if not f.has(HEAD_DIM):
        absent += [HIDDEN, Q_HEADS]
    f.require(*dict.fromkeys(absent))
    if architecture in _MHA:
        kv = q
    elif f.has(KV_HEADS):
        kv = f.integer(KV_HEADS, high=MAX_HEADS)
    else:
        kv = 1 if f.flag("multi_query", False) else q
    return Heads(q or kv, kv, head_dim(f, q or kv))


def _layer(i: int, mixer: Mixer, heads: Heads) -> LayerSpec:
    owner = not isinstance(mixer, NoMixer)
    q, kv, dim = (heads.q, heads.kv, heads.dim) if owner else (0, 0, 0)
    return LayerSpec(i, mixer, q_heads=q, kv_heads=kv, key_dim=dim, value_dim=dim)


def _per_layer(f: Fields, architecture: str) -> list[LayerSpec]:
    f.require(HEAD_DIM)
    counts = f.integers("num_key_value_heads_per_layer", f.layers()) or []
    dim, q = f.integer(HEAD_DIM, high=MAX_DIM), f.integer_or(Q_HEADS, 0)
    return [_layer(i, Full() if kv else NoMixer(), Heads(q or kv, kv, dim)) for i, kv in enumerate(counts)]


def _latent(f: Fields, architecture: str) -> list[LayerSpec]:
    f.require("qk_rope_head_dim")
    rank, rope_dim = f.integer("kv_lora_rank", high=MAX_DIM), f.integer("qk_rope_head_dim", high=MAX_DIM)
    key_dim = f.integer_or("qk_nope_head_dim", 0) + rope_dim
    return [
        LayerSpec(
            index=i,
            mixer=Latent(rank, rope_dim, f.integer_or("index_head_dim", 0)),
            q_heads=f.integer_or(Q_HEADS, 1),
            kv_heads=1,
            key_dim=key_dim,
            value_dim=f.integer_or("v_head_dim", 0),
        )
        for i in range(f.layers())
    ]


def _delta(f: Fields, architecture: str) -> list[LayerSpec]:
    heads, state = _heads(f, architecture), gated_delta(f)
    empty = Heads(0, 0, 0)
    return [_layer(i, Full(), heads) if full else _layer(i, state, empty) for i, full in enumerate(delta_pattern(f))]


def _mamba(f: Fields, architecture: str) -> list[LayerSpec]:
    """Counts of both kinds are enough: memory does not depend on their order. Attention layers are put last."""
    f.require("attention_layers", "mamba_layers", "mamba_n_heads", "mamba_d_head", "mamba_d_state")
    n, full, states = f.layers(), f.integer("attention_layers"), f.integer("mamba_layers")
    if full + states != n:
        raise f.bad("attention_layers + mamba_layers", full + states, f"the number of layers ({n})")
    shape = [f.integer(name) for name in ("mamba_n_heads", "mamba_d_head", "mamba_d_state")]
    filters = f.has("mamba_d_conv") and f.has("mamba_n_groups")
    groups, kernel = (f.integer("mamba_n_groups"), f.integer("mamba_d_conv")) if filters else (0, 1)
    state = mamba2(shape[0], shape[1], shape[2], groups, kernel)
    heads, empty = _heads(f, architecture), Heads(0, 0, 0)
    return [_layer(i, state, empty) if i < states else _layer(i, Full(), heads) for i in range(n)]


def _full_pattern(f: Fields) -> list[bool]:
    """Which layers see everything: from a pattern, from a count that divides the layers, or none."""
    n = f.layers()
    if f.has("sliding_window_pattern"):
        return every_nth_full(n, f.integer("sliding_window_pattern"))
    count = f.integer_or("full_attention_layers|full_attention_layers_total", 0)
    if not count:
        return [False] * n
    if n % count:
        raise f.bad("full_attention_layers", count, f"a divisor of {n} layers")
    return every_nth_full(n, n // count)


def _windowed(f: Fields, architecture: str) -> list[LayerSpec]:
    if architecture.startswith(("gemma", "gpt_oss", "step3p7")):
        f.require("sliding_window", "sliding_window_pattern|full_attention_layers|full_attention_layers_total")
    local, size = _heads(f, architecture), f.integer("sliding_window")
    full = local
    if f.has("global_head_dim"):
        kv = f.integer_or("num_global_key_value_heads", local.kv, low=1)
        full = Heads(max(local.q, kv), kv, f.integer("global_head_dim", high=MAX_DIM))
    mixers = shared_mixers(f, [None if whole else size for whole in _full_pattern(f)])
    return [_layer(i, mixer, full if _sees_all(mixer) else local) for i, mixer in enumerate(mixers)]


def _sees_all(mixer: Mixer) -> bool:
    return isinstance(mixer, Full) or (isinstance(mixer, Shared) and mixer.window_tokens is None)


def _uniform(f: Fields, architecture: str) -> list[LayerSpec]:
    heads = _heads(f, architecture)
    return [_layer(i, Full(), heads) for i in range(f.layers())]


_RULES: Final[tuple[tuple[str, Callable[[Fields, str], list[LayerSpec]]], ...]] = (
    ("num_key_value_heads_per_layer", _per_layer),
    ("kv_lora_rank", _latent),
    ("linear_num_value_heads", _delta),
    ("mamba_n_heads|mamba_layers", _mamba),
    ("sliding_window", _windowed),
)


def shape_of(f: Fields, architecture: str) -> ModelSpec:
    """A ``shape_only`` spec of a known architecture, or of none at all (``''``)."""
    f.require("num_hidden_layers")
    if architecture in _NEVER_MINIMAL:
        f.require("a full config (this architecture has no minimal description)")
    if architecture in _KEPT_BESIDE_KV:
        f.require(_KEPT_BESIDE_KV[architecture])
    rule = next((rule for name, rule in _RULES if f.has(name)), _uniform)
    if rule is _windowed and not f.flag("use_sliding_window", True):
        rule = _uniform
    notes = ["only the shape of the cache is known: layers, heads and widths"]
    if rule is _mamba and not (f.has("mamba_d_conv") and f.has("mamba_n_groups")):
        notes.append("the filters of Mamba layers are not counted: mamba_d_conv and mamba_n_groups are absent")
    if not f.has(Q_HEADS):
        notes.append("query heads are not stated")
    return ModelSpec(
        architecture=architecture or "shape",
        hidden=f.integer_or(HIDDEN, 0),
        layers=tuple(rule(f, architecture)),
        vocab=f.integer_or(VOCAB, 0),
        context_tokens=f.integer_or(CONTEXT, 0),
        shape_only=True,
        notes=tuple(notes),
    )
