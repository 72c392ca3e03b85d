"""Models that come with kvist: derived numbers only, so that planning needs neither a network nor a download.

``models.json`` holds one packed ``ModelSpec`` per distinct model; names that mean the same shape in another weight
format point at it. ``docs/regenerate_catalogue.py`` writes it from configs. Every entry says where its model is
published, where the numbers were read and when.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from kvist.errors import BadValue, CorruptFile
from kvist.spec.model import ModelSpec
from kvist.spec.pack import unpack

DATA: Final = Path(__file__).with_name("models.json")
FORMAT: Final = 1

Evidence = Literal["config", "facts", "log"]
"""``config``: a published config, read in full. ``facts``: published numbers about the shape. ``log``: numbers that a
program printed about the model; the spec is then good for memory only."""

_LOOSE: Final = {"instruct", "it", "hf", "chat", "base", "meta", "pt", "preview", "model", "the"}
"""Words of a name that rarely change the shape: left out when nothing matches to the letter."""

_REMEDY: Final = "install kvist again, or write the file anew with docs/regenerate_catalogue.py"


@dataclass(frozen=True, slots=True)
class Entry:
    """One bundled model. ``weights_format`` is text for ``WeightFormat.parse``, empty when unknown.

    ``tower_elements`` counts weights beside the decoder (vision, audio) that a server loads with it, ``elements`` all
    weights as published, where the spec is too thin to count them (0 elsewhere). ``source`` says where the model is
    published and where its numbers were read, ``date`` when.
    """

    name: str
    spec: ModelSpec
    weights_format: str
    source: str
    date: str
    evidence: Evidence = "config"
    tower_elements: int = 0
    elements: int = 0


@dataclass(frozen=True, slots=True)
class _Row:
    """One name, its spec still packed."""

    name: str
    packed: Mapping[str, object]
    weights_format: str
    source: str
    date: str
    evidence: Evidence
    tower_elements: int
    elements: int


Key = Callable[[str], tuple[str, ...]]
"""What of a name counts when names are compared, as words."""


def names() -> tuple[str, ...]:
    """Every bundled name, in the catalogue's order."""
    return tuple(_rows())


def spec_named(name: str) -> Entry:
    """The bundled model of that name; ``org/``, case and punctuation are optional, and so are words like ``Instruct``.

    The first way of comparing that finds anything decides: the whole id, the name without its ``org/``, the name
    without words that rarely matter, its first words. Of names for one shape in several weight formats the widest is
    meant. Raises ``BadValue``: with the candidates when models that differ match equally well, with the nearest names
    when none does.
    """
    found = candidates(name)
    rows = _rows()
    if found and all(rows[one].packed == rows[found[0]].packed for one in found):
        return _entry(found[0])
    if found:
        raise BadValue("model", name, "the name of one model", remedy=f"several match, write one: {', '.join(found)}")
    near, shown = nearest(name), name if len(name) <= 100 else name[:97] + "..."
    hint = f"the nearest names are {', '.join(near)}" if near else "no bundled name is like it"
    raise BadValue("model", shown, f"one of the {len(_rows())} bundled models", remedy=hint)


def spec_described(text: str) -> ModelSpec:
    """The bundled model that a line of text means: its name, and where several match the layers and widths it states.

    ``Laguna (48-layer hybrid, n_embd_k_gqa 1024)`` picks the one of that family with 48 layers and 1,024 elements of K
    a token. Raises ``BadValue`` as ``spec_named`` does.
    """
    name = re.split(r"\s*[(\[+,;]", text.strip())[0]
    found = [spec_named(one).spec for one in candidates(name)]
    layers, width = re.search(r"(\d+)[- ]layers?\b", text), re.search(r"n_embd_k_gqa\W+(\d+)", text)
    if layers:
        found = [spec for spec in found if len(spec.layers) == int(layers[1])]
    if width:
        found = [spec for spec in found if any(x.kv_heads * x.key_dim == int(width[1]) for x in spec.layers)]
    if found and all(replace(spec, name="") == replace(found[0], name="") for spec in found):
        return found[0]
    return spec_named(name).spec


def candidates(name: str) -> tuple[str, ...]:
    """Bundled names that ``spec_named`` would choose from, one for each shape and weight format."""
    for key in (_whole, _bare, _loose, _first_words):
        found = _distinct(_matching(key, name))
        if found:
            return tuple(row.name for row in found)
    return ()


def same_model(model_id: str) -> Entry | None:
    """The bundled model of exactly that id, or of that name under another ``org/``; None when there is none."""
    found = _matching(_whole, model_id) or _matching(_bare, model_id)
    return _entry(found[0].name) if found else None


def nearest(name: str, n: int = 5) -> tuple[str, ...]:
    """Bundled names that look like ``name``, the likest first; empty when none does."""
    known = {"".join(key(row)): row for row in reversed(names()) for key in (_loose, _bare)}
    found = get_close_matches("".join(_bare(name))[:200], list(known), n=3 * n, cutoff=0.6)
    return tuple(dict.fromkeys(known[key] for key in found))[:n]


def _words(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"[a-z0-9]+", text.lower()))


def _whole(name: str) -> tuple[str, ...]:
    return ("".join(_words(name)),) if "/" in name else ()


def _bare(name: str) -> tuple[str, ...]:
    return ("".join(_words(name.rpartition("/")[2])),)


def _loose(name: str) -> tuple[str, ...]:
    return ("".join(word for word in _words(name.rpartition("/")[2]) if word not in _LOOSE),)


def _first_words(name: str) -> tuple[str, ...]:
    return tuple(word for word in _words(name.rpartition("/")[2]) if word not in _LOOSE)


def _matching(key: Key, name: str) -> list[_Row]:
    asked = key(name)
    return [row for known, row in _rows().items() if any(asked) and key(known)[: len(asked)] == asked]


def _distinct(rows: list[_Row]) -> list[_Row]:
    """One row for each shape and weight format among them."""
    kept: list[_Row] = []
    for row in rows:
        if not any(row.packed == other.packed and row.weights_format == other.weights_format for other in kept):
            kept.append(row)
    return kept


@cache
def _entry(name: str) -> Entry:
    row = _rows()[name]
    spec = replace(unpack(row.packed, source=f"{DATA.name}: {name}"), name=name)
    extra = (row.tower_elements, row.elements)
    return Entry(name, spec, row.weights_format, row.source, row.date, row.evidence, *extra)


@cache
def _rows() -> dict[str, _Row]:
    return rows_of(DATA.read_bytes(), DATA.name)


def rows_of(text: bytes, label: str) -> dict[str, _Row]:
    """Names and packed specs of a catalogue file. Raises ``CorruptFile`` for anything else."""
    try:
        data = json.loads(text)
        if data["format"] != FORMAT:
            raise CorruptFile(f"{label} has format {data['format']!r}, {FORMAT} is read", remedy=_REMEDY)
        rows: dict[str, _Row] = {}
        for model in data["models"]:
            for one in (model, *model.get("also", ())):
                rows[str(one["name"])] = _row({**model, **one}, str(data["date"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptFile(f"{label} is not a catalogue of models: {error!r}", remedy=_REMEDY) from error
    return rows


def _row(one: Mapping[str, Any], date: str) -> _Row:
    return _Row(
        name=str(one["name"]),
        packed=one["spec"],
        weights_format=str(one["weights"]),
        source=str(one["source"]),
        date=str(one.get("date", date)),
        evidence=one.get("evidence", "config"),
        tower_elements=int(one.get("tower", 0)),
        elements=int(one.get("elements", 0)),
    )
