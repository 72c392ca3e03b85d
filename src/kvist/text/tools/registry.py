"""Names of tool-call formats to the files that hold them, imported when asked for."""

from __future__ import annotations

import importlib
from typing import Final

from kvist.errors import BadValue
from kvist.text.tools.base import ToolFormat
from kvist.text.tools.history import template_knows_tools

_FILES: Final = {
    "hermes": ("kvist.text.tools.hermes", "Hermes"),
    "llama3": ("kvist.text.tools.llama3", "Llama3"),
    "mistral": ("kvist.text.tools.mistral", "Mistral"),
}


def names() -> tuple[str, ...]:
    """What can be loaded."""
    return tuple(_FILES)


def load(name: str) -> ToolFormat:
    """The variant with its default knobs. Raises ``BadValue`` naming what exists."""
    if name not in _FILES:
        raise BadValue("tool_format", name, f"one of {', '.join(_FILES)}")
    module, kind = _FILES[name]
    variant: ToolFormat = getattr(importlib.import_module(module), kind)()
    return variant


def choose(template_source: str) -> str | None:
    """The format in which a chat template shows tool calls; None for one that no variant reads.

    A template that ignores tools gets ``hermes``: ``with_tools`` asks for that format.
    """
    if "[TOOL_CALLS]" in template_source:
        return "mistral"
    if "<|python_tag|>" in template_source or (
        "<|start_header_id|>" in template_source and '"parameters"' in template_source.replace("\\", "")
    ):
        return "llama3"
    if "<tool_call>" in template_source:
        return None if any(mark in template_source for mark in ("<function=", "<arg_key>")) else "hermes"
    return None if template_knows_tools(template_source) else "hermes"
