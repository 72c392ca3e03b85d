"""JSON as models write it: found in growing text, and taken apart without changing a character."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

_SPACE: Final = " \t\n\r"


_BARE: Final = frozenset("{}[]:,+-. \t\n\r0123456789eEtrufalsn")
"""What may stand outside the texts of JSON."""


@dataclass(slots=True)
class Extent:
    """Finds where a JSON object or list ends in text that grows, looking at each character once."""

    broken: bool = False
    _at: int = 0
    _depth: int = 0
    _in_text: bool = False
    _escaped: bool = False

    def end(self, text: str, start: int) -> int | None:
        """Offset after the object or list that begins at ``start``; None while it goes on, or when it is ``broken``."""
        for at in range(max(self._at, start), len(text)):
            if self._closes(text[at]):
                self._at = at
                return at + 1
            if self.broken:
                return None
        self._at = len(text)
        return None

    def _closes(self, char: str) -> bool:
        if self._in_text:
            self._in_text = self._escaped or char != '"'
            self._escaped = char == "\\" and not self._escaped
            return False
        if char == '"':
            self._in_text = True
        elif char not in _BARE:
            self.broken = True
        self._depth += (char in "{[") - (char in "}]")
        return self._depth == 0


def members(text: str) -> dict[str, tuple[Any, str]]:
    """Fields of a JSON object: name -> (value, its text). Raises ``ValueError`` for anything else."""
    found, at = {}, _after(text, 0, "{")
    while not text.startswith("}", at):
        name, end = _value(text, at)
        start = _after(text, end, ":")
        value, end = _value(text, start)
        if not isinstance(name, str):
            raise ValueError(f"a name that is no text at {at}")
        found[name] = (value, text[start:end])
        at = _skip(text, end)
        if text.startswith(",", at):
            at = _skip(text, at + 1)
        elif not text.startswith("}", at):
            raise ValueError(f"no comma at {at}")
    if _skip(text, at + 1) != len(text):
        raise ValueError("text after the object")
    return found


def items(text: str) -> list[str]:
    """Texts of the values in a JSON list. Raises ``ValueError`` for anything else."""
    found, at = [], _after(text, 0, "[")
    while not text.startswith("]", at):
        _, end = _value(text, at)
        found.append(text[at:end])
        at = _skip(text, end)
        if text.startswith(",", at):
            at = _skip(text, at + 1)
        elif not text.startswith("]", at):
            raise ValueError(f"no comma at {at}")
    if _skip(text, at + 1) != len(text):
        raise ValueError("text after the list")
    return found


def call_in(text: str, arguments: tuple[str, ...], others: tuple[str, ...] = ()) -> tuple[str, str] | None:
    """(name, arguments as text) of one call object; None where ``text`` is no such object.

    ``arguments`` are the names that the arguments may have, ``others`` the further fields that are let pass. Arguments
    left out are ``{}``; those written as text that holds an object are unwrapped.
    """
    try:
        fields = members(text)
        name, _ = fields.get("name", (None, ""))
        found = [fields[key] for key in arguments if key in fields]
        value, spelled = found[0] if found else ({}, "{}")
        if isinstance(value, str):
            spelled = value
            value = {key: inner for key, (inner, _) in members(value).items()}
    except (ValueError, RecursionError):
        return None
    known = {"name", *arguments, *others}
    if not isinstance(name, str) or not name or not isinstance(value, dict) or len(found) > 1 or not known >= {*fields}:
        return None
    return name, spelled


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse)


def _value(text: str, at: int) -> tuple[Any, int]:
    return _DECODER.raw_decode(text, at)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _after(text: str, at: int, char: str) -> int:
    at = _skip(text, at)
    if not text.startswith(char, at):
        raise ValueError(f"no {char} at {at}")
    return _skip(text, at + 1)
