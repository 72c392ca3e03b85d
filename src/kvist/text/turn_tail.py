"""Where an old answer ends in a conversation's text, whatever the template made of the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvist.errors import KvistError
from kvist.text.chat import ChatTemplate, Message, render_guarded
from kvist.text.control import ControlWords
from kvist.text.pieces import free_mark
from kvist.text.plain import strings


def answer_end(
    words: ControlWords,
    template: ChatTemplate,
    text: str,
    messages: Sequence[Message],
    index: int,
    tools: Sequence[Mapping[str, Any]] | None,
    extra: Mapping[str, Any],
) -> int | None:
    """Offset in ``text`` (``messages`` rendered, with a generation prompt) just after what ``messages[index]`` says.

    The template's closing of that message comes after it. A private-use character at the answer's end is rendered
    along and shows the place; where that fails for tool calls, the render of the conversation up to the answer does.
    None where neither tells.
    """
    answer = messages[index]
    mark = free_mark("".join(strings([list(messages), tools, extra])) + template.source)
    calls = bool(answer.get("tool_calls"))
    shown = {"role": "assistant", "content": mark}
    if not calls:
        shown = {**answer, "content": (answer.get("content") or "") + mark}

    def rendered(chat: Sequence[Message], generate: bool) -> str:
        options = {"add_generation_prompt": generate, "tools": tools, **extra}
        try:
            return render_guarded(words, template, chat, **options).text
        except KvistError:
            return ""

    rest = _behind(mark, rendered([*messages[:index], shown, *messages[index + 1 :]], True))
    if rest is not None and text.endswith(rest):
        return len(text) - len(rest)
    if not calls:
        return None
    history = rendered(messages[: index + 1], False)
    closing = _behind(mark, rendered([*messages[:index], shown], False))
    if not history or closing is None or not text.startswith(history) or not history.endswith(closing):
        return None
    return len(history) - len(closing)


def _behind(mark: str, text: str) -> str | None:
    """What follows the first ``mark`` in ``text``; where there is another, it fits nowhere."""
    _, found, rest = text.partition(mark)
    return rest if found else None
