"""Log-probabilities as each protocol writes them."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from typing import Any

from kvist.step import TokenLogprob
from kvist.text.tokenizer import Tokenizer


def chat_content(tokenizer: Tokenizer, scores: Iterable[TokenLogprob]) -> list[dict[str, Any]]:
    """``logprobs.content`` of chat completions. ``bytes`` are exact; ``token`` shows half characters as U+FFFD."""
    return [
        {**_entry(tokenizer, s.token, s.logprob), "top_logprobs": [_entry(tokenizer, t, value) for t, value in s.top]}
        for s in scores
    ]


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token, special=True)
    return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}


def token_name(tokenizer: Tokenizer, token: int) -> str:
    r"""A token as text; half characters as ``bytes:\xe2\x82``, so that no two tokens look alike for being cut."""
    raw = tokenizer.token_bytes(token, special=True)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class Legacy:
    """``logprobs`` of completions, in pieces as they come. ``text_offset`` counts characters of the choice's text.

    Owner: one choice.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def prompt(self, ids: Sequence[int], scores: Sequence[TokenLogprob | None]) -> dict[str, list[Any]]:
        """The prompt's part. The first token has no score. A beginning-of-sequence token takes no room in the text."""
        lead = int(ids[0] == self._tokenizer.bos_id)
        shown = [b""] * lead + [self._tokenizer.token_bytes(t, special=True) for t in ids[lead:]]
        return self._part(ids, scores, shown)

    def answer(self, scores: Sequence[TokenLogprob]) -> dict[str, list[Any]]:
        """What an answer gained. Control tokens take no room in the text."""
        ids = [s.token for s in scores]
        return self._part(ids, scores, [self._tokenizer.token_bytes(t) for t in ids])

    def _part(
        self, ids: Sequence[int], scores: Sequence[TokenLogprob | None], shown: Sequence[bytes]
    ) -> dict[str, list[Any]]:
        offsets = []
        for raw in shown:
            offsets.append(self._offset)
            self._offset += len(self._utf8.decode(raw))
        return {
            "tokens": [token_name(self._tokenizer, t) for t in ids],
            "token_logprobs": [s.logprob if s is not None else None for s in scores],
            "top_logprobs": [self._top(s) if s is not None else None for s in scores],
            "text_offset": offsets,
        }

    def _top(self, score: TokenLogprob) -> dict[str, float]:
        pairs = dict(score.top)
        pairs.setdefault(score.token, score.logprob)
        return {token_name(self._tokenizer, t): value for t, value in pairs.items()}


def joined(parts: Sequence[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    """Several pieces as one."""
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return {name: [value for part in parts for value in part[name]] for name in names}


def prompt_list(tokenizer: Tokenizer, scores: Sequence[TokenLogprob | None]) -> list[dict[str, Any] | None]:
    """``prompt_logprobs`` as vLLM writes them: per token of the prompt, id -> its score; nothing for the first.

    ``rank`` counts from 1 among the alternatives asked for; null for a token beyond them.
    """
    return [None if score is None else _ranked(tokenizer, score) for score in scores]


def _ranked(tokenizer: Tokenizer, score: TokenLogprob) -> dict[str, Any]:
    ranks = {token: rank for rank, (token, _) in enumerate(score.top, 1)}
    pairs = {score.token: score.logprob, **dict(score.top)}
    return {
        str(token): {
            "logprob": value,
            "rank": ranks.get(token),
            "decoded_token": tokenizer.token_bytes(token, special=True).decode("utf-8", "replace"),
        }
        for token, value in pairs.items()
    }
