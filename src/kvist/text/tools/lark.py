"""Grammars in llguidance's dialect of Lark, for answers that must call a tool."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from kvist.text.tools.base import TokenId

_SPACING: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as chat templates write it, so that the next turn's prompt reads as the answer did."""


def text_or_token(marker: str, token_id: TokenId | None) -> str:
    """A marker in Lark: a control token by its id where the vocabulary has one of that name, else its text."""
    found = token_id(marker) if token_id is not None else None
    return json.dumps(marker) if found is None else f"<[{found}]>"


def call_rules(functions: Mapping[str, Any], head: str) -> list[str]:
    """Rules ``call`` and what it needs. ``head`` is the JSON text before the arguments, with ``%s`` for the name."""
    rules = ["call: " + " | ".join(f"call_{n}" for n in range(len(functions)))]
    for n, (name, schema) in enumerate(functions.items()):
        opening = json.dumps(head.replace("%s", json.dumps(name)))
        rules += [f'call_{n}: {opening} arguments_{n} "}}"', arguments_rule(n, schema)]
    return rules


def arguments_rule(n: int, schema: Mapping[str, Any]) -> str:
    """``arguments_n``: JSON of a schema, spaced as ``json.dumps`` does."""
    return f"arguments_{n}: %json {json.dumps({**schema, 'x-guidance': _SPACING})}"
