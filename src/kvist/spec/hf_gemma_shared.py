"""Gemma 3n and 4: late layers read the cache of earlier ones, and heads differ between local and full layers.

Good for memory and for planning; both families compute more than a ``ModelSpec`` describes, and say so.
"""

from __future__ import annotations

from dataclasses import replace

from kvist.spec import hf_moe
from kvist.spec.ffn import Ffn, Router
from kvist.spec.hf_dense import attention_of
from kvist.spec.hf_families import Family, typed_windows
from kvist.spec.hf_fields import Fields
from kvist.spec.hf_gemma import GEMMA_ROPE, gemma_ffn, local_pattern, pattern_notes, scaled
from kvist.spec.hf_heads import MAX_DIM, Heads, read_heads
from kvist.spec.hf_model import assemble, every_nth_full, hidden_size, require_decoder
from kvist.spec.hf_rope import FULL, SLIDING, read_rope
from kvist.spec.layer import Attention, Full, LayerSpec, Mixer, Shared, Window
from kvist.spec.model import ModelSpec
from kvist.spec.rope import Rope


def _share(mixers: list[Mixer], n_shared: int) -> list[Mixer]:
    """The last ``n_shared`` layers read the cache of the last earlier layer of their own kind."""
    first = len(mixers) - n_shared
    out = list(mixers[:first])
    for mixer in mixers[first:]:
        owner = max((j for j in range(first) if type(mixers[j]) is type(mixer)), default=-1)
        out.append(Shared(owner, mixer.size_tokens if isinstance(mixer, Window) else None) if owner >= 0 else mixer)
    return out


def shared_mixers(f: Fields, windows: list[int | None]) -> list[Mixer]:
    """Mixers with ``num_kv_shared_layers`` applied. Raises when a sharing layer has nobody to read from."""
    mixers: list[Mixer] = [Full() if w is None else Window(w) for w in windows]
    n_shared = f.integer_or("num_kv_shared_layers", 0)
    if n_shared >= len(mixers) and n_shared:
        raise f.bad("num_kv_shared_layers", n_shared, f"fewer than the {len(mixers)} layers")
    out = _share(mixers, n_shared)
    if sum(isinstance(m, Shared) for m in out) != n_shared:
        raise f.bad("num_kv_shared_layers", n_shared, "a number that leaves every kind of layer an owner of its cache")
    return out


def _is_local(mixer: Mixer) -> bool:
    return isinstance(mixer, Window) or (isinstance(mixer, Shared) and mixer.window_tokens is not None)


def _layer(i: int, mixer: Mixer, heads: Heads, attention: Attention, ffn: Ffn, extra: int) -> LayerSpec:
    return LayerSpec(
        index=i,
        mixer=mixer,
        q_heads=heads.q,
        kv_heads=heads.kv,
        key_dim=heads.dim,
        value_dim=heads.dim,
        attention=attention,
        ffn=ffn,
        norms="sandwich",
        extra_elements=extra,
    )


def _table_elements(f: Fields, wide: int) -> int:
    """Per-layer embeddings: a table, a projection and a norm outside the layers."""
    n, hidden = f.layers(), hidden_size(f)
    return f.integer_or("vocab_size_per_layer_input", f.integer("vocab_size")) * n * wide + hidden * n * wide + wide


def read_gemma3n(f: Fields) -> ModelSpec:
    """Gemma 3n (text): shared KV, per-layer embeddings, alternating updates."""
    require_decoder(f, "intermediate_size", "head_dim", "num_kv_shared_layers")
    heads = read_heads(f, derived=False)
    family = Family("gemma3n", norms="sandwich", qk_norm="head")
    mixers = shared_mixers(f, typed_windows(f, every_nth_full(f.layers(), 5)))
    hidden, wide = hidden_size(f), f.integer_or("hidden_size_per_layer_input", 256)
    alt = f.integer_or("altup_num_inputs", 4)
    updates = 2 * hidden + alt * (alt + alt**2 + hidden)
    each = 2 * hidden * wide + hidden + 2 * hidden * f.integer_or("laurel_rank", 64) + hidden + updates
    attention = replace(attention_of(f, family, heads), scale=1.0)
    ropes = _ropes(f, heads, heads)
    layers = [
        _layer(i, mixer, heads, replace(attention, rope=ropes[_is_local(mixer)]), gemma_ffn(f, i), each)
        for i, mixer in enumerate(mixers)
    ]
    missing = ["per-layer embeddings", "alternating updates", "low-rank residuals", "sparse activations", "norm of v"]
    spec = assemble(f, "gemma3n", layers, is_tied=True, unsupported=missing)
    spec = replace(spec, extra_elements=_table_elements(f, wide) + 2 * (alt - 1) * hidden * hidden)
    return scaled(f, spec, offset=0.0)


def _ropes(f: Fields, local: Heads, full: Heads) -> dict[bool, Rope]:
    """Rotations of local (True) and of full layers."""
    return {
        True: read_rope(f, local.dim, GEMMA_ROPE, SLIDING, local=True),
        False: read_rope(f, full.dim, GEMMA_ROPE, FULL),
    }


def _gemma4_ffn(f: Fields, mixer: Mixer) -> Ffn:
    ffn = gemma_ffn(f, 0)
    if isinstance(mixer, Shared) and f.flag("use_double_wide_mlp", False):
        ffn = replace(ffn, width=2 * ffn.width)
    if not f.flag("enable_moe_block", False):
        return ffn
    f.require(hf_moe.EXPERTS, hf_moe.ACTIVE, "moe_intermediate_size")
    return replace(
        ffn,
        width=0,
        shared_width=ffn.width,
        experts=f.integer(hf_moe.EXPERTS),
        active=f.integer(hf_moe.ACTIVE),
        expert_width=f.integer("moe_intermediate_size"),
        router=Router(),
    )


def gemma4_heads(f: Fields, heads: Heads) -> Heads:
    """Geometry of Gemma 4's full layers: wider heads, and KV heads of their own only if K serves as V."""
    if f.has("num_global_key_value_heads"):
        f.require("attention_k_eq_v")
    own = f.flag("attention_k_eq_v", False)
    if own and "num_global_key_value_heads" not in f.raw:
        f.require("num_global_key_value_heads", remedy="add it; null means as many as local layers have")
    kv = f.integer_or("num_global_key_value_heads", heads.kv, low=1) if own else heads.kv
    return Heads(heads.q, kv, f.integer("global_head_dim", high=MAX_DIM))


def read_gemma4(f: Fields) -> ModelSpec:
    """Gemma 4 (text): two head geometries, shared KV, optional experts."""
    require_decoder(f, "intermediate_size", "head_dim", "global_head_dim")
    local = read_heads(f, derived=False)
    full = gemma4_heads(f, local)
    k_is_v = f.flag("attention_k_eq_v", False)
    attention = replace(attention_of(f, Family("gemma4", qk_norm="head"), local), scale=1.0)
    ropes = _ropes(f, local, full)
    hidden, wide = hidden_size(f), f.integer_or("hidden_size_per_layer_input", 256)
    windows = local_pattern(f, 6)
    windows[-1] = None  # the last layer is full whatever the pattern says
    layers: list[LayerSpec] = []
    for i, mixer in enumerate(shared_mixers(f, windows)):
        heads, ffn = (local if _is_local(mixer) else full), _gemma4_ffn(f, mixer)
        extra = 2 * hidden * wide + hidden if wide else 0
        extra += 4 * hidden + ffn.experts if ffn.experts else 0
        extra -= hidden * heads.kv * heads.dim if k_is_v and isinstance(mixer, Full) else 0
        layers.append(_layer(i, mixer, heads, replace(attention, rope=ropes[_is_local(mixer)]), ffn, extra))
    missing = ["norm of v", "scale of a layer's output"]
    missing += ["keys that serve as values"] if k_is_v else []
    missing += ["per-layer embeddings"] if wide else []
    missing += ["dense and routed feed-forward side by side"] if f.flag("enable_moe_block", False) else []
    spec = assemble(f, "gemma4", layers, is_tied=True, unsupported=missing, extra_notes=pattern_notes(f, 6))
    if wide:
        spec = replace(spec, extra_elements=_table_elements(f, wide))
    return scaled(f, spec, offset=0.0)
