"""Names of engines to the files that hold their emulators, imported when asked for."""

from __future__ import annotations

import importlib
import re
from typing import Final

from kvist.errors import BadValue
from kvist.planner.engines.base import Engine

_FILES: Final = {
    "kvist": ("kvist", "Kvist"),
    "vllm": ("vllm", "Vllm"),
    "vllm-legacy": ("vllm_legacy", "VllmLegacy"),
    "sglang": ("sglang", "Sglang"),
    "llama.cpp": ("llama_cpp", "LlamaCpp"),
    "ik_llama.cpp": ("llama_forks", "IkLlamaCpp"),
    "ipex-llm": ("llama_forks", "IpexLlm"),
    "tensorrt-llm": ("tensorrt_llm", "TensorrtLlm"),
}

_GGML: Final = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
_CACHE_TYPES: Final = {
    "kvist": ("f32", "f16", "bf16", "int8t", "lm4", "lm3", "lm2"),
    "vllm": ("f32", "f16", "bf16", "fp8", "int8", "int4", "nvfp4"),
    "vllm-legacy": ("f32", "f16", "bf16", "fp8"),
    "sglang": ("f16", "bf16", "fp8", "mxfp4"),
    "llama.cpp": _GGML,
    "ik_llama.cpp": (*_GGML, "q6_0"),
    "ipex-llm": ("f32", "f16", "fp8"),
    "tensorrt-llm": ("f32", "f16", "bf16", "fp8", "int8", "nvfp4"),
}
"""Element types that each engine's cache may hold, as its own options list them."""

_SPELLINGS: Final = (
    (r"^ik", "ik_llama.cpp"),
    (r"ipex", "ipex-llm"),
    (r"llama.?cpp|llama-?server|ggml|gguf|ollama|lm.?studio|koboldcpp|llamafile|^lcpp?$", "llama.cpp"),
    (r"sg.?lang|^sgl", "sglang"),
    (r"trt|tensor.?rt|nim\b", "tensorrt-llm"),
    (r"vllm.*(legacy|v0|old)", "vllm-legacy"),
    (r"v.?llm", "vllm"),
    (r"kvist", "kvist"),
)
"""How people write them (matched in lower case, in this order)."""


def names() -> tuple[str, ...]:
    """What can be loaded."""
    return tuple(_FILES)


def named(text: str) -> str | None:
    """The engine meant by ``text`` in anybody's spelling (``TRT-LLM``, ``ik_llama``, ``vLLM 0.9``), or None."""
    low = text.strip().lower()
    if low in _FILES:
        return low
    return next((name for pattern, name in _SPELLINGS if re.search(pattern, low)), None)


def cache_types(name: str) -> tuple[str, ...]:
    """Element types that an engine's cache may hold. Raises ``BadValue`` for an unknown engine."""
    return _CACHE_TYPES[engine(name).name]


def engine(name: str) -> Engine:
    """The emulator with its defaults. Raises ``BadValue`` naming what exists."""
    known = named(name)
    if known is None:
        raise BadValue("engine", name, f"one of {', '.join(_FILES)}")
    module, kind = _FILES[known]
    emulator: Engine = getattr(importlib.import_module(f"kvist.planner.engines.{module}"), kind)()
    return emulator
