"""Rotary positions in GGUF headers: keys below ``ARCH.rope``, or divisors in the tensor ``rope_freqs.weight``."""

from __future__ import annotations

from dataclasses import replace

from kvist.spec.gguf_fields import Keys
from kvist.spec.rope import Rope, yarn_mscale


def read_rope(keys: Keys, head_dim: int, *, interleaved: bool) -> Rope:
    """The rotation of a model's (global) layers."""
    dim = keys.integer_or("rope.dimension_count", head_dim, low=1)
    if dim > head_dim or dim % 2:
        raise keys.bad("rope.dimension_count", dim, f"an even width within a head of {head_dim}")
    theta = keys.number_or("rope.freq_base", 10_000.0)
    if theta <= 1.0:
        raise keys.bad("rope.freq_base", theta, "a base above 1")
    rope = Rope(dim=dim, theta=theta, interleaved=interleaved)
    factors = keys.header.floats("rope_freqs.weight")
    if factors:
        if len(factors) != dim // 2 or not all(f > 0 for f in factors):
            raise keys.bad("rope_freqs.weight", f"{len(factors)} values", f"{dim // 2} positive divisors")
        return replace(rope, kind="factors", factors=factors)
    if keys.tensor("rope_factors_long.weight"):
        return replace(rope, kind="unsupported:longrope")
    return _stretch(keys, rope)


def _stretch(keys: Keys, rope: Rope) -> Rope:
    kind = keys.text_or("rope.scaling.type", "none")
    factor = keys.number_or("rope.scaling.factor", keys.number_or("rope.scale_linear", 1.0))
    if factor <= 0:
        raise keys.bad("rope.scaling.factor", factor, "positive")
    if kind == "none" and factor == 1.0:
        return rope
    if kind in ("linear", "none"):
        return replace(rope, kind="linear", factor=factor)
    if kind != "yarn":
        return replace(rope, kind=f"unsupported:{kind}", factor=factor)
    context = keys.integer_or("rope.scaling.original_context_length", keys.integer("context_length"), low=1)
    attention = keys.number_or("rope.scaling.attn_factor", 1.0)
    return replace(
        rope,
        kind="yarn",
        factor=factor,
        original_context_tokens=context,
        beta_fast=keys.number_or("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number_or("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=attention * yarn_mscale(factor),
        truncate=keys.name != "gpt-oss",
    )
