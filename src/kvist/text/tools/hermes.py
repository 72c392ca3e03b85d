"""``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``: Hermes, Qwen 2.5 and 3, Granite 4, SmolLM2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvist.text.tools.base import TokenId, Tool, ToolParser
from kvist.text.tools.functions import chosen, several
from kvist.text.tools.jsontext import Extent, call_in
from kvist.text.tools.lark import call_rules, text_or_token
from kvist.text.tools.reader import CallReader, Taken, before_marker

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"


@dataclass(frozen=True, slots=True)
class Hermes:
    """A call is JSON between two markers. Text may stand around calls."""

    name: str = "hermes"
    needs_special: bool = False

    def parser(self) -> ToolParser:
        """A new parser."""
        return CallReader(lambda text, _: before_marker(text, OPEN), _Look)

    def grammar(
        self,
        tools: Sequence[Tool],
        choice: str | Mapping[str, Any] | None,
        *,
        parallel: bool = True,
        token_id: TokenId | None = None,
    ) -> str | None:
        """As the contract says."""
        functions, many = chosen(tools, choice), several(choice, parallel=parallel)
        if not functions:
            return None
        head, tail = text_or_token(OPEN, token_id), text_or_token(CLOSE, token_id)
        one = f'{head} "\\n" call "\\n" {tail}'
        start = f'start: one ("\\n" one)*\none: {one}' if many else f"start: {one}"
        return "\n".join([start, *call_rules(functions, '{"name": %s, "arguments": ')])


class _Look:
    def __init__(self) -> None:
        self._extent = Extent()
        self._end: int | None = None

    def __call__(self, held: str, ended: bool) -> Taken | None:
        if not held.startswith(OPEN):
            return None if OPEN.startswith(held) else Taken(1)
        broken = Taken(len(OPEN))
        body = len(held) - len(held[len(OPEN) :].lstrip())
        if held[body : body + 1] not in ("{", ""):
            return broken
        self._end = self._end or self._extent.end(held, body)
        if self._end is None:
            return broken if self._extent.broken else None
        rest = held[self._end :].lstrip()
        if not rest.startswith(CLOSE) and not (CLOSE.startswith(rest) and ended):
            return None if CLOSE.startswith(rest) else broken
        call = call_in(held[body : self._end], ("arguments",))
        if call is None:
            return broken
        chars = len(held) - len(rest) + len(CLOSE)
        return Taken(min(chars, len(held)), (call,))
