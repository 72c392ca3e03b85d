"""Which number formats a checkpoint's weights are in, read from its config: ``quantization_config`` and the dtype.

A quantisation names what it leaves alone (or what it touches) by module. A few representative modules of every part of
a layer are looked up in those lists, layer by layer; what comes out is a share of element types for each part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvist.planner.weights.format import WeightFormat, format_of
from kvist.planner.weights.module_names import ModuleNames, elsewhere, names_of
from kvist.spec.mixer import NoMixer
from kvist.spec.model import ModelSpec

_MODULES: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "attention": (
        ("self_attn.q_proj", "self_attn.qkv_proj", "self_attn.q_a_proj", "self_attn.q_b_proj", "attn.wq_a",
         "linear_attn.in_proj_qkv", "linear_attn.in_proj_qkvz", "mixer.in_proj", "mixer.q_proj"),
        ("self_attn.o_proj", "attn.wo_a", "attn.wo_b", "linear_attn.out_proj", "mixer.out_proj", "mixer.o_proj"),
    ),
    "ffn": (
        ("mlp.gate_proj", "mlp.gate_up_proj", "mlp.shared_experts.gate_proj", "mlp.shared_expert.gate_proj",
         "mlp.up_proj", "ffn.shared_experts.w1", "feed_forward.shared_expert.gate_proj", "feed_forward.gate_proj",
         "block_sparse_moe.shared_experts.gate_proj", "mixer.shared_experts.up_proj", "mixer.up_proj"),
        ("mlp.down_proj", "mlp.shared_experts.down_proj", "mlp.shared_expert.down_proj", "ffn.shared_experts.w2",
         "feed_forward.shared_expert.down_proj", "feed_forward.down_proj",
         "block_sparse_moe.shared_experts.down_proj", "mixer.shared_experts.down_proj", "mixer.down_proj"),
    ),
    "experts": (
        ("mlp.experts.0.gate_proj", "mlp.experts.gate_up_proj", "block_sparse_moe.experts.0.w1", "ffn.experts.0.w1",
         "feed_forward.experts.gate_up_proj", "mixer.experts.0.up_proj", "experts.0.gate_proj", "moe.experts.0.w1"),
        ("mlp.experts.0.down_proj", "mlp.experts.down_proj", "block_sparse_moe.experts.0.w2", "ffn.experts.0.w2",
         "feed_forward.experts.down_proj", "mixer.experts.0.down_proj", "experts.0.down_proj", "moe.experts.0.w2"),
    ),
}  # fmt: skip
"""Modules that stand for a part, by checkpoints' names: a tuple for matrices that read, one for those that write."""

_WHOLE: Final = {"head": ("lm_head", "head", "language_model.lm_head"), "embedding": ("model.embed_tokens",)}
_NESTED: Final = ("text_config", "llm_config", "language_config")
_WIDE: Final = {"bfloat16": "bf16", "float16": "f16", "half": "f16", "float32": "f32"}
_METHODS: Final = {
    "fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4", "finegrained_fp8": "fp8", "nvfp4": "nvfp4", "mxfp8": "mxfp8",
}  # fmt: skip
_UNKNOWN: Final = "int8"


@dataclass(frozen=True, slots=True)
class _Rules:
    """What modules are in: names left alone, names given a format of their own, and the format of the rest."""

    left: ModuleNames
    given: tuple[tuple[ModuleNames, str], ...]
    default: str | None

    def element(self, alternatives: Iterable[str], wide: str) -> str:
        """The element type of the module that goes by any of these names."""
        names = tuple(alternatives)
        if any(self.left.match(name) for name in names):
            return wide
        for listed, element in self.given:
            if any(listed.match(name) for name in names):
                return element
        return self.default or wide


def weight_format_of(
    config: Mapping[str, object], beside: Mapping[str, object] | None = None, spec: ModelSpec | None = None
) -> WeightFormat:
    """The weights' format as a Hugging Face config tells it.

    ``beside`` is the content of ``hf_quant_config.json`` where a folder has one; ``spec`` tells which layers have what.
    A method that is not known counts as 8 bits: see ``unknown_method``. A quantisation that seems to leave every part
    alone is taken to pack the experts, or the feed-forward part of a model that has none. Parts that a model
    lacks are given what its attention has.
    """
    wide = _wide(config)
    raw = _quantisation(config, beside)
    if not raw:
        return format_of({}, wide)
    rules, places = _rules(raw), _places(config, spec)
    left = "fp8" if str(raw.get("quant_method")).lower() == "fp8" and _groups(raw) else wide
    parts: dict[str, Counter[str]] = {}
    for part, families in _MODULES.items():
        sample = _spread(places[part])
        parts[part] = Counter(
            rules.element([f"{i}.{name}" for name in family], left) for i in sample for family in families
        )
    for part, names in _WHOLE.items():
        named = any(listed.match(name) for listed, _ in rules.given for name in names)
        parts[part] = Counter([rules.element(names, wide) if named else wide])
    if rules.default and all(set(shares) <= {left, wide} for shares in parts.values()) and rules.default != left:
        parts["experts" if places["experts"] else "ffn"] = Counter([rules.default])
    if _first(config, "expert_dtype") == "fp4" and "nvfp4" not in parts["experts"]:
        parts["experts"] = Counter(["mxfp4"])
    everywhere = {part: found or parts["attention"] for part, found in parts.items()}
    return format_of({part: {e: n / c.total() for e, n in c.items()} for part, c in everywhere.items()}, wide)


def _places(config: Mapping[str, object], spec: ModelSpec | None) -> dict[str, list[int]]:
    """Layers in which each part occurs."""
    if spec is not None and spec.layers and any(layer.ffn for layer in spec.layers):
        return {
            "attention": [x.index for x in spec.layers if not isinstance(x.mixer, NoMixer)],
            "ffn": [x.index for x in spec.layers if x.ffn and (x.ffn.shared_width or x.ffn.width or not x.ffn.experts)],
            "experts": [x.index for x in spec.layers if x.ffn and x.ffn.experts],
        }
    n = _integer(_first(config, "num_hidden_layers", "n_layer", "num_layers")) or 1
    sparse = _first(config, "num_experts", "n_routed_experts", "num_local_experts") is not None
    dense = _integer(_first(config, "first_k_dense_replace")) or 0
    every = list(range(min(n, 4096)))
    return {"attention": every, "ffn": every, "experts": every[dense:] if sparse else []}


def _spread(layers: list[int]) -> list[int]:
    """At most 24 of the layers, from all over the stack."""
    return [layers[i * len(layers) // 24] for i in range(24)] if len(layers) > 24 else layers


def unknown_method(config: Mapping[str, object], beside: Mapping[str, object] | None = None) -> str:
    """Name of a quantisation whose format is not known here; empty when all is known."""
    raw = _quantisation(config, beside)
    listed = raw.get("quantized_layers") or any(_texts(group.get("targets")) for group in _groups(raw))
    return "" if not raw or _default(raw) or listed else str(raw.get("quant_method") or raw.get("quant_algo"))


def _quantisation(config: Mapping[str, object], beside: Mapping[str, object] | None) -> dict[str, Any]:
    """The quantisation's description, wherever it stands; empty when the weights are not quantised."""
    for place in (config, *(config.get(name) for name in _NESTED)):
        if isinstance(place, Mapping):
            for name in ("quantization_config", "compression_config"):
                found = place.get(name)
                if isinstance(found, Mapping) and found:
                    return dict(found)
    inner = (beside or {}).get("quantization")
    return dict(inner) if isinstance(inner, Mapping) else {}


def _rules(raw: Mapping[str, Any]) -> _Rules:
    left = [raw.get(k) for k in ("modules_to_not_convert", "ignore", "exclude_modules", "llm_int8_skip_modules",
                                 "ignored_layers")]  # fmt: skip
    default = _default(raw)
    given = _given(raw)
    return _Rules(names_of(x for names in left for x in _texts(names)), given, default or (None if given else _UNKNOWN))


def _default(raw: Mapping[str, Any]) -> str | None:
    """Element type of everything that no list names."""
    method = str(raw.get("quant_method") or "").lower()
    algo = str(raw.get("quant_algo") or "").lower()
    for group in _groups(raw):
        if _texts(group.get("targets")) in ([], ["Linear"]):
            return _group_element(group, raw)
    if method in ("awq", "gptq", "gptq_marlin", "awq_marlin", "auto-round", "autoround"):
        bits = _integer(raw.get("bits") or raw.get("w_bit")) or 4
        size = _integer(raw.get("group_size") or raw.get("q_group_size")) or 128
        return "int8" if bits == 8 else f"int{bits}-g{size if size > 0 else 4096}"
    if method == "bitsandbytes":
        packed = raw.get("load_in_4bit") or raw.get("_load_in_4bit")
        return ("nf4-dq" if raw.get("bnb_4bit_use_double_quant") else "nf4") if packed else "int8"
    for name in (method, algo):
        if name in _METHODS:
            return _METHODS[name]
    found = {"fp8": "fp8", "nvfp4": "nvfp4", "mxfp4": "mxfp4", "w8a8": "int8", "int8": "int8", "w4a16": "int4"}
    return next((element for word, element in found.items() if word in algo), None)


def _given(raw: Mapping[str, Any]) -> tuple[tuple[ModuleNames, str], ...]:
    """Formats that single modules were given by name."""
    found = [
        (names_of(_texts(group["targets"])), _group_element(group, raw))
        for group in _groups(raw)
        if _texts(group.get("targets")) not in ([], ["Linear"])
    ]
    named = raw.get("quantized_layers")
    by_algo: dict[str, list[str]] = {}
    for name, how in named.items() if isinstance(named, Mapping) else ():
        if not elsewhere(name) and isinstance(how, Mapping):
            by_algo.setdefault(str(how.get("quant_algo")).lower(), []).append(str(name))
    found += [(names_of(names), _default({"quant_algo": algo}) or _UNKNOWN) for algo, names in by_algo.items()]
    return tuple(found)


def _groups(raw: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    groups = raw.get("config_groups")
    listed = groups.values() if isinstance(groups, Mapping) else ()
    return [group for group in listed if isinstance(group, Mapping) and isinstance(group.get("weights"), Mapping)]


def _group_element(group: Mapping[str, Any], raw: Mapping[str, Any]) -> str:
    weights = group["weights"]
    bits, size = _integer(weights.get("num_bits")) or 8, _integer(weights.get("group_size")) or 0
    if weights.get("type") == "float":
        if bits == 8:
            return "mxfp8" if size == 32 else "fp8"
        block = "mxfp4" in str(group.get("format") or raw.get("format") or "") or size == 32
        return "mxfp4" if block else "nvfp4"
    return "int8" if bits == 8 else f"int{bits}-g{size if size > 0 else 4096}"


def _first(config: Mapping[str, object], *names: str) -> object:
    """The first of these fields that the config, or the text model in it, has."""
    for place in (config, *(config.get(name) for name in _NESTED)):
        if isinstance(place, Mapping):
            for name in names:
                if place.get(name) is not None:
                    return place[name]
    return None


def _wide(config: Mapping[str, object]) -> str:
    stated = str(_first(config, "torch_dtype", "dtype") or "bfloat16")
    return _WIDE.get(stated.removeprefix("torch."), "bf16")


def _texts(value: object) -> list[str]:
    return [x for x in value if isinstance(x, str)] if isinstance(value, list | tuple) else []


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
