"""One way in: a GGUF file, a Hugging Face folder, or a ``config.json``."""

from __future__ import annotations

from pathlib import Path

from kvist.errors import MissingField, ModelError
from kvist.spec.gguf import read_gguf
from kvist.spec.hf import read_config
from kvist.spec.model import ModelSpec


def read_spec(path: str | Path) -> ModelSpec:
    """The ``ModelSpec`` of whatever lies at ``path``. Raises ``ModelError`` saying what is wrong or missing."""
    place = locate(path)
    return read_gguf(place) if place.suffix == ".gguf" else read_config(place)


def locate(path: str | Path) -> Path:
    """What to read at ``path``: itself, or the one GGUF file of a folder that has no ``config.json``."""
    place = Path(path)
    if not place.exists():
        raise ModelError(f"{place} does not exist", remedy="name a GGUF file, a Hugging Face folder or a config.json")
    if place.is_file() or (place / "config.json").is_file():
        return place
    found = sorted(place.glob("*.gguf"))
    if len(found) == 1:
        return found[0]
    raise MissingField(
        ("config.json",),
        source=str(place),
        remedy=f"a model folder has a config.json or exactly one GGUF file ({len(found)} here)",
    )
