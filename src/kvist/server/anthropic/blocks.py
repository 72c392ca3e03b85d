"""Messages made of content blocks, told as OpenAI's chat protocol tells them: so all protocols share one cache."""

from __future__ import annotations

import json
from typing import Any, Final

from kvist.errors import BadValue
from kvist.server.anthropic.caching import Marks
from kvist.server.check import a_list, a_name, a_text, an_object, bad
from kvist.server.ignored import Ignored
from kvist.text.plain import as_plain

MAX_BLOCKS: Final = 100_000
_TEXT_ONLY: Final = "send text: images, documents and server tools are not supported"
_ALLOWED: Final = {
    "system": ("text",),
    "user": ("text", "tool_result"),
    "assistant": ("text", "tool_use", "thinking", "redacted_thinking"),
}


def call_id(ours: str) -> str:
    """What a tool call is called in this protocol."""
    return "toolu_" + ours.removeprefix("call_")


def _own_id(theirs: Any, where: str) -> str:
    text = a_text(theirs, where)
    return "call_" + text.removeprefix("toolu_") if text.startswith("toolu_") else text


class Blocks:
    """Reads the blocks of one request; ``marks`` and ``ignored`` gather what is met on the way."""

    def __init__(self, marks: Marks, ignored: Ignored) -> None:
        self._marks = marks
        self._ignored = ignored

    def system(self, system: str | list[Any] | None) -> list[dict[str, Any]]:
        """The system prompt as a message; none for one that is empty."""
        text = self._text(system or "", "system")
        return [{"role": "system", "content": text}] if text else []

    def messages(self, messages: list[Any]) -> list[dict[str, Any]]:
        """The conversation. A result of a tool becomes a message of its own. Raises ``BadValue``.

        Messages of one role that follow each other stay apart: it is the template that knows what to do with them.
        """
        out: list[dict[str, Any]] = []
        for n, message in enumerate(messages):
            where = f"messages[{n}]"
            message = an_object(message, where)
            role, content = message.get("role"), message.get("content")
            if role not in tuple(_ALLOWED):
                raise bad(f"{where}.role", role, "user, assistant or system")
            if isinstance(content, str):
                out.append({"role": role, "content": content})
                continue
            blocks = self._blocks(content, f"{where}.content", _ALLOWED[role])
            out += self._assistant(blocks) if role == "assistant" else self._others(role, blocks)
        if out[-1]["role"] == "assistant":
            what = "a user message last"
            remedy = "answers cannot go on from a given beginning: send the beginning as an instruction"
            raise BadValue(f"messages[{len(messages) - 1}].role", "assistant", what, remedy=remedy)
        return out

    def _blocks(self, content: Any, where: str, allowed: tuple[str, ...]) -> list[tuple[str, dict[str, Any]]]:
        blocks = a_list(content, where, MAX_BLOCKS)
        if not blocks:
            raise BadValue(where, "[]", "at least one block")
        out = []
        for n, block in enumerate(blocks):
            at = f"{where}[{n}]"
            block = an_object(block, at)
            if block.get("type") not in allowed:
                raise bad(f"{at}.type", block.get("type"), f"one of {', '.join(allowed)}", remedy=_TEXT_ONLY)
            self._marks.take(block, at)
            out.append((at, block))
        return out

    def _text(self, content: Any, where: str) -> str:
        if isinstance(content, str):
            return content
        blocks = self._blocks(content, where, ("text",))
        return "".join(a_text(block.get("text"), f"{at}.text") for at, block in blocks)

    def _others(self, role: str, blocks: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        """User or system: texts that follow each other are one message, and so is each result."""
        out: list[dict[str, Any]] = []
        open_text = False
        for at, block in blocks:
            if block["type"] == "tool_result":
                out.append(self._result(at, block))
                open_text = False
                continue
            text = a_text(block.get("text"), f"{at}.text")
            if open_text:
                out[-1]["content"] += text
            else:
                out.append({"role": role, "content": text})
            open_text = True
        return out

    def _result(self, at: str, block: dict[str, Any]) -> dict[str, Any]:
        if block.get("is_error"):
            self._ignored.add("tool_result.is_error")
        content = block.get("content")
        text = "" if content is None or content == [] else self._text(content, f"{at}.content")
        call = _own_id(block.get("tool_use_id"), f"{at}.tool_use_id")
        return {"role": "tool", "tool_call_id": call, "content": text}

    def _assistant(self, blocks: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
        text: list[str] = []
        thought: list[str] = []
        calls: list[dict[str, Any]] = []
        for at, block in blocks:
            kind = block["type"]
            if kind == "text":
                text.append(a_text(block.get("text"), f"{at}.text"))
            elif kind == "thinking":
                thought.append(a_text(block.get("thinking"), f"{at}.thinking"))
            elif kind == "tool_use":
                calls.append(_call(at, block))
            else:
                self._ignored.add("redacted_thinking")
        message: dict[str, Any] = {"role": "assistant", "content": "".join(text) or (None if calls else "")}
        if thought:
            message["reasoning_content"] = "".join(thought)
        if calls:
            message["tool_calls"] = calls
        return [message]


def _call(at: str, block: dict[str, Any]) -> dict[str, Any]:
    given = as_plain(an_object(block.get("input"), f"{at}.input"), f"{at}.input")
    arguments = json.dumps(given, ensure_ascii=False)
    function = {"name": a_name(block.get("name"), f"{at}.name"), "arguments": arguments}
    return {"id": _own_id(block.get("id"), f"{at}.id"), "type": "function", "function": function}
