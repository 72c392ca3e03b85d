"""Hugging Face models by id: what lies in the local cache, and the few small files that the hub is asked for."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvist.errors import CorruptFile, KvistError
from kvist.planner.weights.files import index_facts

TIMEOUT_S: Final = 5.0
_MOST_BYTES: Final = 16 << 20
_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,96}")


@dataclass(frozen=True, slots=True)
class Remote:
    """What the hub said of a model. ``total_bytes`` is 0 when it did not say; ``why`` names what went wrong."""

    config: Mapping[str, object] | None = None
    quantisation: Mapping[str, object] | None = None
    total_bytes: int = 0
    how: str = ""
    why: str = ""


def is_id(text: str) -> bool:
    """True for ``org/name``."""
    return _ID.fullmatch(text) is not None and ".." not in text


def cache_folder() -> Path:
    """The hub's cache on this machine, as ``HF_HUB_CACHE``, ``HF_HOME`` and ``XDG_CACHE_HOME`` set it."""
    direct = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    if direct:
        return Path(direct).expanduser()
    home = os.environ.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "huggingface" / "hub"


def cached_snapshot(model_id: str) -> Path | None:
    """The newest snapshot of a model in the cache that has a config; the one ``refs/main`` names goes first."""
    if not is_id(model_id):
        return None
    folder = cache_folder() / f"models--{model_id.replace('/', '--')}"
    found = [path.parent for path in folder.glob("snapshots/*/config.json") if path.is_file()]
    main = _named_by_main(folder)
    return max(found, key=lambda path: (path.name == main, path.stat().st_mtime, path.name), default=None)


def _named_by_main(folder: Path) -> str:
    """The snapshot that ``refs/main`` names; empty when it names none."""
    try:
        return (folder / "refs" / "main").read_text()[:64].strip()
    except (OSError, UnicodeDecodeError):
        return ""


def ask_hub(model_id: str) -> Remote:
    """Config and weight sizes from the hub, or why not. Never raises for what the network or the hub does.

    Needs ``huggingface_hub`` (the ``hub`` extra). Fetches ``config.json``, ``hf_quant_config.json`` and the weights'
    index; sizes of a model with a single weights file come from the hub's own metadata.
    """
    try:
        import huggingface_hub
    except ImportError:
        return Remote(why="huggingface_hub is not installed (pip install 'kvist[hub]')")
    api = huggingface_hub.HfApi()
    try:
        info = api.model_info(model_id, files_metadata=True, timeout=TIMEOUT_S)
    except Exception as error:
        return Remote(why=f"the hub was asked: {type(error).__name__}: {_first_line(error)}")
    sizes = {str(f.rfilename): int(f.size or 0) for f in info.siblings or ()}
    try:
        config = _fetch(huggingface_hub, model_id, "config.json", sizes)
        beside = _fetch(huggingface_hub, model_id, "hf_quant_config.json", sizes)
        index = _fetch(huggingface_hub, model_id, "model.safetensors.index.json", sizes)
    except KvistError:
        raise
    except Exception as error:
        return Remote(why=f"the hub did not give the files: {type(error).__name__}: {_first_line(error)}")
    if config is None:
        return Remote(why="the hub has the model, but no config.json in it")
    total, how = _total(index, sizes)
    return Remote(config, beside, total, how)


def _fetch(hub: Any, model_id: str, name: str, sizes: Mapping[str, int]) -> Mapping[str, object] | None:
    """One small JSON file; None when the model has none. Raises ``CorruptFile``."""
    if name not in sizes:
        return None
    if sizes[name] > _MOST_BYTES:
        raise CorruptFile(f"{model_id}: {name} has {sizes[name]:,} bytes", remedy="that is no config")
    path = Path(hub.hf_hub_download(model_id, name, etag_timeout=TIMEOUT_S))
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{model_id}: {name} is not JSON: {error}", remedy="fetch it again") from error
    return data if isinstance(data, Mapping) else None


def _total(index: Mapping[str, object] | None, sizes: Mapping[str, int]) -> tuple[int, str]:
    if index is not None:
        total = index_facts(index, "model.safetensors.index.json")[1]
        if total:
            return total, "total_size in the hub's index of the weights"
    single = sizes.get("model.safetensors", 0)
    return single, "size of the hub's weights file" if single else ""


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]
