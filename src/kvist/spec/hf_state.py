"""What a config says of recurrent state beyond its size: element type and chunk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

_KEYS: Final = ("mamba_ssm_dtype", "mamba_ssm_cache_dtype")
_INNER: Final = ("text_config", "llm_config", "language_config", "thinker_config")
_NAMES: Final[dict[str, Literal["f32", "bf16", "f16"]]] = {
    "float32": "f32",
    "fp32": "f32",
    "bfloat16": "bf16",
    "float16": "f16",
    "fp16": "f16",
}


def state_type(config: Mapping[str, object]) -> Literal["", "f32", "bf16", "f16"]:
    """``f32``, ``bf16`` or ``f16`` where the config (or the text model in it) names one; empty where it does not."""
    for place in _places(config):
        for key in _KEYS:
            found = _NAMES.get(str(place.get(key)).removeprefix("torch."))
            if found:
                return found
    return ""


def state_chunk(config: Mapping[str, object]) -> int:
    """Tokens of a chunk of the state kernel (``chunk_size``); 0 where the config does not say."""
    for place in _places(config):
        for key in ("mamba_chunk_size", "chunk_size"):
            found = place.get(key)
            if isinstance(found, int) and not isinstance(found, bool) and found > 0:
                return found
    return 0


def _places(config: Mapping[str, object]) -> list[Mapping[str, object]]:
    """The config and the text models inside it."""
    inner = (config.get(key) for key in _INNER)
    return [config, *(place for place in inner if isinstance(place, Mapping))]
