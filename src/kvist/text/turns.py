"""Answers keep the ids that the model emitted, so that a conversation sent back as text still hits the prefix cache.

A model may spell an answer with other tokens than its tokenizer would, and a template may show an old answer otherwise
than it was generated. Either way the next turn's prompt, encoded from text, leaves the cached ids in the middle.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final

from kvist.errors import BadValue
from kvist.text.chat import ChatTemplate, Message, Rendered, render_guarded
from kvist.text.outline import Outline
from kvist.text.parts import join_parts
from kvist.text.tokenizer import Tokenizer
from kvist.text.turn_keys import Trail
from kvist.text.turn_store import Kept, TurnStore
from kvist.text.turn_tail import answer_end

DEFAULT_MAX_TOKENS = 4_000_000
MOST_TRIES: Final = 3
"""Kept answers of a conversation that are compared with its text, last first: where none of them fits, none will."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt. The first ``kept_tokens`` ids were remembered. ``first_rewritten`` is the first index at which plain
    ``encode_chat`` would have given another id (None: it gives the same), ``appended`` whether the text differs too.
    ``trail`` is what ``Turns.keep`` wants.
    """

    ids: list[int]
    kept_tokens: int = 0
    first_rewritten: int | None = None
    appended: bool = False
    trail: Trail | None = field(default=None, compare=False, repr=False)


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
        """``keep`` for an answer to messages that were not encoded here.

        ``messages``, ``tools`` and ``extra`` are those of ``encode``. ``scope`` is whose it is: never crossed.
        """
        self.keep(Trail.of(scope, messages, tools, extra), answer_message, prompt_ids, output_ids)

    def keep(
        self,
        trail: Trail,
        answer_message: Message,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        *,
        owner: str = "",
    ) -> None:
        """Keep an answer that has ended: ``output_ids`` with the end token if there was one.

        ``trail`` is the conversation's (``Encoded``); ``answer_message`` is what the client was sent and will send
        back. It is found with and without its reasoning. ``owner`` is whose room it takes: no owner's answers drive
        out another's from his even part.
        """
        earlier = [key for _, key in trail.answers]
        self._store.put(trail.keys_of(answer_message), earlier, prompt_ids, output_ids, owner)

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
        outline, trail = Outline(tokenizer, plain), Trail.of(scope, messages, tools, extra)
        known = ((at, kept) for at, key in reversed(trail.answers) if (kept := self._store.get(key)) is not None)
        for index, kept in islice(known, MOST_TRIES):
            found = _same_text(outline, kept.ids, tokenizer)
            if found is None and append_only:
                start = answer_end(tokenizer.control_words, template, page.text, messages, index, tools, extra)
                rest = page.after(start) if start is not None else Rendered("")
                tail = tokenizer.encode_guarded(rest.text, rest.cuts, add_bos=False, continues=True)
                appended = _appended(tokenizer, tail, kept) if tail and outline.ends_with(tail) else None
                if appended is not None:
                    return _encoded(trail, plain, *appended, appended=True)
            found = found or outline.continued(kept.ids[: kept.prompt_tokens])
            if found is not None:
                return _encoded(trail, plain, *found)
        return Encoded(plain, trail=trail)


def _same_text(outline: Outline, answered: array[int], tokenizer: Tokenizer) -> tuple[list[int], int] | None:
    """Going on after the answer, or after all of it but an end token that is not the template's."""
    found = outline.continued(answered)
    if found is None and answered[-1:] and answered[-1] in tokenizer.eos_ids:
        found = outline.continued(answered[:-1])
    return found


def _appended(tokenizer: Tokenizer, tail: list[int], kept: Kept) -> tuple[list[int], int] | None:
    """The answer as it was generated, then ``tail``: end tokens that say the same are not repeated.

    None for an answer with other control tokens: no client ever saw them, and they would speak as the template does.
    """
    answered, controls = kept.ids, tokenizer.control_ids
    said = answered[kept.prompt_tokens :]
    last = said[-1] if said else None
    if last is not None and last in controls and tail[:1] == [last]:
        tail, said = tail[1:], said[:-1]
    elif last in tokenizer.eos_ids:
        answered, said = answered[:-1], said[:-1]
    if any(n in controls for n in said):
        return None
    return [*answered, *tail], len(answered)


def _encoded(trail: Trail, plain: list[int], ids: list[int], kept_tokens: int, *, appended: bool = False) -> Encoded:
    pairs = enumerate(zip(plain, ids, strict=False))
    first = next((n for n, (a, b) in pairs if a != b), min(len(plain), len(ids)))
    return Encoded(ids, kept_tokens, None if plain == ids else first, appended, trail)
