"""Message content that comes as a list of parts, made into one string."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kvist.errors import BadValue
from kvist.text.plain import listed

TEXT_PARTS: Final = ("text", "input_text", "output_text")


def joined(content: Any, where: str = "content") -> str | None:
    """The text of one message's content: a string or None as it is, a list's texts put together without a separator.

    Raises ``BadValue`` for a part that is no text (images, audio, files), naming its index and type.
    """
    if content is None or isinstance(content, str):
        return content
    return "".join(_text(part, f"{where}[{n}]") for n, part in enumerate(listed(content, where)))


def join_parts(messages: Iterable[Any], where: str = "messages") -> list[Any]:
    """Messages whose content is one string. Raises ``BadValue``; what is no message is left to the template."""
    out = []
    for n, message in enumerate(listed(messages, where)):
        if isinstance(message, Mapping) and isinstance(message.get("content"), (list, tuple)):
            message = {**message, "content": joined(message["content"], f"{where}[{n}].content")}
        out.append(message)
    return out


def _text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise BadValue(where, type(part).__name__, 'an object such as {"type": "text", "text": "..."}')
    kind = part.get("type")
    if kind not in TEXT_PARTS:
        remedy = "send text only: images, audio and files are not supported"
        raise BadValue(f"{where}.type", kind, f"one of {', '.join(TEXT_PARTS)}", remedy=remedy)
    text = part.get("text")
    if not isinstance(text, str):
        raise BadValue(f"{where}.text", type(text).__name__, "a string")
    return text
