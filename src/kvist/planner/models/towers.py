"""How many weights a config's vision and audio towers have: beside the decoder, but loaded with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_TOWERS: Final = ("vision_config", "audio_config", "vision_tower_config")
_MOST: Final = 1 << 34


def tower_elements(config: Mapping[str, object]) -> int:
    """Weights of a Hugging Face config's towers, projectors included; 0 where there are none or too little is said.

    A tower is counted as a plain encoder (four square attention matrices, an MLP of two matrices or three), with its
    patch embedding and a two-layer projector into the decoder's width (one more for every layer that is tapped): good
    to a few percent of the tower.
    """
    inner = next((x for x in (config.get(k) for k in ("text_config", "llm_config")) if isinstance(x, Mapping)), config)
    hidden = _number(inner, "hidden_size")
    total = 0
    for name in _TOWERS:
        tower = config.get(name)
        if isinstance(tower, Mapping):
            total += _encoder(tower) + _projector(tower, config, hidden)
    return min(total, _MOST)


def _encoder(tower: Mapping[str, object]) -> int:
    width = _number(tower, "embed_dim", "hidden_size", "vt_hidden_size", "width")
    layers = _number(tower, "depth", "num_hidden_layers", "vt_num_hidden_layers", "layers")
    inner = _number(tower, "intermediate_size", "vt_intermediate_size", "mlp_hidden_size") or int(width * _ratio(tower))
    gated = str(tower.get("hidden_act") or "").lower() in ("silu", "swish") and bool(
        _number(tower, "intermediate_size")
    )
    patch = _number(tower, "patch_size")
    frames = _number(tower, "temporal_patch_size") or 1
    channels = _number(tower, "num_channels", "in_channels", "in_chans") or 3
    return layers * (4 * width * width + (3 if gated else 2) * width * inner) + channels * frames * patch**2 * width


def _projector(tower: Mapping[str, object], config: Mapping[str, object], hidden: int) -> int:
    width = _number(tower, "embed_dim", "hidden_size", "vt_hidden_size", "width")
    merged = width * (_number(config, "spatial_merge_size") or _number(tower, "spatial_merge_size") or 1) ** 2
    if _number(config, "spatial_merge_size"):
        return merged * width + width * hidden + hidden * hidden
    taps = tower.get("deepstack_visual_indexes")
    times = 1 + len(taps) if isinstance(taps, list) and len(taps) < 64 else 1
    return times * (merged * merged + merged * hidden) if merged > width else width * hidden


def _ratio(tower: Mapping[str, object]) -> float:
    value = tower.get("mlp_ratio")
    return float(value) if isinstance(value, int | float) and 0 < value < 64 else 4.0


def _number(place: Mapping[str, object], *names: str) -> int:
    """The first of these fields that is a sensible whole number; 0 when none is."""
    for name in names:
        value = place.get(name)
        if type(value) is int and 0 < value < 1 << 20:
            return value
    return 0
