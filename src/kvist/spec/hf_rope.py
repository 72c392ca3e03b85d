"""Rotary positions in Hugging Face configs: two generations of key names, four ways to stretch a context.

Old files write ``rope_theta``, ``rope_scaling`` and (Gemma 3) ``rope_local_base_freq``; transformers 5 writes
``rope_parameters``, nested per layer type when layers differ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kvist.spec.hf_fields import Fields
from kvist.spec.rope import Rope, yarn_mscale

FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"

_PLAIN: Final = ("default", "mrope")
_ALIASES: Final = {"su": "longrope"}


@dataclass(frozen=True, slots=True)
class RopeFamily:
    """What a model family implies: base, the part of a head that rotates, and how its weights pair dims."""

    theta: float = 10_000.0
    partial: float = 1.0
    interleaved: bool = False
    local_theta: float = 10_000.0


def _parameters(f: Fields, layer_type: str) -> tuple[Fields, bool]:
    """The dict that holds for ``layer_type``, and whether it was nested."""
    name = "rope_scaling" if f.mapping("rope_scaling") else "rope_parameters"
    params = f.sub(name)
    nested = params.raw.get(layer_type)
    return (params.sub(layer_type), True) if isinstance(nested, dict) else (params, False)


def scaling(f: Fields, layer_type: str = FULL) -> Fields:
    """The scaling parameters of a layer type: empty when positions are plain."""
    return _parameters(f, layer_type)[0]


def kind_of(params: Fields) -> str:
    """``default``, ``linear``, ``llama3``, ``yarn``, or another published name."""
    kind = params.text_or("rope_type|type", "default")
    return _ALIASES.get(kind, kind)


def read_rope(f: Fields, head_dim: int, family: RopeFamily, layer_type: str = FULL, *, local: bool = False) -> Rope:
    """The rotation of layers of one type. ``local``: the family's sliding layers have a base of their own."""
    params, nested = _parameters(f, layer_type)
    if local and not nested:  # old style: scaling is for the global layers only
        params = Fields({}, f.source)
    if params.has("rope_theta"):
        theta = params.number_or("rope_theta", family.theta)
    elif local:
        theta = f.assume("rope_local_base_freq", family.local_theta)
    else:
        theta = f.assume("rope_theta|rotary_emb_base", family.theta)
    rope = Rope(dim=_rotary_dim(f, params, head_dim, family), theta=theta, interleaved=family.interleaved)
    return _stretch(f, params, rope)


def _rotary_dim(f: Fields, params: Fields, head_dim: int, family: RopeFamily) -> int:
    if params.has("partial_rotary_factor"):
        dim = _share_of(f, head_dim, params.number_or("partial_rotary_factor", 1.0))
    elif f.has("rotary_dim"):
        dim = f.integer("rotary_dim")
    else:
        dim = _share_of(f, head_dim, f.number_or("partial_rotary_factor|rotary_pct", family.partial))
    if not 0 < dim <= head_dim:
        raise f.bad("partial_rotary_factor", dim, f"a rotary width within a head of {head_dim}")
    return dim + dim % 2


def _share_of(f: Fields, head_dim: int, factor: float) -> int:
    if not 0.0 < factor <= 1.0:
        raise f.bad("partial_rotary_factor", factor, "a share above 0, up to 1")
    return int(head_dim * factor)


def _stretch(f: Fields, params: Fields, rope: Rope) -> Rope:
    kind = kind_of(params)
    if kind in _PLAIN:
        return rope
    if kind not in ("linear", "llama3", "yarn"):
        return replace(rope, kind=f"unsupported:{kind}", factor=params.number_or("factor", 1.0))
    context = f.integer_or("max_position_embeddings", 0)
    original = f.integer_or("original_max_position_embeddings", 0) or params.integer_or(
        "original_max_position_embeddings", context
    )
    if kind == "yarn" and not params.has("factor") and original:
        factor = context / original
    else:
        params.require("factor")
        factor = params.number_or("factor", 1.0)
    if factor <= 0 or (kind != "linear" and original <= 0):
        raise f.bad("rope_scaling", dict(params.raw), "a positive factor and an original context")
    if kind == "linear":
        return replace(rope, kind=kind, factor=factor)
    return _shape(params, replace(rope, kind=kind, factor=factor, original_context_tokens=original))


def _shape(params: Fields, rope: Rope) -> Rope:
    """Fill in what only llama3 and yarn have."""
    if rope.kind == "llama3":
        params.require("low_freq_factor", "high_freq_factor")
        return replace(
            rope,
            low_freq_factor=params.number_or("low_freq_factor", 1.0),
            high_freq_factor=params.number_or("high_freq_factor", 4.0),
        )
    mscale, all_dim = params.number_or("mscale", 0.0), params.number_or("mscale_all_dim", 0.0)
    if mscale and all_dim:
        implied = yarn_mscale(rope.factor, mscale) / yarn_mscale(rope.factor, all_dim)
    else:
        implied = yarn_mscale(rope.factor)
    return replace(
        rope,
        attention_factor=params.number_or("attention_factor", implied),
        beta_fast=params.number_or("beta_fast", 32.0) or 32.0,
        beta_slow=params.number_or("beta_slow", 1.0) or 1.0,
        truncate=params.flag("truncate", True),
    )
