"""Walks through messages that came as JSON: copies, lists and marks their texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kvist.errors import BadValue

MAX_DEPTH: Final = 100
"""Objects and lists within each other: more than any schema has, and less than Python can walk through."""


def listed(value: Any, where: str) -> Iterable[Any]:
    """``value`` itself. Raises ``BadValue`` unless it is a list (or another iterable of objects)."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise BadValue(where, type(value).__name__, "a list of objects")
    return value


def as_plain(value: Any, where: str, depth: int = 0) -> Any:
    """A copy made of plain JSON types, so that no object's methods are within a template's reach."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if depth > MAX_DEPTH:
        raise _too_deep()
    if isinstance(value, Mapping):
        return {as_plain(key, where): as_plain(item, f"{where}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_plain(item, f"{where}[{n}]", depth + 1) for n, item in enumerate(value)]
    raise BadValue(where, type(value).__name__, "text, number, true, false, null, list or object")


def exceeds(value: Any, most_chars: int) -> bool:
    """Whether texts in ``value`` have more characters, a thing that is no text counted for one. Stops at the bound."""
    left, stack = most_chars, [value]
    while stack and left >= 0:
        item = stack.pop()
        size = len(item) if isinstance(item, (str, Mapping, list, tuple)) else 0
        left -= size + 1
        if left >= 0 and isinstance(item, Mapping):
            stack += item.keys()
            stack += item.values()
        elif left >= 0 and isinstance(item, (list, tuple)):
            stack += item
    return left < 0


def strings(value: Any, depth: int = 0) -> Iterable[str]:
    """Every text in ``value``, names of fields included."""
    if isinstance(value, str):
        yield value
        return
    if depth > MAX_DEPTH + 2 and isinstance(value, (Mapping, list, tuple)):
        raise _too_deep()
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings(key)
            yield from strings(item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings(item, depth + 1)


def marked(value: Any, mark: Callable[[str], str]) -> Any:
    """A copy in which every text went through ``mark``."""
    if isinstance(value, str):
        return mark(value)
    if isinstance(value, Mapping):
        return {marked(key, mark): marked(item, mark) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [marked(item, mark) for item in value]
    return value


def _too_deep() -> BadValue:
    what = f"at most {MAX_DEPTH} objects and lists within each other"
    return BadValue("messages", "...", what, remedy="flatten what is nested so deeply")


def refuse_surrogates(text: str) -> None:
    """Raises ``BadValue`` for lone surrogates: they are no text."""
    if not isinstance(text, str):
        raise BadValue("text", type(text).__name__, "a str", remedy="decode bytes first, with errors='replace'")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        around = text[max(0, error.start - 8) : error.start + 8]
        raise BadValue(
            "text",
            around,
            f"no lone surrogates, found U+{ord(text[error.start]):04X} at character {error.start}",
            remedy="decode the bytes with errors='replace', not 'surrogateescape'",
        ) from None
