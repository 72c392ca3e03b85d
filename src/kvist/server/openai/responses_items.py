"""Input items, told as OpenAI's chat protocol tells them: so all protocols share one cache."""

from __future__ import annotations

from typing import Any, Final

from kvist.errors import BadValue
from kvist.server.check import a_list, a_name, a_text, an_object, bad
from kvist.server.ignored import Ignored
from kvist.server.openai.responses_fields import MAX_ITEMS

_ROLES: Final = ("user", "assistant", "system", "developer")
_TEXTS: Final = ("input_text", "output_text", "text")
_KINDS: Final = "message, function_call, function_call_output or reasoning"


def messages_of(given: str | list[Any], ignored: Ignored) -> list[dict[str, Any]]:
    """The conversation in ``input``. Raises ``BadValue``.

    Calls that follow an assistant's message, or each other, belong to one message. Reasoning is left out.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    out: list[dict[str, Any]] = []
    for n, item in enumerate(a_list(given, "input", MAX_ITEMS)):
        where = f"input[{n}]"
        item = an_object(item, where)
        kind = item.get("type", "message")
        if kind == "message":
            out.append(_message(item, where))
        elif kind == "function_call":
            _add_call(out, _call(item, where))
        elif kind == "function_call_output":
            call = a_text(item.get("call_id"), f"{where}.call_id")
            out.append({"role": "tool", "tool_call_id": call, "content": _text(item.get("output"), f"{where}.output")})
        elif kind == "reasoning":
            ignored.add("input.reasoning")
        else:
            raise bad(f"{where}.type", kind, _KINDS)
    return out


def _message(item: dict[str, Any], where: str) -> dict[str, Any]:
    role = item.get("role")
    if role not in _ROLES:
        raise bad(f"{where}.role", role, f"one of {', '.join(_ROLES)}")
    return {"role": role, "content": _text(item.get("content"), f"{where}.content")}


def _text(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    texts = []
    for n, part in enumerate(a_list(content, where, MAX_ITEMS)):
        at = f"{where}[{n}]"
        part = an_object(part, at)
        kind = part.get("type")
        if kind == "refusal":
            texts.append(a_text(part.get("refusal"), f"{at}.refusal"))
        elif kind in _TEXTS:
            texts.append(a_text(part.get("text"), f"{at}.text"))
        else:
            remedy = "send text: images, audio and files are not supported"
            raise bad(f"{at}.type", kind, f"one of {', '.join(_TEXTS)}", remedy=remedy)
    return "".join(texts)


def _call(item: dict[str, Any], where: str) -> dict[str, Any]:
    arguments = a_text(item.get("arguments"), f"{where}.arguments")
    function = {"name": a_name(item.get("name"), f"{where}.name"), "arguments": arguments}
    return {"id": a_text(item.get("call_id"), f"{where}.call_id"), "type": "function", "function": function}


def _add_call(out: list[dict[str, Any]], call: dict[str, Any]) -> None:
    if not out or out[-1]["role"] != "assistant":
        out.append({"role": "assistant", "content": None, "tool_calls": []})
    last = out[-1]
    last["content"] = last["content"] or None
    last.setdefault("tool_calls", []).append(call)


def check_last(messages: list[dict[str, Any]]) -> None:
    """Raises ``BadValue`` unless there is something to answer."""
    if not messages:
        raise BadValue("input", "[]", "at least one item")
    if messages[-1]["role"] == "assistant":
        raise BadValue("input", "an assistant's message last", "a user message or a function's output last")
