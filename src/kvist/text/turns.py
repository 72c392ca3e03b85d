"""Answers keep the ids that the model emitted, so that a conversation sent back as text still hits the prefix cache.

A model may spell an answer with other tokens than its tokenizer would, and a template may show an old answer otherwise
than it was generated. Either way the next turn's prompt, encoded from text, leaves the cached ids in the middle.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvist.errors import BadValue
from kvist.text.chat import ChatTemplate, Message, Rendered, render_guarded
from kvist.text.outline import Outline
from kvist.text.parts import join_parts
from kvist.text.tokenizer import Tokenizer
from kvist.text.turn_keys import answer_keys, without_reasoning
from kvist.text.turn_store import TurnStore
from kvist.text.turn_tail import answer_end

DEFAULT_MAX_TOKENS = 4_000_000


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt. The first ``kept_tokens`` ids were remembered. ``first_rewritten`` is the first index at which plain
    ``encode_chat`` would have given another id (None: it gives the same), ``appended`` whether the text differs too.
    """

    ids: list[int]
    kept_tokens: int = 0
    first_rewritten: int | None = None
    appended: bool = False


class Turns:
    """Remembers prompts and answers, and encodes what continues them. One for each tokenizer and template.

    ``max_tokens`` bounds memory (4 bytes an id). Calls may come from several threads.
    """

    def __init__(self, max_tokens: int = DEFAULT_MAX_TOKENS) -> None:
        if max_tokens < 0:
            raise BadValue("max_tokens", max_tokens, "a number of ids >= 0", remedy="0 remembers nothing")
        self._store = TurnStore(max_tokens)

    @property
    def held_tokens(self) -> int:
        """What is remembered: ids, and 64 more for each answer."""
        return self._store.held_tokens

    @property
    def evicted(self) -> int:
        """Answers forgotten for want of room."""
        return self._store.evicted

    def remember(
        self,
        scope: bytes,
        messages: Sequence[Message],
        answer_message: Message,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Keep an answer that has ended: ``output_ids`` with the end token if there was one.

        ``messages``, ``tools`` and ``extra`` are those of ``encode``; ``answer_message`` is what the client was sent
        and will send back. It is found with and without its reasoning. ``scope`` is whose it is: never crossed.
        """
        forms = [dict(answer_message), without_reasoning(answer_message)]
        found = [answer_keys(scope, [*messages, form], tools, extra) for form in forms]
        self._store.put([keys[-1][1] for keys in found], [key for _, key in found[0][:-1]], prompt_ids, output_ids)

    def encode(
        self,
        scope: bytes,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
        append_only: bool = False,
    ) -> Encoded:
        """Ids of the prompt that asks for the next answer, going on from the longest remembered answer that fits.

        The text and the control tokens are exactly those of ``encode_chat``: only tokenisation differs. With
        ``append_only`` history also stays as it was generated where the template would now write it otherwise (drops
        earlier reasoning, moves markers): what follows the remembered answer is the template's. The errors are those
        of ``encode_chat``.
        """
        messages, extra = join_parts(messages), dict(extra or {})
        page = render_guarded(tokenizer.control_words, template, messages, tools=tools, **extra)
        plain = tokenizer.encode_guarded(page.text, page.cuts, add_bos=False)
        outline = Outline(tokenizer, plain)
        for index, key in reversed(answer_keys(scope, messages, tools, extra)):
            kept = self._store.get(key)
            if kept is None:
                continue
            prompt, answered = kept.ids[: kept.prompt_tokens], kept.ids
            found = _same_text(outline, answered, tokenizer)
            if found is None and append_only:
                start = answer_end(tokenizer.control_words, template, page.text, messages, index, tools, extra)
                rest = page.after(start) if start is not None else Rendered("")
                tail = tokenizer.encode_guarded(rest.text, rest.cuts, add_bos=False, continues=True)
                if tail and outline.ends_with(tail):
                    return _encoded(plain, *_appended(tokenizer, tail, answered, len(prompt)), appended=True)
            found = found or outline.continued(prompt)
            if found is not None:
                return _encoded(plain, *found)
        return Encoded(plain)


def _same_text(outline: Outline, answered: array[int], tokenizer: Tokenizer) -> tuple[list[int], int] | None:
    """Going on after the answer, or after all of it but an end token that is not the template's."""
    found = outline.continued(answered)
    if found is None and answered[-1:] and answered[-1] in tokenizer.eos_ids:
        found = outline.continued(answered[:-1])
    return found


def _appended(tokenizer: Tokenizer, tail: list[int], answered: array[int], prompt_tokens: int) -> tuple[list[int], int]:
    """The answer as it was generated, then ``tail``: end tokens that say the same are not repeated."""
    last = answered[-1] if len(answered) > prompt_tokens else None
    if last is not None and last in tokenizer.control_ids and tail[:1] == [last]:
        tail = tail[1:]
    elif last in tokenizer.eos_ids:
        answered = answered[:-1]
    return [*answered, *tail], len(answered)


def _encoded(plain: list[int], ids: list[int], kept_tokens: int, *, appended: bool = False) -> Encoded:
    pairs = enumerate(zip(plain, ids, strict=False))
    first = next((n for n, (a, b) in pairs if a != b), min(len(plain), len(ids)))
    return Encoded(ids, kept_tokens, None if plain == ids else first, appended)
