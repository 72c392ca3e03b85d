"""Prompts that cannot fit are refused from their beginning, without tokenising all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kvist.errors import PromptTooLong
from kvist.text.tokenizer import Tokenizer

PIECE_CHARS: Final = 16_384
SEAM_TOKENS: Final = 8
"""A piece cut from a text has at most so many tokens more than it has within the text."""

SURE_CHARS_PER_TOKEN: Final = 4
"""Up to so many characters per token of the context nothing is looked at: it may well fit."""


def refuse_hopeless(tokenizer: Tokenizer, texts: Iterable[str], context_tokens: int) -> None:
    """Raises ``PromptTooLong`` for texts that together have more tokens than the context, whatever is around them."""
    texts = list(texts)
    if sum(map(len, texts)) <= SURE_CHARS_PER_TOKEN * context_tokens:
        return
    tokens = 0
    for text in texts:
        for at in range(0, len(text), PIECE_CHARS):
            piece = text[at : at + PIECE_CHARS].encode("utf-8", "replace").decode("utf-8")
            tokens += max(0, len(tokenizer.encode(piece, add_bos=False)) - SEAM_TOKENS)
            if tokens >= context_tokens:
                raise PromptTooLong(
                    f"the prompt has more than {tokens} tokens; the context has {context_tokens}",
                    needed_tokens=tokens + 1,
                    limit_tokens=context_tokens,
                    remedy=f"shorten the prompt to {context_tokens - 1} tokens or fewer",
                )


def texts_of(messages: Iterable[Any]) -> list[str]:
    """What messages say: their content, parts joined or not."""
    out: list[str] = []
    for message in messages:
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list | tuple) else [content]:
            text = part.get("text") if isinstance(part, Mapping) else part
            if isinstance(text, str):
                out.append(text)
    return out
