"""The name of an answer: a digest over everything that came before it and itself."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from kvist.text.parts import joined
from kvist.text.plain import as_plain

_REASONING: Final = ("reasoning_content", "thinking", "reasoning")
_KEY_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Trail:
    """The name of a conversation, computed once. ``answers``: (index, key) of each assistant message, first to last.

    A key covers all messages up to and with its own. Two conversations share one only where scope, tools, template
    arguments and every message are equal as JSON. What clients change without meaning it does not count: order of
    fields, fields that are null, an assistant's empty lists, content in parts, tool arguments as text or as an object.
    """

    answers: tuple[tuple[int, bytes], ...]
    chain: blake2b

    @staticmethod
    def of(
        scope: bytes, messages: Iterable[Mapping[str, Any]], tools: Any = None, extra: Mapping[str, Any] | None = None
    ) -> Trail:
        """Of a whole conversation: costs O(length). Raises ``BadValue`` for what is no JSON."""
        chain = blake2b(digest_size=_KEY_BYTES)
        _add(chain, scope)
        _add(chain, _json([tools, dict(extra or {})]))
        answers = []
        for index, message in enumerate(messages):
            _add(chain, _json(_normal(message)))
            if message.get("role") == "assistant":
                answers.append((index, chain.copy().digest()))
        return Trail(tuple(answers), chain)

    def keys_of(self, answer: Mapping[str, Any]) -> tuple[bytes, ...]:
        """Keys of an answer to this conversation, as it was sent and as clients that do not send reasoning send it.

        One key where that is the same. Costs O(answer). Raises ``BadValue`` for what is no JSON.
        """
        normal = _normal(answer)
        forms = [normal] if normal["reasoning"] is None else [normal, {**normal, "reasoning": None}]
        return tuple(self._key(_json(form)) for form in forms)

    def _key(self, part: bytes) -> bytes:
        chain = self.chain.copy()
        _add(chain, part)
        return chain.digest()


def _add(chain: blake2b, part: bytes) -> None:
    chain.update(len(part).to_bytes(8, "little"))
    chain.update(part)


def _json(value: Any) -> bytes:
    return json.dumps(as_plain(value, "messages"), sort_keys=True, separators=(",", ":")).encode("ascii")


def _normal(message: Mapping[str, Any]) -> dict[str, Any]:
    normal = {name: value for name, value in message.items() if value is not None}
    if "content" in normal:
        normal["content"] = joined(normal["content"])
    if normal.get("role") != "assistant":
        return normal
    reasoning = next((normal[name] for name in _REASONING if name in normal), None)
    rest = {name: value for name, value in normal.items() if name not in _REASONING and value not in ([], {}, "")}
    calls = [_call(call) for call in rest.pop("tool_calls", ())]
    return rest | {"content": rest.get("content", ""), "tool_calls": calls, "reasoning": reasoning or None}


def _call(call: Any) -> Any:
    """(id, name, arguments) of one tool call; one of another shape as it is."""
    if not isinstance(call, Mapping):
        return call
    function = call.get("function", call)
    if not isinstance(function, Mapping):
        return call
    return [call.get("id"), function.get("name"), _arguments(function.get("arguments"))]


def _arguments(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value
