"""The JSON schema of a report, made from the report's own types, so that it cannot lag behind them."""

from __future__ import annotations

import types
import typing
from dataclasses import fields, is_dataclass
from typing import Any, Final

from kvist.bench.report import FORMAT, Report

_PLAIN: Final[dict[Any, str]] = {bool: "boolean", int: "integer", float: "number", str: "string"}


def schema() -> dict[str, Any]:
    """JSON Schema 2020-12. ``details`` is there only when asked for."""
    whole = _of(Report)
    whole["properties"] = {"format": {"const": FORMAT}, **whole["properties"]}
    whole["required"] = ["format", *(name for name in whole["required"] if name != "details")]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "kvist bench", **whole}


def _of(kind: Any) -> dict[str, Any]:
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if kind is Any:
        return {}
    if kind is type(None):
        return {"type": "null"}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_of(a) for a in arguments]}
    if origin is tuple:
        return {"type": "array", "items": _of(arguments[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _of(arguments[1])}
    assert is_dataclass(kind), kind
    hints = typing.get_type_hints(kind)
    return {
        "type": "object",
        "properties": {f.name: _of(hints[f.name]) for f in fields(kind)},
        "required": [f.name for f in fields(kind)],
        "additionalProperties": False,
    }
