"""From chat messages to the prompt that a model was trained on, and to its ids."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from kvist.errors import BadValue, CorruptFile, ModelError, UsageError
from kvist.text.pieces import free_mark
from kvist.text.tokenizer import Tokenizer

Message = Mapping[str, Any]

ROLES: Final = ("system", "developer", "user", "assistant", "tool")
MAX_CHARS: Final = 16_000_000
MAX_STEPS: Final = 1_000_000
_REASONING: Final = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """A jinja2 chat template, compiled once and rendered as transformers does.

    ``bos`` and ``eos`` are the texts that the template may use as ``bos_token`` and ``eos_token``. A render that takes
    more than ``max_steps`` turns of loops (a call counts for ten) or makes more than ``max_chars`` characters is a
    ``ModelError``.
    """

    def __init__(
        self,
        source: str,
        bos: str | None = None,
        eos: str | None = None,
        *,
        max_chars: int = MAX_CHARS,
        max_steps: int = MAX_STEPS,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        from jinja2.exceptions import TemplateError

        from kvist.text.sandbox import Sandbox

        self.source = source
        self._tokens = {name: text for name, text in (("bos_token", bos), ("eos_token", eos)) if text is not None}
        self._sandbox = Sandbox(max_chars=max_chars, max_steps=max_steps, now=now)
        try:
            self._template = self._sandbox.from_string(source)
        except (TemplateError, RecursionError, MemoryError, OverflowError, SyntaxError) as error:
            line = getattr(error, "lineno", None)
            what = f"the chat template does not compile: {error}" + (f" (line {line})" if line else "")
            raise CorruptFile(what, remedy="give another template (--chat-template)") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> str:
        """The prompt's text. ``extra`` goes to the template (``enable_thinking=False``, ``documents=[...]``).

        Raises ``BadValue`` for malformed messages, ``UsageError`` when the template refuses them or fails on them.
        """
        chat = [_message(message, f"messages[{n}]") for n, message in enumerate(_listed(messages, "messages"))]
        variables = {**self._tokens, "documents": None, **_plain(extra, "extra")}
        listed = None if tools is None else _plain(list(_listed(tools, "tools")), "tools")
        variables |= {"messages": chat, "tools": listed, "add_generation_prompt": add_generation_prompt}
        return self._render(variables)

    def _render(self, variables: dict[str, Any]) -> str:
        from jinja2.exceptions import SecurityError

        from kvist.text.sandbox import Refused

        try:
            return self._sandbox.run(self._template, variables)
        except Refused as error:
            what = f"the model's chat template refused these messages: {error}"
            raise UsageError(what, remedy="change the messages as it says") from error
        except (SecurityError, MemoryError, RecursionError) as error:
            what = f"the chat template was stopped: {type(error).__name__}: {error}"
            raise ModelError(what, remedy="give another template (--chat-template)") from error
        except Exception as error:  # whatever a template makes Python raise
            what = f"the chat template failed on these messages: {type(error).__name__}: {error}"
            raise UsageError(what, remedy="compare the messages with what the template reads, or replace it") from error


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **extra: Any,
) -> list[int]:
    """Ids of the rendered prompt, in which the template's control tokens count and those in the messages do not.

    Messages without control strings give transformers' ids exactly. Where a string in ``messages``, ``tools`` or
    ``extra`` holds one, or begins or ends with part of one, a private-use character is put in there before rendering;
    it comes out with the text through whatever the template does to it (strip, upper, JSON), shows where no control
    token may be, and is taken away again. So a template sees such a string broken: one that looks for a control token
    *inside a message* does not find it. No beginning-of-sequence token is added: templates write their own.
    """
    words = tokenizer.control_words
    given = (list(_listed(messages, "messages")), tools, extra)
    strings = list(_strings(given))
    if not any(words.cuts(text) for text in strings):
        text = template.render(given[0], add_generation_prompt=add_generation_prompt, tools=tools, **extra)
        return tokenizer.encode(text, allow_special=True, add_bos=False)
    mark = free_mark("".join(strings) + template.source)
    messages, tools, extra = _marked(given, lambda text: words.mark(text, mark))
    text = template.render(messages, add_generation_prompt=add_generation_prompt, tools=tools, **extra)
    parts = re.split(f"{mark}|\\\\u{ord(mark):04x}", text)
    cuts = [0]
    for part in parts[:-1]:
        cuts.append(cuts[-1] + len(part))
    return tokenizer.encode_guarded("".join(parts), cuts[1:], add_bos=False)


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise BadValue(where, type(message).__name__, 'an object such as {"role": "user", "content": "..."}')
    plain = {key: value for key, value in _plain(message, where).items() if value is not None}
    if plain.get("role") not in ROLES:
        raise BadValue(f"{where}.role", plain.get("role"), f"one of {', '.join(ROLES)}")
    content = plain.get("content")
    if content is None and not (plain["role"] == "assistant" and len(plain) > 1):
        raise BadValue(f"{where}.content", None, "a string", remedy="only an assistant's tool call may have no content")
    if content is not None and not isinstance(content, str):
        remedy = "join the parts of type 'text' into one string; images and audio are not supported"
        raise BadValue(f"{where}.content", type(content).__name__, "a string", remedy=remedy)
    reasoning = next((plain[key] for key in _REASONING if key in plain), None)
    return plain if reasoning is None else {"thinking": reasoning, **plain, "reasoning_content": reasoning}


def _listed(value: Any, where: str) -> Iterable[Any]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise BadValue(where, type(value).__name__, "a list of objects")
    return value


def _plain(value: Any, where: str) -> Any:
    """A copy made of plain JSON types, so that no object's methods are within a template's reach."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, Mapping):
        return {_plain(key, where): _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{n}]") for n, item in enumerate(value)]
    raise BadValue(where, type(value).__name__, "text, number, true, false, null, list or object")


def _strings(value: Any) -> Iterable[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings(item)


def _marked(value: Any, mark: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return mark(value)
    if isinstance(value, Mapping):
        return {_marked(key, mark): _marked(item, mark) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_marked(item, mark) for item in value]
    return value
