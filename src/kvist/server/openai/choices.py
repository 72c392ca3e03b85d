"""One choice of a completion: whole, or in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvist.server.job import Delta, Finish, Job
from kvist.server.openai.logprobs import Legacy, joined, prompt_list
from kvist.server.openai.prompts import Prompt
from kvist.server.openai.schema import CompletionRequest
from kvist.server.openai.write import failed, stop_reason
from kvist.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Shown:
    """What a request wants to see. ``hidden``: nothing of what was drawn."""

    echo: bool
    scores: bool
    prompt_scores: bool
    ids: bool
    hidden: bool


def make_choices(
    ask: CompletionRequest, tokenizer: Tokenizer, prompts: Sequence[Prompt], jobs: Sequence[Job]
) -> list[Choice]:
    """All choices of a request: the samples of each prompt side by side."""
    shown = Shown(
        echo=bool(ask.echo),
        scores=ask.logprobs is not None,
        prompt_scores=ask.prompt_logprobs is not None,
        ids=bool(ask.return_token_ids),
        hidden=ask.max_tokens == 0,
    )
    pairs = [(prompt, job) for prompt, job in zip(prompts, jobs, strict=True) for _ in range(job.n)]
    return [Choice(i, shown, tokenizer, prompt, job) for i, (prompt, job) in enumerate(pairs)]


class Choice:
    """Owner: one reply. Give it every delta of its sample, in order: to ``take``, or to ``pieces``."""

    def __init__(self, index: int, shown: Shown, tokenizer: Tokenizer, prompt: Prompt, job: Job) -> None:
        self._index = index
        self._shown = shown
        self._tokenizer = tokenizer
        self._prompt = prompt
        self._job = job
        self._legacy = Legacy(tokenizer) if shown.scores else None
        self._begun = False
        self._taken: list[dict[str, Any]] = []
        self._finish: Finish | None = None

    def pieces(self, delta: Delta) -> Iterator[dict[str, Any]]:
        """What a stream says of it. The end comes by itself, after all text. Raises ``Refusal`` when it failed."""
        if self._shown.hidden:
            delta = _hidden(delta)
        if delta.finish is not None and delta.finish.reason == "error":
            raise failed(delta.finish)
        shown = self._shown
        news = delta.text or (delta.token_ids and (shown.ids or shown.scores))
        if news or (not self._begun and (shown.echo or shown.prompt_scores or shown.ids)):
            yield self._piece(delta)
        if delta.finish is not None:
            yield self._base("", delta.finish)

    def take(self, delta: Delta) -> None:
        """Keep it for ``whole``. Raises ``Refusal`` when the sample failed."""
        self._taken += self.pieces(delta)
        self._finish = delta.finish or self._finish

    def whole(self) -> dict[str, Any]:
        """Everything that was taken."""
        text = "".join([piece["text"] for piece in self._taken])
        choice = self._base(text, self._finish)
        if self._shown.scores:
            choice["logprobs"] = joined([p["logprobs"] for p in self._taken if p["logprobs"] is not None])
        if self._shown.prompt_scores:
            choice["prompt_logprobs"] = self._taken[0]["prompt_logprobs"]
        if self._shown.ids:
            choice["prompt_token_ids"] = list(self._prompt.ids)
            choice["token_ids"] = [token for p in self._taken for token in p.get("token_ids", ())]
        return choice

    def _base(self, text: str, finish: Finish | None) -> dict[str, Any]:
        return {
            "index": self._index,
            "text": text,
            "logprobs": None,
            "finish_reason": None if finish is None else finish.reason,
            "stop_reason": None if finish is None else stop_reason(finish, self._job),
        }

    def _piece(self, delta: Delta) -> dict[str, Any]:
        piece = self._base(delta.text, None)
        parts = []
        if not self._begun:
            self._begun = True
            parts = self._open(piece, delta)
        if self._legacy is not None and delta.logprobs:
            parts.append(self._legacy.answer(delta.logprobs))
        if parts:
            piece["logprobs"] = joined(parts)
        if self._shown.ids:
            piece["token_ids"] = list(delta.token_ids)
        return piece

    def _open(self, piece: dict[str, Any], delta: Delta) -> list[dict[str, list[Any]]]:
        """What comes before the answer: the prompt, and what is to be said about it."""
        scores = delta.prompt_logprobs or ()
        if self._shown.prompt_scores:
            piece["prompt_logprobs"] = prompt_list(self._tokenizer, scores)
        if self._shown.ids:
            piece["prompt_token_ids"] = list(self._prompt.ids)
        if not self._shown.echo:
            return []
        piece["text"] = self._prompt.text + piece["text"]
        return [self._legacy.prompt(self._prompt.ids, scores)] if self._legacy is not None else []


def _hidden(delta: Delta) -> Delta:
    """A delta without what was drawn."""
    finish = delta.finish
    if finish is not None and finish.reason != "error":
        finish = replace(finish, reason="length", stop=None)
    return replace(delta, text="", token_ids=(), logprobs=(), finish=finish)
