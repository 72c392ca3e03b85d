"""A ``ModelSpec`` as small JSON-able data and back, without loss.

Equal layers are written once and the stack as runs: ``[3, 0, 0, 1]`` is "kinds 0, 0, 1, three times over". What equals
a field's default is left out, so a default that changes needs a new ``VERSION``. ``unpack`` believes nothing: names,
types, ranges and sizes are checked before a spec is built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from functools import cache
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from kvist.errors import CorruptFile, MissingField, ModelError
from kvist.spec.layer import LayerSpec
from kvist.spec.mixer import Chunked, Compressed, Full, Latent, NoMixer, Recurrent, Shared, Window
from kvist.spec.model import ModelSpec

VERSION: Final = 1
MAX_LAYERS: Final = 4096
MAX_CYCLE: Final = 64
_MAX_INT: Final = 1 << 60
_MAX_ITEMS: Final = 65_536
_SIGNED: Final = ("extra_elements",)
"""Whole numbers that may be negative: corrections to a count."""

_MIXERS: Final = {
    cls.__name__.lower(): cls for cls in (Full, Window, Chunked, Latent, Compressed, Recurrent, Shared, NoMixer)
}
_REMEDY: Final = "the data is damaged or of another version: write it again"


def pack(spec: ModelSpec) -> dict[str, object]:
    """The spec as dicts, lists, numbers and strings. ``unpack`` gives back an equal spec.

    Layers must be numbered without gaps, as every reader and ``shard`` number them.
    """
    first = spec.layers[0].index if spec.layers else 0
    assert [x.index for x in spec.layers] == list(range(first, first + len(spec.layers))), "layers have gaps"
    kinds: dict[LayerSpec, int] = {}
    order = [kinds.setdefault(replace(x, index=0), len(kinds)) for x in spec.layers]
    out: dict[str, object] = {"version": VERSION, **_plain(replace(spec, layers=()))}
    out["kinds"] = [{k: v for k, v in _plain(kind).items() if k != "index"} for kind in kinds]
    out["runs"] = _runs(order)
    if first:
        out["first"] = first
    del out["layers"]
    return out


def unpack(data: object, *, source: str = "packed spec") -> ModelSpec:
    """The spec that ``pack`` wrote. Raises ``MissingField`` or ``CorruptFile`` naming ``source`` and the place."""
    raw = _mapping(data, source)
    _require(raw, ("version", "kinds", "runs"), source)
    if raw["version"] != VERSION:
        raise CorruptFile(f"{source}: version {_shown(raw['version'])} is not read, {VERSION} is", remedy=_REMEDY)
    first = _integer(raw.get("first", 0), f"{source}.first")
    kinds = [
        _build(LayerSpec, {**_mapping(kind, f"{source}.kinds"), "index": 0}, f"{source}.kinds[{i}]")
        for i, kind in enumerate(_list(raw["kinds"], f"{source}.kinds", MAX_LAYERS))
    ]
    order = _order(raw["runs"], len(kinds), f"{source}.runs")
    layers = tuple(replace(kinds[kind], index=first + i) for i, kind in enumerate(order))
    for x in layers:
        if isinstance(x.mixer, Shared) and not first <= x.mixer.with_layer < x.index:
            raise _bad(f"{source}: layer {x.index} with_layer", x.mixer.with_layer, "an earlier layer")
    rest = {k: v for k, v in raw.items() if k not in ("version", "kinds", "runs", "first", "layers")}
    spec: ModelSpec = _build(ModelSpec, {**rest, "layers": []}, source)
    return replace(spec, layers=layers)


def _plain(value: Any) -> Any:
    """A dataclass as a dict without defaults (a mixer with its name under ``is``); a tuple as a list."""
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if not is_dataclass(value):
        return value
    named = {"is": type(value).__name__.lower()} if type(value).__name__.lower() in _MIXERS else {}
    given = {f.name: getattr(value, f.name) for f in fields(value)}
    kept = {f.name: _plain(given[f.name]) for f in fields(value) if not _is_default(f, given[f.name])}
    return {**named, **kept}


def _is_default(f: Field[Any], value: Any) -> bool:
    if f.default_factory is not MISSING:
        return bool(value == f.default_factory())
    return f.default is not MISSING and bool(value == f.default) and type(value) is type(f.default)


def _runs(order: list[int]) -> list[list[int]]:
    """``[times, kind, kind...]``: at every place the cycle that covers most, the shortest one if several do."""
    runs: list[list[int]] = []
    at = 0
    while at < len(order):
        best = (1, 1)
        for size in range(1, min(MAX_CYCLE, len(order) - at) + 1):
            times = 1
            while order[at + times * size : at + (times + 1) * size] == order[at : at + size]:
                times += 1
            if (times > 1 or size == 1) and times * size > best[0] * best[1]:
                best = (times, size)
        runs.append([best[0], *order[at : at + best[1]]])
        at += best[0] * best[1]
    return runs


def _order(data: object, n_kinds: int, where: str) -> list[int]:
    order: list[int] = []
    for run in _list(data, where, MAX_LAYERS):
        numbers = [_integer(n, where) for n in _list(run, where, MAX_CYCLE + 1)]
        if len(numbers) < 2 or not all(n < n_kinds for n in numbers[1:]):
            raise _bad(where, run, f"a count and kinds below {n_kinds}")
        if len(order) + numbers[0] * (len(numbers) - 1) > MAX_LAYERS:
            raise _bad(where, run, f"at most {MAX_LAYERS} layers in all")
        order += numbers[1:] * numbers[0]
    return order


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _build(cls: Callable[..., Any], data: object, where: str) -> Any:
    """A dataclass from a dict: no unknown names, no absent ones, every value of its field's type."""
    assert isinstance(cls, type)
    raw, hints = _mapping(data, where), _hints(cls)
    unknown = [k for k in raw if k not in hints]
    if unknown:
        raise _bad(where, unknown[0], f"a field of {cls.__name__}")
    needed = [f.name for f in fields(cls) if f.default is MISSING and f.default_factory is MISSING]
    _require(raw, needed, where)
    values = {name: _value(hints[name], value, f"{where}.{name}") for name, value in raw.items()}
    try:
        return cls(**values)
    except CorruptFile:
        raise
    except ModelError as error:
        raise CorruptFile(f"{where}: {error.what}", remedy=_REMEDY) from error


def _value(hint: Any, value: object, where: str) -> Any:
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if value is None and type(None) in options:
        return None
    if any(option in _MIXERS.values() for option in options):
        raw = dict(_mapping(value, where))
        kind = raw.pop("is", None)
        if not isinstance(kind, str) or kind not in _MIXERS:
            raise _bad(f"{where}.is", kind, f"one of {', '.join(_MIXERS)}")
        return _build(_MIXERS[kind], raw, where)
    inner: Any = next(option for option in options if option is not type(None))
    if get_origin(inner) is tuple:
        items = _list(value, where, _MAX_ITEMS)
        return tuple(_value(get_args(inner)[0], item, where) for item in items)
    if get_origin(inner) is Literal:
        if value not in get_args(inner):
            raise _bad(where, value, f"one of {', '.join(map(str, get_args(inner)))}")
        return value
    if isinstance(inner, type) and is_dataclass(inner):
        return _build(inner, value, where)
    return _scalar(inner, value, where)


def _scalar(kind: Any, value: object, where: str) -> Any:
    if kind is int:
        return _integer(value, where, low=-_MAX_INT if where.endswith(_SIGNED) else 0)
    if kind is float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise _bad(where, value, "a finite number")
        return float(value)
    if not isinstance(value, kind):
        raise _bad(where, value, "text" if kind is str else "true or false")
    return value


def _integer(value: object, where: str, *, low: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= _MAX_INT:
        raise _bad(where, value, f"a whole number from {low}")
    return value


def _mapping(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
        raise _bad(where, value, "an object")
    return value


def _list(value: object, where: str, most: int) -> list[Any]:
    if not isinstance(value, list | tuple) or len(value) > most:
        raise _bad(where, value, f"a list of at most {most:,}")
    return list(value)


def _require(raw: Mapping[str, object], names: Any, where: str) -> None:
    absent = tuple(name for name in names if name not in raw)
    if absent:
        raise MissingField(absent, source=where, remedy=_REMEDY)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."


def _bad(where: str, value: object, expected: str) -> CorruptFile:
    return CorruptFile(f"{where} = {_shown(value)} is not {expected}", remedy=_REMEDY)
