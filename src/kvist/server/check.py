"""Reads what came as JSON by hand, so that a refusal names the very field. For every protocol."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final

from kvist.errors import BadValue
from kvist.server.served import Served
from kvist.text.plain import as_plain

MAX_TOOLS: Final = 1024
MAX_STOPS: Final = 16
MAX_STOP_CHARS: Final = 1024
_SHOWN: Final = 100
_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")


def bad(where: str, value: object, expected: str, *, remedy: str = "") -> BadValue:
    """A refusal that shows at most a hundred characters of what was given."""
    shown = value[:_SHOWN] if isinstance(value, str) else value
    if isinstance(value, (dict, list)):
        shown = type(value).__name__
    return BadValue(where, shown, expected, remedy=remedy)


def an_object(value: Any, where: str) -> dict[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise bad(where, value, "an object")
    return value


def a_list(value: Any, where: str, most: int) -> list[Any]:
    """A list of at most so many."""
    if not isinstance(value, list):
        raise bad(where, value, "a list")
    if len(value) > most:
        raise BadValue(where, f"{len(value)} entries", f"at most {most}")
    return value


def a_text(value: Any, where: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise bad(where, value, "a string")
    return value


def a_name(value: Any, where: str) -> str:
    """What a tool may be called."""
    if not isinstance(value, str) or not _TOOL_NAME.fullmatch(value):
        raise bad(where, value, "1 to 128 letters, digits, _ or -")
    return value


def stops(value: list[str] | None, where: str) -> tuple[str, ...]:
    """Stop strings within their limits."""
    for n, text in enumerate(a_list(value or [], where, MAX_STOPS)):
        if not 0 < len(text) <= MAX_STOP_CHARS:
            raise BadValue(f"{where}[{n}]", f"{len(text)} characters", f"1 to {MAX_STOP_CHARS} characters")
    return tuple(value or ())


def function_tool(tool: Mapping[str, Any], parameters: str, where: str) -> dict[str, Any]:
    """A function as OpenAI's chat protocol writes it; ``parameters`` is what this protocol calls the schema."""
    function: dict[str, Any] = {"name": a_name(tool.get("name"), f"{where}.name")}
    if tool.get("description") is not None:
        function["description"] = a_text(tool["description"], f"{where}.description")
    schema = tool.get(parameters)
    if schema is None:
        schema = {"type": "object", "properties": {}}
    function["parameters"] = as_plain(an_object(schema, f"{where}.{parameters}"), f"{where}.{parameters}")
    return {"type": "function", "function": function}


def distinct(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tools, if their names differ."""
    names: set[str] = set()
    for n, tool in enumerate(tools):
        name = tool["function"]["name"]
        if name in names:
            raise BadValue(f"tools[{n}].name", name, "another name for each tool")
        names.add(name)
    return tools


def chosen(name: Any, where: str) -> str:
    """A tool that must be called, by name."""
    tool: str = a_name(name, where)
    if tool in ("auto", "none", "required"):
        raise BadValue(where, tool, "a tool that is not called auto, none or required", remedy="rename the tool")
    return tool


def thinking(served: Served, on: bool, where: str, *, must: bool = True) -> dict[str, Any]:
    """What tells the template whether to let the model think. Raises ``BadValue`` where it ``must`` and cannot."""
    knows = served.template is not None and "enable_thinking" in served.template.source
    if knows:
        return {"enable_thinking": on}
    if on and must:
        what = "the template of the served model has no switch for thinking"
        raise BadValue(where, "on", "no thinking", remedy=f"leave it out: {what}")
    return {}


async def json_grammar(served: Served, schema: Mapping[str, Any] | None, where: str) -> str:
    """The grammar of JSON that fits ``schema`` (None: any object). Made on a worker thread: schemas may be large."""
    grammars = served.grammars
    if grammars is None:
        what = "answers cannot be constrained here: llguidance is not installed"
        raise BadValue(where, "json", "no format", remedy=f"{what}; pip install 'kvist[server]'")
    if schema is None:
        return grammars.json_object()
    return await asyncio.to_thread(grammars.json_schema, as_plain(schema, where))
