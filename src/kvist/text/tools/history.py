"""Tools and tool calls in messages, for templates that know them and for those that do not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kvist.errors import BadValue, CorruptFile
from kvist.text.chat import Message
from kvist.text.parts import joined
from kvist.text.plain import as_plain, listed
from kvist.text.tools.base import Tool
from kvist.text.tools.functions import functions_of

_ASK: Final = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def template_knows_tools(source: str) -> bool:
    """Whether a chat template reads the variable ``tools``. Raises ``CorruptFile`` for one that is no template."""
    from jinja2 import Environment
    from jinja2.exceptions import TemplateSyntaxError

    try:
        words = [(kind, text) for _, kind, text in Environment().lex(source) if kind != "whitespace"]
    except TemplateSyntaxError as error:
        raise CorruptFile(f"the chat template does not compile: {error}", remedy="give another template") from error
    pairs = zip([("", ""), *words], words, strict=False)
    return any(word == ("name", "tools") and before != ("operator", ".") for before, word in pairs)


def system_text(tools: Sequence[Tool]) -> str:
    """What asks a model for calls in the ``hermes`` format: Qwen 2.5's wording, one tool a line.

    The same tools in the same order give the same text, however their fields are ordered. Raises ``BadValue``.
    """
    functions_of(tools)
    lines = [json.dumps(as_plain(tool, "tools"), sort_keys=True, ensure_ascii=False) for tool in tools]
    return _ASK.format(tools="\n".join(lines))


def with_tools(messages: Sequence[Message], tools: Sequence[Tool] | None) -> list[dict[str, Any]]:
    """Messages that a template without tools can render: roles system, user and assistant, content only.

    ``system_text`` goes after the system message, or is one; calls become the text of their assistant message, as the
    model wrote it; results that follow each other become one user message. Each assistant message stays one message.
    """
    out: list[dict[str, Any]] = []
    for n, message in enumerate(listed(messages, "messages")):
        if not isinstance(message, Mapping):
            raise BadValue(f"messages[{n}]", type(message).__name__, "an object")
        if message.get("role") == "tool":
            result = f"<tool_response>\n{_content(message, n)}\n</tool_response>"
            if n and messages[n - 1].get("role") == "tool":
                out[-1]["content"] += "\n" + result
            else:
                out.append({"role": "user", "content": result})
        else:
            out.append(_spelled(message, n))
    if not tools:
        return out
    head = system_text(tools)
    if out and out[0].get("role") in ("system", "developer"):
        return [{**out[0], "content": f"{_content(out[0], 0)}\n\n{head}"}, *out[1:]]
    return [{"role": "system", "content": head}, *out]


def parsed_arguments(messages: Sequence[Message]) -> list[Any]:
    """Messages whose tool calls have arguments as objects, as templates want them; clients send JSON text.

    Raises ``BadValue`` for text that is no JSON object.
    """
    out: list[Any] = []
    for n, message in enumerate(listed(messages, "messages")):
        calls = message.get("tool_calls") if isinstance(message, Mapping) else None
        if calls:
            where = f"messages[{n}].tool_calls"
            message = {
                **message,
                "tool_calls": [_parsed(c, f"{where}[{k}]") for k, c in enumerate(listed(calls, where))],
            }
        out.append(message)
    return out


def _spelled(message: Message, n: int) -> dict[str, Any]:
    calls = message.get("tool_calls")
    plain = {key: value for key, value in message.items() if key not in ("tool_calls", "tool_call_id")}
    if not calls:
        return plain
    where = f"messages[{n}].tool_calls"
    texts = [_call_text(call, f"{where}[{k}]") for k, call in enumerate(listed(calls, where))]
    return {**plain, "content": "\n".join([text for text in (_content(message, n).rstrip("\n"), *texts) if text])}


def _content(message: Message, n: int) -> str:
    return joined(message.get("content"), f"messages[{n}].content") or ""


def _call_text(call: Any, where: str) -> str:
    function = _function(call, where)
    arguments = function.get("arguments", {})
    text = arguments if isinstance(arguments, str) else json.dumps(as_plain(arguments, where), ensure_ascii=False)
    return f'<tool_call>\n{{"name": {json.dumps(function["name"])}, "arguments": {text or "{}"}}}\n</tool_call>'


def _parsed(call: Any, where: str) -> dict[str, Any]:
    function = _function(call, where)
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            remedy = "send the arguments as they were received"
            raise BadValue(f"{where}.function.arguments", "(text)", "the JSON text of an object", remedy=remedy)
    return {**call, "function": {**function, "arguments": {} if arguments is None else arguments}}


def _function(call: Any, where: str) -> Mapping[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadValue(where, type(call).__name__, '{"type": "function", "function": {"name": ..., "arguments": ...}}')
    return function
