"""From chat messages to the prompt that a model was trained on, and to its ids."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from typing import Any, Final

from kvist.errors import BadValue, CorruptFile, ModelError, UsageError
from kvist.text.control import ControlWords
from kvist.text.pieces import free_mark
from kvist.text.plain import as_plain, listed, marked, strings
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
        self._now = now
        self._sandbox = Sandbox(max_chars=max_chars, max_steps=max_steps, now=now)
        try:
            self._template = self._sandbox.from_string(source)
        except (TemplateError, RecursionError, MemoryError, OverflowError, SyntaxError) as error:
            line = getattr(error, "lineno", None)
            what = f"the chat template does not compile: {error}" + (f" (line {line})" if line else "")
            raise CorruptFile(what, remedy="give another template (--chat-template)") from error

    def replaced(self, source: str, *, max_steps: int) -> ChatTemplate:
        """Another template over the same tokens and clock, as ``__init__``; ``max_steps`` bounds each render."""
        bos, eos = (self._tokens.get(name) for name in ("bos_token", "eos_token"))
        limit = min(max_steps, self._sandbox.max_steps)
        return ChatTemplate(source, bos, eos, max_chars=self._sandbox.max_chars, max_steps=limit, now=self._now)

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
        chat = [_message(message, f"messages[{n}]") for n, message in enumerate(listed(messages, "messages"))]
        variables = {**self._tokens, "documents": None, **as_plain(extra, "extra")}
        offered = None if tools is None else as_plain(list(listed(tools, "tools")), "tools")
        variables |= {"messages": chat, "tools": offered, "add_generation_prompt": add_generation_prompt}
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
    page = render_guarded(words, template, messages, add_generation_prompt=add_generation_prompt, tools=tools, **extra)
    return tokenizer.encode_guarded(page.text, page.cuts, add_bos=False)


@dataclass(frozen=True, slots=True)
class Rendered:
    """A prompt's text, and the ascending offsets that no control token may span (``Tokenizer.encode_guarded``)."""

    text: str
    cuts: tuple[int, ...] = ()

    def after(self, start: int) -> Rendered:
        """What follows character ``start``."""
        return Rendered(self.text[start:], tuple(cut - start for cut in self.cuts if cut > start))


def render_guarded(
    words: ControlWords,
    template: ChatTemplate,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Mapping[str, Any]] | None = None,
    **extra: Any,
) -> Rendered:
    """``template.render`` that also says where control tokens of ``words`` are forbidden, as ``encode_chat`` tells."""
    given = (list(listed(messages, "messages")), tools, extra)
    texts = list(strings(given))
    if not any(words.cuts(text) for text in texts):
        return Rendered(template.render(given[0], add_generation_prompt=add_generation_prompt, tools=tools, **extra))
    mark = free_mark("".join(texts) + template.source)
    messages, tools, extra = marked(given, lambda text: words.mark(text, mark))
    text = template.render(messages, add_generation_prompt=add_generation_prompt, tools=tools, **extra)
    parts = re.split(f"{mark}|\\\\u{ord(mark):04x}", text)
    cuts = tuple(accumulate(len(part) for part in parts[:-1]))
    return Rendered("".join(parts), cuts)


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise BadValue(where, type(message).__name__, 'an object such as {"role": "user", "content": "..."}')
    plain = {key: value for key, value in as_plain(message, where).items() if value is not None}
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
