"""Which grammar an answer must fit: ``response_format``, or vLLM's fields for the same thing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from kvist.errors import BadValue
from kvist.server.openai.schema import Generation, StructuredOutputs
from kvist.server.served import Grammars, Served

Make = Callable[[Grammars], str]


async def grammar_of(ask: Generation, served: Served) -> str | None:
    """The grammar's text, not compiled yet; None for any text.

    Raises ``BadValue`` for one that is not sound, for two at once, and where nothing can be constrained.
    """
    found = _wanted(ask)
    if not found:
        return None
    if len(found) > 1:
        raise BadValue(found[1][0], "...", f"only one constraint, {found[0][0]} is there too")
    name, make = found[0]
    grammars = served.grammars
    if grammars is None:
        raise BadValue(name, "...", f"no constraint: {served.why_no_grammars}")
    return await asyncio.to_thread(make, grammars)


def _wanted(ask: Generation) -> list[tuple[str, Make]]:
    """(field, how to make its grammar) of every constraint that is asked for."""
    found = _structured(ask.structured_outputs) if ask.structured_outputs is not None else []
    if ask.guided_json is not None:
        found.append(("guided_json", _schema(ask.guided_json, "guided_json")))
    if ask.guided_regex is not None:
        found.append(("guided_regex", _regex(ask.guided_regex)))
    if ask.guided_choice is not None:
        found.append(("guided_choice", _choice(ask.guided_choice)))
    if ask.guided_grammar is not None:
        found.append(("guided_grammar", _lark(ask.guided_grammar)))
    form = ask.response_format
    if form is not None and form.type == "json_object":
        found.append(("response_format", _object if form.plain is None else _schema(form.plain, "response_format")))
    elif form is not None and form.type == "json_schema":
        if form.named is None or form.named.json_schema is None:
            raise BadValue("response_format.json_schema.schema", None, "a JSON schema")
        found.append(("response_format", _schema(form.named.json_schema, "response_format")))
    return found


def _structured(ask: StructuredOutputs) -> list[tuple[str, Make]]:
    where = "structured_outputs"
    found: list[tuple[str, Make]] = []
    if ask.json_schema is not None:
        found.append((f"{where}.json", _schema(ask.json_schema, f"{where}.json")))
    if ask.regex is not None:
        found.append((f"{where}.regex", _regex(ask.regex)))
    if ask.choice is not None:
        found.append((f"{where}.choice", _choice(ask.choice)))
    if ask.grammar is not None:
        found.append((f"{where}.grammar", _lark(ask.grammar)))
    if ask.json_object:
        found.append((f"{where}.json_object", _object))
    return found


def _object(grammars: Grammars) -> str:
    return grammars.json_object()


def _schema(given: dict[str, Any] | str, where: str) -> Make:
    schema = given
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError):
            raise BadValue(where, str(given)[:80], "a JSON schema, or its text") from None
    if not isinstance(schema, dict):
        raise BadValue(where, str(given)[:80], "a JSON schema that is an object")
    return lambda grammars: grammars.json_schema(schema)


def _regex(pattern: str) -> Make:
    return lambda grammars: grammars.regex(pattern)


def _lark(text: str) -> Make:
    return lambda grammars: grammars.lark(text)


def _choice(options: list[str]) -> Make:
    text = "start: " + " | ".join(json.dumps(option, ensure_ascii=False) for option in options)
    return lambda grammars: grammars.lark(text)
