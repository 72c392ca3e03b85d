"""From what a person writes as MODEL to a ``ModelSpec`` and what its weights weigh.

Looked at in this order: an existing file or folder, the Hugging Face cache of this machine, the bundled catalogue, the
hub. Nothing is ever guessed: what is not found is refused with where was looked and the nearest names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from kvist.errors import BadValue, CorruptFile, ModelError
from kvist.planner.models.catalogue import Entry, candidates, names, nearest, same_model, spec_named
from kvist.planner.models.hub import Remote, ask_hub, cache_folder, cached_snapshot, is_id
from kvist.planner.models.towers import tower_elements
from kvist.planner.weights.facts import (
    WeightFacts,
    WeightFormat,
    assumed_weights,
    unknown_method,
    weight_format_of,
    weights_at,
)
from kvist.spec.hf import read_config, read_object, read_shape
from kvist.spec.model import ModelSpec
from kvist.spec.read import locate, read_spec


@dataclass(frozen=True, slots=True)
class Found:
    """A model: its spec, where it came from, what its weights weigh, and what a reader should know."""

    spec: ModelSpec
    origin: str
    weights: WeightFacts
    notes: tuple[str, ...] = ()

    @property
    def weight_format(self) -> WeightFormat:
        """Number format of the weights, as published."""
        return self.weights.format


def find(model: str, *, online: bool = True, shape_only: bool = False) -> Found:
    """The model that ``model`` names: a path, a Hugging Face id or a bundled name.

    ``online`` allows asking the hub, last of all. ``shape_only`` accepts a description of the cache's shape where a
    path holds no full config. Raises ``BadValue`` when nothing is found, ``ModelError`` for files that cannot be used.
    """
    text = model.strip()
    if _exists(text):
        return _at(Path(text).expanduser(), shape_only=shape_only)
    if _looks_like_a_path(text):
        raise BadValue("model", model, "an existing folder, config.json or GGUF file", remedy="check the path")
    snapshot = cached_snapshot(text)
    if snapshot is not None:
        found = _at(snapshot, shape_only=shape_only)
        return replace(found, spec=replace(found.spec, name=text), origin=f"Hugging Face cache: {snapshot}")
    if not is_id(text):
        return _bundled(text)
    entry = same_model(text)
    if entry is not None and entry.name.lower() == text.lower():
        return _from_entry(entry)
    remote = ask_hub(text) if online else Remote(why="offline: the hub was not asked")
    if remote.config is not None:
        return _from_hub(text, remote, shape_only=shape_only)
    if entry is None:
        raise _nothing(text, remote.why)
    found = _from_entry(entry)
    note = f"{text} itself was not found ({remote.why}); this is the bundled model of the same name"
    return replace(found, notes=(note, *found.notes))


def _exists(text: str) -> bool:
    try:
        return bool(text) and Path(text).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, an unknown user
        return False


def _looks_like_a_path(text: str) -> bool:
    """A leading dot, slash or tilde, more than one slash, or a file's suffix."""
    return text.startswith((".", "/", "~")) or text.count("/") > 1 or text.endswith((".json", ".gguf", ".safetensors"))


def _at(path: Path, *, shape_only: bool) -> Found:
    place = locate(path.parent if path.suffix == ".safetensors" else path)
    if place.suffix == ".gguf":
        spec = read_spec(place)
        facts = weights_at(place, spec)
        return Found(spec, f"GGUF file: {place}", facts or assumed_weights(spec, WeightFormat()), spec.notes)
    folder = place if place.is_dir() else place.parent
    config = read_object(place / "config.json" if place.is_dir() else place)
    quantised = folder / "hf_quant_config.json"
    beside = read_object(quantised) if quantised.is_file() else None
    alone = place.is_file() and place.name != "config.json"
    spec = _described(config, place.stem if alone else folder.resolve().name, shape_only=shape_only)
    facts = None if alone else weights_at(folder, spec)
    if facts is None:
        facts = _facts_of(config, beside, spec)
    else:
        spec = replace(spec, weight_bytes=facts.total_bytes)
    notes = (*spec.notes, *_doubts(config, beside), *_named_otherwise(spec.name, facts))
    return Found(spec, f"{'folder' if place.is_dir() else 'config'}: {place}", facts, notes)


def _described(config: Mapping[str, object], name: str, *, shape_only: bool) -> ModelSpec:
    """The full description; with ``shape_only``, the cache's shape where there is no more."""
    try:
        return read_config(config, name=name)
    except ModelError:
        if not shape_only:
            raise
        return read_shape(config, name=name)


def _facts_of(config: Mapping[str, object], beside: Mapping[str, object] | None, spec: ModelSpec) -> WeightFacts:
    return assumed_weights(spec, weight_format_of(config, beside, spec), beside_elements=tower_elements(config))


_DTYPES: Final = ("float32", "float16", "bfloat16", "float", "half", "float8_e4m3fn", "auto", "fp32", "fp16", "bf16")


def _doubts(config: Mapping[str, object], beside: Mapping[str, object] | None) -> tuple[str, ...]:
    said: list[str] = []
    for place in (config, config.get("text_config")):
        kind = place.get("torch_dtype", place.get("dtype")) if isinstance(place, Mapping) else None
        if kind is not None and str(kind).removeprefix("torch.") not in _DTYPES:
            said.append(f"the config's torch_dtype {str(kind)[:40]!r} is not known: weights are counted in 16 bit")
    packed = config.get("quantization_config")
    if packed is not None and not isinstance(packed, Mapping):
        raise CorruptFile(
            f"quantization_config is a {type(packed).__name__}, not an object", remedy="fetch the config again"
        )
    method = unknown_method(config, beside)
    if method:
        said.append(f"weights are packed by {method!r}, which is not known here: counted as 8 bits each")
    return tuple(said)


_PACKED_NAMES: Final = re.compile(r"nvfp4|mxfp4|fp8|awq|gptq|int[48]|w[48]a(?:8|16)|[48]bit|bnb", re.IGNORECASE)


def _named_otherwise(name: str, facts: WeightFacts) -> tuple[str, ...]:
    """A model whose name promises packed weights that its config says nothing of: counted as the config has it."""
    said = _PACKED_NAMES.search(name)
    if said is None or facts.tag != "assumed" or facts.format.bits_per_weight.best < 16:
        return ()
    counted = f"weights are counted as {facts.format.text} (see --weights)"
    return (f"the name says {said[0]}, the config does not: {counted}",)


def _bundled(text: str) -> Found:
    if not candidates(text):
        raise _nothing(text, "")
    return _from_entry(spec_named(text))


def _from_entry(entry: Entry) -> Found:
    fmt = WeightFormat.parse(entry.weights_format)
    facts = assumed_weights(entry.spec, fmt, beside_elements=entry.tower_elements, elements=entry.elements)
    how = {"config": "", "facts": " (published facts)", "log": " (derived from a printed log)"}[entry.evidence]
    origin = f"bundled with kvist: {entry.name}{how}, {entry.source}, {entry.date}"
    return Found(entry.spec, origin, facts, entry.spec.notes)


def _from_hub(text: str, remote: Remote, *, shape_only: bool) -> Found:
    assert remote.config is not None
    spec = _described(remote.config, text, shape_only=shape_only)
    facts = _facts_of(remote.config, remote.quantisation, spec)
    if remote.total_bytes:
        facts = replace(facts, total_bytes=remote.total_bytes, tag="exact", how=remote.how)
    notes = (*spec.notes, *_doubts(remote.config, remote.quantisation))
    return Found(spec, f"Hugging Face hub: {text}", facts, notes)


def _nothing(text: str, why: str) -> BadValue:
    """The error that says where was looked and what is near."""
    looked = f"no file of that name, nothing in {cache_folder()}, not among the {len(names())} bundled models"
    near = nearest(text)
    hint = f"near it: {', '.join(near)}" if near else "docs/catalogue.md lists the bundled ones"
    shown = text if len(text) <= 100 else text[:97] + "..."
    asked = f"; {why}" if why else ""
    return BadValue("model", shown, "a folder, config.json, GGUF file, Hugging Face id or bundled name",
                    remedy=f"{looked}{asked}; {hint}")  # fmt: skip
