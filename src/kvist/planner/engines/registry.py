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


def engine(name: str) -> Engine:
    """The emulator with its defaults. Raises ``BadValue`` naming what exists."""
    known = named(name)
    if known is None:
        raise BadValue("engine", name, f"one of {', '.join(_FILES)}")
    module, kind = _FILES[known]
    emulator: Engine = getattr(importlib.import_module(f"kvist.planner.engines.{module}"), kind)()
    return emulator
