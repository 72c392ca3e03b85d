"""Why a prompt was not found in the cache, in words and with the two tokens that differ."""

from __future__ import annotations

from typing import Any, Final

from kvist.errors import KvistError
from kvist.server.job import Delta
from kvist.server.live import Live
from kvist.server.records import Record
from kvist.server.service import Service
from kvist.text.tokenizer import Tokenizer

WORDS: Final = {
    "end": "what is cached ends here: nobody has sent this prompt further than this",
    "limit": "a part that must be computed anew was cached (the last token of a prompt always is)",
    "diverged": "another token stands here in what is cached",
    "evicted": "what follows was cached, and had to make room",
    "empty": "nothing is cached in this namespace: its first request, or all was evicted (key, cache_salt, model)",
    "window": "a layer with a sliding window has dropped blocks that are needed to go on from here",
    "full": "the pool had no free block for the copy of a partly matching block",
    "off": "reuse is switched off, for the server or for this request",
}
"""By ``Match.reason``."""


class Misses:
    """An observer that keeps, for requests that can still be asked about, what differed. Bounded by the history."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._found: dict[str, dict[str, Any]] = {}

    def of(self, record: Record) -> dict[str, Any] | None:
        """Of an ended request; None when everything that can be reused was."""
        return self._found.get(record.id)

    def opened(self, record: Record) -> None:
        """Nothing yet."""

    def gained(self, record: Record, parcel: Delta | KvistError, now_s: float) -> None:
        """Nothing yet."""

    def ended(self, record: Record, live: Live) -> None:
        """Look at the prompt before it is dropped."""
        first = live.finishes.get(0)
        matched = first.timeline.matched if first else None
        prompt = live.job.prompt
        if matched is None or matched.cached_tokens >= len(prompt) - 1:
            return
        tokenizer = self._service.served.tokenizer
        at = matched.first_differing
        mine = matched.reason != "off"
        self._found[record.id] = {
            "code": matched.reason,
            "reason": WORDS.get(matched.reason, matched.reason),
            "first_differing_index": at,
            "prompt_token": _token(tokenizer, prompt[at]) if mine and at < len(prompt) else None,
            "cached_token": (
                _token(tokenizer, matched.cached_there) if self._private and matched.cached_there is not None else None
            ),
        }
        while len(self._found) > self._service.config.history:
            del self._found[next(iter(self._found))]

    @property
    def _private(self) -> bool:
        """True when what is cached there can only be the tenant's own."""
        tenants = self._service.config.tenants
        return tenants.isolate or len(tenants.known) < 2


def _token(tokenizer: Tokenizer, token: int) -> dict[str, Any]:
    return {"id": token, "text": tokenizer.token_bytes(token, special=True).decode("utf-8", "replace")}
