"""One row per plain model type: what it implies beyond its config. The judge of a row is the code in transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from kvist.spec import hf_moe
from kvist.spec.hf_fields import Fields
from kvist.spec.hf_model import every_nth_full, layer_kinds
from kvist.spec.hf_moe import FfnOf
from kvist.spec.hf_rope import FULL, SLIDING, RopeFamily

WindowsOf = Callable[[Fields], list[int | None]]
"""Window of every layer in tokens; None: everything is visible."""


@dataclass(frozen=True, slots=True)
class Family:
    """One model type. Biases: None means the config's ``attention_bias``."""

    name: str
    ffn: FfnOf = hf_moe.dense
    windows: WindowsOf | None = None
    rope: RopeFamily = RopeFamily()
    eps: float = 1e-6
    tied: bool = False
    derived_head_dim: bool = True
    qkv_bias: bool | None = None
    out_bias: bool | None = None
    bias_default: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"
    norms: Literal["pre", "sandwich", "post"] = "pre"
    sink_logits: bool = False
    width_names: tuple[str, ...] = ("intermediate_size",)
    unsupported: tuple[str, ...] = ()


def all_windows(f: Fields) -> list[int | None]:
    """Mistral: ``sliding_window`` holds for every layer; null switches it off, and it must be written either way."""
    if "sliding_window" not in f.raw:
        f.require("sliding_window", remedy='add it; "sliding_window": null means full attention in every layer')
    size = f.integer_or("sliding_window", 0, low=1)
    return [size or None] * f.layers()


def maybe_windows(f: Fields) -> list[int | None]:
    """Mixtral, Phi-3: absent means full attention."""
    size = f.integer_or("sliding_window", 0, low=1)
    return [size or None] * f.layers()


def typed_windows(f: Fields, default: list[bool] | None) -> list[int | None]:
    """``layer_types`` where given, else True in ``default`` means full. Raises when a window's size is absent."""
    kinds = layer_kinds(f, (FULL, SLIDING))
    full = [kind == FULL for kind in kinds] if kinds is not None else default
    if full is None:
        f.require("layer_types")
        full = []
    if all(full):
        return [None] * len(full)
    size = f.integer("sliding_window")
    return [None if is_full else size for is_full in full]


def qwen_windows(f: Fields) -> list[int | None]:
    """Qwen2 and 3: windows only if ``use_sliding_window``, and only from layer ``max_window_layers`` on."""
    n = f.layers()
    if not f.flag("use_sliding_window", False):
        return [None] * n
    if f.has("layer_types"):
        return typed_windows(f, None)
    first = f.integer("max_window_layers", low=0)
    return typed_windows(f, [i < first for i in range(n)])


def qwen_moe_windows(f: Fields) -> list[int | None]:
    """Qwen2-MoE and Qwen3-MoE: a window, if used at all, holds for every layer."""
    return maybe_windows(f) if f.flag("use_sliding_window", False) else [None] * f.layers()


def alternating(f: Fields) -> list[int | None]:
    """gpt-oss, Gemma 2: every second layer is full, the first is not."""
    return typed_windows(f, every_nth_full(f.layers(), 2))


def cohere2_windows(f: Fields) -> list[int | None]:
    """Every fourth layer is full unless the config says otherwise."""
    return typed_windows(f, every_nth_full(f.layers(), f.integer_or("sliding_window_pattern", 4, low=1)))


FAMILIES: Final[dict[str, Family]] = {
    family.name: family
    for family in (
        Family("llama"),
        Family("mistral", windows=all_windows, qkv_bias=False, out_bias=False),
        Family("ministral3", windows=maybe_windows, qkv_bias=False, out_bias=False, eps=1e-5, derived_head_dim=False),
        Family(
            "mixtral",
            ffn=hf_moe.mixtral,
            windows=maybe_windows,
            qkv_bias=False,
            out_bias=False,
            eps=1e-5,
            rope=RopeFamily(1e6),
            width_names=("intermediate_size", hf_moe.EXPERTS, hf_moe.ACTIVE),
        ),
        Family("qwen2", windows=qwen_windows, qkv_bias=True, out_bias=False),
        Family("mimo", windows=qwen_windows, qkv_bias=True, out_bias=False, rope=RopeFamily(640_000.0)),
        Family(
            "qwen2_moe",
            ffn=hf_moe.qwen_moe,
            windows=qwen_moe_windows,
            qkv_bias=True,
            out_bias=False,
            width_names=(hf_moe.EXPERT_WIDTH, hf_moe.EXPERTS, hf_moe.ACTIVE),
        ),
        Family("qwen3", windows=qwen_windows, qk_norm="head", derived_head_dim=False),
        Family("qwen3_vl", qk_norm="head", derived_head_dim=False, rope=RopeFamily(500_000.0)),
        Family(
            "qwen3_moe",
            ffn=hf_moe.qwen_moe,
            windows=qwen_moe_windows,
            qk_norm="head",
            derived_head_dim=False,
            width_names=(hf_moe.EXPERT_WIDTH, hf_moe.EXPERTS, hf_moe.ACTIVE),
        ),
        Family(
            "qwen3_vl_moe",
            ffn=hf_moe.qwen_moe,
            qk_norm="head",
            derived_head_dim=False,
            rope=RopeFamily(500_000.0),
            width_names=(hf_moe.EXPERT_WIDTH, hf_moe.EXPERTS, hf_moe.ACTIVE),
        ),
        Family(
            "gpt_oss",
            ffn=hf_moe.gpt_oss,
            windows=alternating,
            rope=RopeFamily(150_000.0),
            eps=1e-5,
            bias_default=True,
            sink_logits=True,
            derived_head_dim=False,
            width_names=("intermediate_size", hf_moe.EXPERTS, hf_moe.ACTIVE),
        ),
        Family("olmo2", qk_norm="full", norms="post", eps=1e-5),
        Family(
            "olmoe",
            ffn=hf_moe.olmoe,
            qk_norm="full",
            eps=1e-5,
            width_names=("intermediate_size", hf_moe.EXPERTS, hf_moe.ACTIVE),
        ),
        Family("phi3", windows=maybe_windows, qkv_bias=False, out_bias=False, eps=1e-5),
        Family(
            "glm4",
            rope=RopeFamily(partial=0.5, interleaved=True),
            norms="sandwich",
            bias_default=True,
            out_bias=False,
            eps=1.5625e-07,
            derived_head_dim=False,
        ),
        Family(
            "glm4_moe",
            ffn=hf_moe.deepseek,
            rope=RopeFamily(partial=0.5),
            out_bias=False,
            eps=1e-5,
            derived_head_dim=False,
            width_names=("intermediate_size", hf_moe.EXPERT_WIDTH, hf_moe.EXPERTS, hf_moe.ACTIVE),
        ),
        Family(
            "minimax_m2",
            ffn=hf_moe.minimax,
            rope=RopeFamily(5e6),
            qk_norm="full",
            qkv_bias=False,
            out_bias=False,
            derived_head_dim=False,
            width_names=("intermediate_size", hf_moe.EXPERTS, hf_moe.ACTIVE),
        ),
        Family(
            "cohere",
            rope=RopeFamily(500_000.0, interleaved=True),
            eps=1e-5,
            tied=True,
            unsupported=("attention and feed-forward in parallel",),
        ),
        Family(
            "cohere2",
            windows=cohere2_windows,
            rope=RopeFamily(interleaved=True),
            eps=1e-5,
            tied=True,
            unsupported=("attention and feed-forward in parallel",),
        ),
    )
}
