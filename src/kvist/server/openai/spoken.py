"""One sample of a chat answer: whole, or in pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kvist.server.chat import Called, ChatEvent, Ended, Wrote
from kvist.server.job import Job
from kvist.server.openai.logprobs import chat_content
from kvist.server.openai.write import stop_reason
from kvist.step import TokenLogprob
from kvist.text.tokenizer import Tokenizer

MOST_CALLS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Shown:
    """What a request wants to see: scores, token ids, and at most so many ``calls`` of an answer."""

    scores: bool
    ids: bool
    calls: int


def opening(index: int) -> dict[str, Any]:
    """The first chunk of a sample: who speaks."""
    delta = {"role": "assistant", "content": ""}
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


class Spoken:
    """Owner: one reply. Give it every event of its sample, in order: to ``take``, or to ``piece``."""

    def __init__(self, index: int, shown: Shown, tokenizer: Tokenizer, job: Job) -> None:
        self.index = index
        self._shown = shown
        self._tokenizer = tokenizer
        self._job = job
        self._text: list[str] = []
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._calls: list[dict[str, Any]] = []
        self._ended: Ended | None = None

    @staticmethod
    def tokens(event: ChatEvent) -> int:
        """How many tokens it brought."""
        return len(event.token_ids) if isinstance(event, Wrote) else 0

    def piece(self, event: ChatEvent) -> dict[str, Any] | None:
        """What a stream says of it; None for nothing: text may lag behind the tokens."""
        choice: dict[str, Any] = {"index": self.index, "delta": {}, "logprobs": None, "finish_reason": None}
        if isinstance(event, Wrote):
            shown = event.token_ids and (self._shown.scores or self._shown.ids)
            if not event.text and not shown:
                return None
            choice["delta"] = {"content": event.text}
            if self._shown.scores and event.logprobs:
                choice["logprobs"] = self._content(event.logprobs)
            if self._shown.ids:
                choice["token_ids"] = list(event.token_ids)
        elif isinstance(event, Called):
            if event.index >= self._shown.calls:
                return None
            choice["delta"] = {"tool_calls": [{"index": event.index, **_call(event)}]}
        else:
            choice["finish_reason"] = _reason(event)
            choice["stop_reason"] = stop_reason(event.finish, self._job)
        return choice

    def take(self, event: ChatEvent) -> None:
        """Keep it for ``whole``."""
        if isinstance(event, Wrote):
            self._text.append(event.text)
            self._token_ids += event.token_ids
            self._logprobs += event.logprobs
        elif isinstance(event, Ended):
            self._ended = event
        elif event.index < self._shown.calls:
            self._calls.append(_call(event))

    def whole(self) -> dict[str, Any]:
        """Everything that was taken."""
        text = "".join(self._text)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if self._calls:
            message |= {"content": text or None, "tool_calls": self._calls}
        assert self._ended is not None
        choice = {
            "index": self.index,
            "message": message,
            "logprobs": self._content(self._logprobs) if self._shown.scores else None,
            "finish_reason": _reason(self._ended),
            "stop_reason": stop_reason(self._ended.finish, self._job),
        }
        if self._shown.ids:
            choice["token_ids"] = self._token_ids
        return choice

    def _content(self, scores: Any) -> dict[str, Any]:
        return {"content": chat_content(self._tokenizer, scores), "refusal": None}


def _call(event: Called) -> dict[str, Any]:
    return {"id": event.id, "type": "function", "function": {"name": event.name, "arguments": event.arguments}}


def _reason(event: Ended) -> str:
    return "tool_calls" if event.calls and event.finish.reason == "stop" else event.finish.reason
