"""The functions that a request offers, and which of them must be called."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kvist.errors import BadValue
from kvist.text.tools.base import Tool

SHAPE: Final = 'an object such as {"type": "function", "function": {"name": "...", "parameters": {...}}}'
_NAME: Final = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


def functions_of(tools: Any, where: str = "tools") -> dict[str, dict[str, Any]]:
    """Name -> JSON schema of the parameters. Raises ``BadValue`` naming the tool that is malformed or named twice."""
    if not isinstance(tools, Sequence) or isinstance(tools, (str, bytes)):
        raise BadValue(where, type(tools).__name__, "a list of tools")
    found: dict[str, dict[str, Any]] = {}
    for n, tool in enumerate(tools):
        at = f"{where}[{n}]"
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or tool.get("type", "function") != "function":
            raise BadValue(
                at, type(tool).__name__, '{"type": "function", "function": {"name": ..., "parameters": ...}}'
            )
        name, schema = function.get("name"), function.get("parameters")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise BadValue(f"{at}.function.name", name, "1 to 64 letters, digits, '_', '-' and '.'")
        if name in found:
            raise BadValue(f"{at}.function.name", name, "a name of its own")
        if schema is not None and not isinstance(schema, Mapping):
            raise BadValue(f"{at}.function.parameters", type(schema).__name__, "a JSON schema")
        found[name] = {"type": "object", **(schema or {})}
    return found


def chosen(tools: Sequence[Tool], choice: str | Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """The functions of which one must be called; none for ``auto``, ``none`` and None. Raises ``BadValue``."""
    functions = functions_of(tools)
    if choice in (None, "auto", "none"):
        return {}
    if choice == "required":
        if not functions:
            raise BadValue("tool_choice", choice, "tools to choose from", remedy="send tools, or leave tool_choice out")
        return functions
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if name not in functions:
        known = ", ".join(functions) or "(no tools were sent)"
        raise BadValue("tool_choice", name or choice, f"auto, none, required, or one function of {known}")
    return {name: functions[name]}


def several(choice: str | Mapping[str, Any] | None, *, parallel: bool) -> bool:
    """Whether an answer may hold more than one call: a function that is named is called exactly once."""
    return parallel and not isinstance(choice, Mapping)
