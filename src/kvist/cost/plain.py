"""Frozen dataclasses as plain JSON and back, strictly: a field too many, too few or of the wrong kind is refused."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar

from kvist.errors import UsageError

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Dicts, lists, strings, numbers and None."""
    if is_dataclass(value):
        return {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, tuple) else value


def from_plain(kind: type[T], plain: object, where: str = "the record") -> T:
    """Rebuild ``kind``. Raises ``UsageError`` naming the place that does not fit; numbers are finite."""
    return typing.cast(T, _rebuild(kind, plain, where))


def _rebuild(kind: Any, plain: Any, where: str) -> Any:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind):
        return _rebuild_fields(typing.cast(type, kind), plain, where)
    if origin is tuple:
        return _rebuild_tuple(args, plain, where)
    if origin is typing.Literal:
        if plain not in args:
            raise _unfit(where, f"one of {', '.join(map(str, args))}", plain)
        return plain
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(plain, dict):
            raise _unfit(where, "an object", plain)
        return {key: _rebuild(args[1], item, f"{where}.{key}") for key, item in plain.items()}
    return _rebuild_scalar(kind, plain, where)


def _rebuild_fields(kind: type, plain: Any, where: str) -> Any:
    if not isinstance(plain, dict):
        raise _unfit(where, "an object", plain)
    hints = typing.get_type_hints(kind)
    named = {f.name: f for f in fields(kind)}
    extra = sorted(set(plain) - set(named))
    needed = {n for n, f in named.items() if f.default is MISSING and f.default_factory is MISSING}
    lacking = sorted(needed - set(plain))
    if extra or lacking:
        what = f"lacks {', '.join(lacking)}" if lacking else f"has unknown fields: {', '.join(extra)}"
        raise UsageError(f"{where} {what}", remedy="measure the machine again with this version of kvist")
    given = {name: _rebuild(hints[name], item, f"{where}.{name}") for name, item in plain.items()}
    try:
        return kind(**given)
    except AssertionError as error:  # a class's own check of numbers that belong together
        raise UsageError(f"{where} contradicts itself ({error})", remedy="measure the machine again") from error


def _rebuild_tuple(args: tuple[Any, ...], plain: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(plain, list):
        raise _unfit(where, "a list", plain)
    kinds = [args[0]] * len(plain) if len(args) == 2 and args[1] is Ellipsis else list(args)
    if len(kinds) != len(plain):
        raise _unfit(where, f"{len(kinds)} entries", plain)
    return tuple(_rebuild(k, item, f"{where}[{i}]") for i, (k, item) in enumerate(zip(kinds, plain, strict=True)))


def _rebuild_scalar(kind: Any, plain: Any, where: str) -> Any:
    if kind is float and type(plain) in (int, float) and math.isfinite(plain):
        return float(plain)
    if kind in (int, str, bool) and type(plain) is kind:
        return plain
    raise _unfit(where, {float: "a finite number", int: "a whole number", str: "a string"}.get(kind, str(kind)), plain)


def _unfit(where: str, expected: str, found: object) -> UsageError:
    shown = repr(found)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    return UsageError(f"{where} is {shown}: expected {expected}", remedy="measure the machine again")
