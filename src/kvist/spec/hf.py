"""Read a Hugging Face ``config.json`` into a ``ModelSpec``. Only the ``hf*`` files know Hugging Face's key names.

``read_config`` wants a full config and refuses, by name, what it does not know or what is absent. ``read_shape``
accepts a minimal description and gives a spec that is good for memory only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Final

from kvist.errors import CorruptFile, MissingField, UnknownArchitecture
from kvist.spec.hf_dense import read_dense, read_granite, read_smollm3
from kvist.spec.hf_families import FAMILIES
from kvist.spec.hf_fields import Fields
from kvist.spec.hf_gemma import read_gemma, read_gemma2, read_gemma3
from kvist.spec.hf_gemma_shared import read_gemma3n, read_gemma4
from kvist.spec.hf_hybrid import read_granite_hybrid, read_nemotron_h, read_qwen_next
from kvist.spec.hf_kimi import read_kimi_linear
from kvist.spec.hf_legacy import read_falcon, read_gpt2, read_neox, read_opt
from kvist.spec.hf_mla import read_mla
from kvist.spec.hf_model import MTP
from kvist.spec.hf_nas import read_nas
from kvist.spec.hf_reference import is_reference, translate
from kvist.spec.hf_shape import shape_of
from kvist.spec.hf_state import state_chunk, state_type
from kvist.spec.hf_v4 import read_v4
from kvist.spec.hf_windows import read_llama4, read_mimo_v2, read_minimax_m3, read_step3
from kvist.spec.model import ModelSpec

Reader = Callable[[Fields], ModelSpec]
Source = str | Path | Mapping[str, object]

_READERS: Final[dict[str, Reader]] = {
    **{name: partial(read_dense, family=family) for name, family in FAMILIES.items()},
    "smollm3": read_smollm3,
    "granite": read_granite,
    "gemma": read_gemma,
    "gemma2": read_gemma2,
    "gemma3": read_gemma3,
    "gemma3n": read_gemma3n,
    "gemma4": read_gemma4,
    "deepseek_v2": partial(read_mla, architecture="deepseek_v2"),
    "deepseek_v3": partial(read_mla, architecture="deepseek_v3"),
    "deepseek_v32": partial(read_mla, architecture="deepseek_v32"),
    "deepseek_v4": read_v4,
    "kimi_k2": partial(read_mla, architecture="kimi_k2"),
    "glm_moe_dsa": partial(read_mla, architecture="glm_moe_dsa"),
    "mistral4": partial(read_mla, architecture="mistral4"),
    "kimi_linear": read_kimi_linear,
    "qwen3_next": partial(read_qwen_next, architecture="qwen3_next"),
    "qwen3_5": partial(read_qwen_next, architecture="qwen3_5"),
    "qwen3_5_moe": partial(read_qwen_next, architecture="qwen3_5_moe"),
    "nemotron_h": read_nemotron_h,
    "nemotron_nas": read_nas,
    "granitemoehybrid": read_granite_hybrid,
    "llama4": read_llama4,
    "mimo_v2_flash": read_mimo_v2,
    "step3p7": read_step3,
    "minimax_m3": read_minimax_m3,
    "opt": read_opt,
    "gpt2": partial(read_gpt2, architecture="gpt2"),
    "gpt_bigcode": partial(read_gpt2, architecture="gpt_bigcode"),
    "falcon": read_falcon,
    "gpt_neox": read_neox,
}

_OTHER_NAMES: Final[dict[str, str]] = {
    "code_llama": "llama",
    "nemotron-nas": "nemotron_nas",
    "decilm": "nemotron_nas",
    "kimi_k25": "kimi_k2",
    "kimi_k3": "kimi_linear",
    "minimax_m3_vl": "minimax_m3",
    "minimaxm3sparse": "minimax_m3",
    "step3p5": "step3p7",
    "step3p7flash": "step3p7",
    "qwen2_vl": "qwen2",
    "qwen2_5_vl": "qwen2",
    "refinedweb": "falcon",
    "refinedwebmodel": "falcon",
}
"""Model types, and class names without their endings, that are another family's under a new name."""

_WRAPPED: Final = ("text_config", "llm_config", "language_config", "thinker_config")
_ENDINGS: Final = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "Model")


def known_architectures() -> tuple[str, ...]:
    """Names of every family that ``read_config`` knows."""
    return tuple(sorted(_READERS))


def read_config(source: Source, *, name: str = "") -> ModelSpec:
    """Read a config file, a model folder or a parsed dict. Raises ``ModelError`` subclasses only."""
    outer, label, folder = _load(source)
    f = _unwrap(outer, label)
    architecture = _architecture(f)
    spec = _READERS[architecture](f)
    return replace(_beside(spec, f, outer), name=name or _name(source, outer), weight_bytes=_weight_bytes(folder))


def read_shape(source: Source, *, name: str = "") -> ModelSpec:
    """Read just the shape of the cache. A full config gives what ``read_config`` gives, a minimal one what it can."""
    outer, label, _ = _load(source)
    f = _unwrap(outer, label)
    architecture = _architecture(f) if _candidates(f) else ""
    spec: ModelSpec | None = None
    if architecture:
        try:
            spec = replace(_READERS[architecture](f), shape_only=True)
        except MissingField:
            spec = None
    return replace(_beside(spec or shape_of(f, architecture), f, outer), name=name or _name(source, outer))


def _beside(spec: ModelSpec, f: Fields, outer: Mapping[str, object]) -> ModelSpec:
    """What configs of any family may say beside the layers: draft layers, and how recurrent state is kept."""
    if not spec.state_elements:
        return replace(spec, draft_layers=f.integer_or(MTP, 0))
    kind, chunk = state_type(outer), state_chunk(outer)
    return replace(spec, draft_layers=f.integer_or(MTP, 0), state_type=kind, state_chunk_tokens=chunk)


def _load(source: Source) -> tuple[Mapping[str, object], str, Path | None]:
    if isinstance(source, Mapping):
        return source, "config", None
    path = Path(source)
    folder = path if path.is_dir() else path.parent
    file = path / "config.json" if path.is_dir() else path
    return read_object(file), file.name, folder


def read_object(file: Path) -> Mapping[str, object]:
    """The JSON object in a config file. Raises ``CorruptFile``."""
    try:
        raw = json.loads(file.read_bytes())
    except OSError as error:
        raise CorruptFile(f"{file} cannot be read: {error.strerror}", remedy="check the path") from error
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{file} is not JSON: {error}", remedy="fetch the file again") from error
    if not isinstance(raw, dict):
        raise CorruptFile(f"{file} holds a {type(raw).__name__}, not an object", remedy="point at a config.json")
    return raw


def _unwrap(outer: Mapping[str, object], label: str) -> Fields:
    """The text model's own fields, out of a multimodal wrapper (or of several)."""
    inner = translate(outer) if is_reference(outer) else outer
    for _ in range(3):
        nested = next((inner[key] for key in _WRAPPED if isinstance(inner.get(key), dict)), None)
        if not isinstance(nested, dict):
            break
        inner = nested
    if inner is not outer and not (inner.get("model_type") or inner.get("architectures")):
        inner = {**inner, "model_type": outer.get("model_type"), "architectures": outer.get("architectures")}
    return Fields(inner, label, outer)


def _candidates(f: Fields) -> list[str]:
    """Names the config gives itself, most specific first: its model type, then its classes without their endings."""
    names = [str(f.get("model_type") or "")]
    classes = f.get("architectures")
    for cls in classes if isinstance(classes, list) else ():
        bare = str(cls)
        for ending in _ENDINGS:
            bare = bare.removesuffix(ending)
        names.append(bare)
    return [n for n in names if n]


def _architecture(f: Fields) -> str:
    for name in _candidates(f):
        key = name.lower().removesuffix("_text")
        if key in _OTHER_NAMES:
            return _OTHER_NAMES[key]
        for known in _READERS:
            if key in (known, known.replace("_", "")):
                return known
    names = _candidates(f)
    if not names:
        raise MissingField(
            ("model_type or architectures",),
            source=f.source,
            remedy="add model_type, or read the shape alone (read_shape)",
        )
    near = get_close_matches(names[0].lower().removesuffix("_text"), list(_READERS), n=5, cutoff=0.5)
    raise UnknownArchitecture(names[0], tuple(near) or known_architectures(), source=f.source)


def _name(source: Source, outer: Mapping[str, object]) -> str:
    given = outer.get("_name_or_path")
    if isinstance(source, Mapping):
        return given if isinstance(given, str) else ""
    path = Path(source)
    return path.parent.name if path.name == "config.json" else path.name.removesuffix(".json")


def _weight_bytes(folder: Path | None) -> int:
    """Bytes of the safetensors files beside the config; 0 when there are none."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) if folder is not None else 0
