"""``{"name": ..., "parameters": {...}}`` as the whole answer, after ``<|python_tag|>`` or not: Llama 3.1 to 3.3."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvist.text.tools.base import TokenId, Tool, ToolParser
from kvist.text.tools.functions import chosen, several
from kvist.text.tools.jsontext import Extent, call_in
from kvist.text.tools.lark import call_rules
from kvist.text.tools.reader import CallReader, Taken, before_marker

TAG: Final = "<|python_tag|>"
_FIELDS: Final = ("name", "parameters", "arguments", "type")
_LEAD: Final = re.compile(rf"(?:{re.escape(TAG)}|;)?\s*")
_FIRST_FIELD: Final = re.compile(r'\{\s*"([^"\\]*["\\])')


@dataclass(frozen=True, slots=True)
class Llama3:
    """A call begins the answer or follows the tag; several are separated by semicolons. Other JSON is content."""

    name: str = "llama3"
    needs_special: bool = True

    def parser(self) -> ToolParser:
        """A new parser."""
        return CallReader(_begin, _Look)

    def grammar(
        self,
        tools: Sequence[Tool],
        choice: str | Mapping[str, Any] | None,
        *,
        parallel: bool = True,
        token_id: TokenId | None = None,
    ) -> str | None:
        """As the contract says; the tag is left out."""
        functions, many = chosen(tools, choice), several(choice, parallel=parallel)
        if not functions:
            return None
        start = 'start: call ("; " call)*' if many else "start: call"
        return "\n".join([start, *call_rules(functions, '{"name": %s, "parameters": ')])


def _begin(text: str, at_start: bool) -> int:
    if at_start:
        spaces = len(text) - len(text.lstrip())
        if text[spaces : spaces + 1] in ("{", ";", ""):
            return spaces
    return before_marker(text, TAG)


class _Look:
    def __init__(self) -> None:
        self._extent = Extent()

    def __call__(self, held: str, ended: bool) -> Taken | None:
        if TAG.startswith(held) and held != TAG:
            return None
        lead = _LEAD.match(held)
        body = lead.end() if lead else 0
        if body == len(held):
            return None
        broken = Taken(max(body, 1))
        first = _FIRST_FIELD.match(held, body)
        if held[body] != "{" or (first and first[1][:-1] not in _FIELDS):
            return broken
        end = self._extent.end(held, body)
        if end is None:
            return broken if self._extent.broken else None
        call = call_in(held[body:end], ("parameters", "arguments"), ("type",))
        return broken if call is None else Taken(end, (call,))
