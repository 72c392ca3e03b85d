"""``[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]``, or ``[TOOL_CALLS]name[ARGS]{...}`` since late 2024."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kvist.text.tools.base import TokenId, Tool, ToolParser
from kvist.text.tools.functions import chosen, several
from kvist.text.tools.jsontext import Extent, call_in, items, members
from kvist.text.tools.lark import arguments_rule, call_rules, text_or_token
from kvist.text.tools.reader import CallReader, Taken, before_marker

MARK: Final = "[TOOL_CALLS]"
ARGS: Final = "[ARGS]"
_HEAD: Final = re.compile(r"\s*([\w.\-]+)(?:\[CALL_ID\]\w+)?\[ARGS\]\s*")
_GROWING_HEAD: Final = re.compile(r"\s*[\w.\-]{0,256}(?:\[[\w\]]{0,64}(?:\[[A-Z\]]{0,6}\s*)?)?")


@dataclass(frozen=True, slots=True)
class Mistral:
    """A control token, then a list of calls or one named call. ``named`` chooses which of them the grammar asks for."""

    name: str = "mistral"
    needs_special: bool = True
    named: bool = False

    def parser(self) -> ToolParser:
        """A new parser; it reads both forms."""
        return CallReader(lambda text, _: before_marker(text, MARK), _Look)

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
        mark = text_or_token(MARK, token_id)
        if self.named:
            return self._named(mark, functions, many, token_id)
        listed = '"[" call (", " call)* "]"' if many else '"[" call "]"'
        rules = call_rules(functions, '{"name": %s, "arguments": ')
        return "\n".join([f"start: {mark} {listed}", *rules])

    def _named(self, mark: str, functions: Mapping[str, Any], many: bool, token_id: TokenId | None) -> str:
        args = text_or_token(ARGS, token_id)
        calls = [f'call_{n}: "{name}" {args} arguments_{n}' for n, name in enumerate(functions)]
        rules = [arguments_rule(n, schema) for n, schema in enumerate(functions.values())]
        some = " | ".join(f"call_{n}" for n in range(len(functions)))
        start = f"start: ({mark} call)+" if many else f"start: {mark} call"
        return "\n".join([start, f"call: {some}", *calls, *rules])


class _Look:
    def __init__(self) -> None:
        self._extent = Extent()

    def __call__(self, held: str, ended: bool) -> Taken | None:
        if not held.startswith(MARK):
            return None if MARK.startswith(held) else Taken(1)
        broken = Taken(len(MARK))
        head = _HEAD.match(held, len(MARK))
        body = head.end() if head else len(held) - len(held[len(MARK) :].lstrip())
        if body == len(held):
            return None
        if held[body] != ("{" if head else "["):
            growing = head is None and _GROWING_HEAD.fullmatch(held, len(MARK))
            return None if growing else broken
        end = self._extent.end(held, body)
        if end is None:
            return broken if self._extent.broken else None
        calls = _named_call(head[1], held[body:end]) if head else _listed_calls(held[body:end])
        return Taken(end, calls) if calls else broken


def _listed_calls(text: str) -> tuple[tuple[str, str], ...]:
    """Calls of a list; none where any of them is broken."""
    try:
        calls = [call_in(item, ("arguments",), ("id",)) for item in items(text)]
    except (ValueError, RecursionError):
        return ()
    whole = [call for call in calls if call is not None]
    return tuple(whole) if len(whole) == len(calls) else ()


def _named_call(name: str, text: str) -> tuple[tuple[str, str], ...]:
    try:
        members(text)
    except (ValueError, RecursionError):
        return ()
    return ((name, text),)
