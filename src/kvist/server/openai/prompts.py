"""``prompt`` of completions: one or several, as text or as token ids."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any, Final

from kvist.errors import BadValue
from kvist.server.length import refuse_hopeless
from kvist.server.openai.fields import MOST_SAMPLES
from kvist.server.openai.schema import CompletionRequest
from kvist.server.served import Served
from kvist.text.stream import Detokenizer
from kvist.text.tokenizer import Tokenizer

LONG_CHARS: Final = 20_000
"""Texts longer than this are tokenised on a worker thread, so that other answers go on."""

MOST_CUT_CHARS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, the text to echo, and how many tokens were cut off before them because the request said so."""

    ids: tuple[int, ...]
    text: str
    truncated_tokens: int = 0


async def prompts_of(ask: CompletionRequest, served: Served) -> list[Prompt]:
    """All prompts of a request. Raises ``BadValue``."""
    texts_or_ids = _split(ask.prompt)
    most = MOST_SAMPLES // (ask.n or 1)
    if len(texts_or_ids) > most:
        raise BadValue("prompt", len(texts_or_ids), f"at most {most} prompts of {ask.n or 1} samples each")
    if sum(len(each) for each in texts_or_ids) > LONG_CHARS:
        return await asyncio.to_thread(_read_all, texts_or_ids, ask, served, served.tokenizer.twin)
    return _read_all(texts_or_ids, ask, served, served.tokenizer)


def encode_text(tokenizer: Tokenizer, text: str, *, add_special: bool | None, parse_special: bool | None) -> list[int]:
    """Ids of a raw prompt, which is all the caller's own: control tokens written in it count unless he says no."""
    add_bos = False if add_special is False else None
    return tokenizer.encode(text, allow_special=parse_special is not False, add_bos=add_bos)


def _split(prompt: Any) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise BadValue("prompt", type(prompt).__name__, "text, token ids, or a list of either that is not empty")
    if all(isinstance(each, str) for each in prompt):
        return list(prompt)
    if all(isinstance(each, list) for each in prompt):
        return [_ids(each) for each in prompt]
    return [_ids(prompt)]


def _ids(items: list[Any]) -> list[int]:
    if not items:
        raise BadValue("prompt", [], "at least one token")
    ids = [int(item) if isinstance(item, float) and item.is_integer() else item for item in items]
    wrong = [item for item in ids if type(item) is not int]
    if wrong:
        raise BadValue("prompt", str(wrong[0])[:40], "texts only, or token ids only (whole numbers)")
    return ids


def _read_all(
    given: list[str | list[int]], ask: CompletionRequest, served: Served, tokenizer: Tokenizer
) -> list[Prompt]:
    return [_cut(_read(each, ask, served, tokenizer), ask, served) for each in given]


def _read(given: str | list[int], ask: CompletionRequest, served: Served, tokenizer: Tokenizer) -> Prompt:
    if isinstance(given, str):
        if ask.truncate_prompt_tokens is None:
            refuse_hopeless(tokenizer, [given], served.context_tokens)
        elif len(given) > MOST_CUT_CHARS:
            raise BadValue("prompt", f"{len(given)} characters", f"at most {MOST_CUT_CHARS} to be truncated")
        add, parse = ask.add_special_tokens, ask.parse_special
        ids = encode_text(tokenizer, given, add_special=add, parse_special=parse)
        if not ids:
            raise BadValue("prompt", given[:40], "text that makes at least one token")
        return Prompt(tuple(ids), given)
    for token in given:
        if not 0 <= token < served.vocab:
            raise BadValue("prompt", token, f"token ids in [0, {served.vocab})")
    return Prompt(tuple(given), _shown(served, given) if ask.echo else "")


def _cut(prompt: Prompt, ask: CompletionRequest, served: Served) -> Prompt:
    keep = ask.truncate_prompt_tokens
    if keep is None:
        return prompt
    if keep == 0:
        raise BadValue("truncate_prompt_tokens", keep, "a count >= 1, or -1 for what fits")
    if keep < 0:
        keep = max(1, served.context_tokens - max(1, 16 if ask.max_tokens is None else ask.max_tokens))
    if len(prompt.ids) <= keep:
        return prompt
    ids = prompt.ids[-keep:]
    return replace(prompt, ids=ids, text=_shown(served, list(ids)), truncated_tokens=len(prompt.ids) - keep)


def _shown(served: Served, ids: list[int]) -> str:
    """The text of ids up to the last whole character: an answer goes on from there."""
    return Detokenizer(served.tokenizer, skip_special=False).push(ids)
