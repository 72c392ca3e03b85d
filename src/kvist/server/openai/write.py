"""What every answer has in common: its head, its usage, its chunks. Dicts are built by hand: they are many."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final

from kvist.server.job import Finish, Job
from kvist.server.live import Bill, Live
from kvist.server.openai.schema import StreamOptions
from kvist.server.records import record_id
from kvist.server.refuse import Refusal, failure
from kvist.server.served import Served
from kvist.server.stream import DONE, dump, event

PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    400: {"description": "A field is wrong or not supported; the message names it and its limits."},
    401: {"description": "No API key, or an unknown one."},
    404: {"description": "The model is not served here."},
    408: {"description": "The request did not come in time."},
    413: {"description": "The body is too large."},
    429: {"description": "Too much is waiting; Retry-After says when to come again."},
    500: {"description": "The engine failed."},
    503: {"description": "The server is loading, draining or overloaded."},
}
"""Answers that are no answer, for the OpenAPI description."""


def head(kind: str, prefix: str, model: str, served: Served) -> dict[str, Any]:
    """The first fields of a response or a chunk."""
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": fingerprint(served),
    }


def fingerprint(served: Served) -> str:
    """The same as long as the weights, the tokenizer and how they are run are the same."""
    facts = json.dumps(dict(served.facts), sort_keys=True, default=str)
    state = blake2b(served.path.encode("utf-8", "surrogateescape") + b"\0" + facts.encode(), digest_size=6)
    state.update(served.tokenizer.digest())
    return f"kvist-{state.hexdigest()}"


def kvist_fields(lives: Sequence[Live]) -> dict[str, Any]:
    """How to ask about the request later, and how much of a conversation was taken as the model had written it."""
    fields: dict[str, Any] = {
        "request_id": record_id(lives[0].ticket),
        "kept_tokens": sum(live.job.kept_tokens for live in lives),
    }
    if len(lives) > 1:
        fields["request_ids"] = [record_id(live.ticket) for live in lives]
    return fields


def usage(bills: Iterable[Bill], *, truncated_tokens: int = 0, hidden: bool = False) -> dict[str, Any]:
    """What it cost, over all prompts. ``hidden``: the token that scoring a prompt draws was not asked for."""
    bills = list(bills)
    prompt = sum(b.prompt_tokens for b in bills)
    completion = 0 if hidden else sum(b.completion_tokens for b in bills)
    cached = sum(b.cached_tokens for b in bills)
    details: dict[str, Any] = {
        "cached_tokens": cached,
        "cache_write_tokens": sum(b.cache_write_tokens for b in bills),
        "cached_tokens_by_tier": by_tier(bills),
        "audio_tokens": 0,
    }
    if truncated_tokens:
        details["truncated_tokens"] = truncated_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": details,
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }


def by_tier(bills: Iterable[Bill]) -> dict[str, int]:
    """Where the cached tokens lay."""
    found = {"pool": 0}
    for bill in bills:
        for tier, tokens in bill.cached_by_tier.items():
            found[tier] = found.get(tier, 0) + tokens
    return found


def stop_reason(finish: Finish, job: Job) -> str | int | None:
    """The stop string, or the id among ``stop_token_ids``, that ended it (vLLM)."""
    return finish.stop if isinstance(finish.stop, str) or finish.stop in job.stop_ids else None


def failed(finish: Finish) -> Refusal:
    """The engine gave up on a sample."""
    return failure(finish.error, of_request=finish.of_request)


class Frame:
    """Chunks of one stream: everything but the choices is written once."""

    def __init__(self, head: dict[str, Any], options: StreamOptions | None, prompt_tokens: int) -> None:
        self._head = head
        self._start = b"data: " + dump(head)[:-1] + b',"choices":['
        self._usage = bool(options and options.include_usage)
        self._running = bool(options and options.continuous_usage_stats)
        self._prompt_tokens = prompt_tokens
        self._drawn_tokens = 0
        self._end = b'],"usage":null}\n\n' if self._usage else b"]}\n\n"

    def add(self, tokens: int) -> None:
        """So many tokens came."""
        self._drawn_tokens += tokens

    def chunk(self, choice: dict[str, Any]) -> bytes:
        """One choice's news."""
        end = self._end
        if self._running:
            drawn, prompt = self._drawn_tokens, self._prompt_tokens
            end = b'],"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}\n\n' % (
                prompt,
                drawn,
                prompt + drawn,
            )
        return self._start + dump(choice) + end

    def opening(self, choices: Sequence[dict[str, Any]], extra: dict[str, Any]) -> bytes:
        """The first chunks; ``extra`` are further fields of the very first."""
        rest = {"usage": None} if self._usage else {}
        first = event({**self._head, **extra, "choices": [choices[0]], **rest})
        return first + b"".join([self.chunk(choice) for choice in choices[1:]])

    def closing(self, usage: dict[str, Any], extra: dict[str, Any]) -> bytes:
        """What ends a stream that went well."""
        if not self._usage:
            return DONE
        return event({**self._head, **extra, "choices": [], "usage": usage}) + DONE
