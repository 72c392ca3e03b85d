"""One request's answer as the event loop sees it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from kvist.errors import KvistError
from kvist.server.job import Delta, Finish, Job


@dataclass(frozen=True, slots=True)
class Bill:
    """What a request cost, all samples together; the prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    preemptions: int
    recomputed_tokens: int

    @property
    def total_tokens(self) -> int:
        """Prompt and output."""
        return self.prompt_tokens + self.completion_tokens


class Live:
    """Deltas of all samples in the order in which they came. Owner: the handler that reads it.

    Iterate it once, to the end; or ``close`` it, and the engine stops working on it. What was not read yet is bounded
    by the request's own ``max_tokens``.
    """

    def __init__(self, ticket: int, job: Job, close: Callable[[int], None]) -> None:
        self.ticket = ticket
        self.job = job
        self.finishes: dict[int, Finish] = {}
        self.cached_tokens: int | None = None
        """Of the prompt, from the cache; None until the first token came."""
        self._close = close
        self._ready: deque[Delta] = deque()
        self._error: KvistError | None = None
        self._wake: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def done(self) -> bool:
        """True when every sample has ended, or the engine refused the request."""
        return self._error is not None or len(self.finishes) == self.job.n

    def push(self, parcel: Delta | KvistError) -> None:
        """From the bridge: something new."""
        if isinstance(parcel, KvistError):
            self._error = parcel
        else:
            if parcel.sample == 0 and parcel.cached_tokens is not None:
                self.cached_tokens = parcel.cached_tokens
            if parcel.finish is not None:
                self.finishes[parcel.sample] = parcel.finish
            if not self._closed:
                self._ready.append(parcel)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def batch(self) -> list[Delta]:
        """Everything that is there, waiting for something; empty when it is over. Raises the engine's refusal."""
        while not self._ready:
            if self._error is not None:
                raise self._error
            if self.done or self._closed:
                return []
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        ready = list(self._ready)
        self._ready.clear()
        return ready

    async def __aiter__(self) -> AsyncIterator[Delta]:
        while batch := await self.batch():
            for delta in batch:
                yield delta

    def close(self) -> None:
        """Nobody reads this any more."""
        if not self._closed:
            self._closed = True
            self._ready.clear()
            if not self.done:
                self._close(self.ticket)

    def bill(self) -> Bill:
        """The costs so far: complete when ``done``."""
        usages = [f.usage for f in self.finishes.values()]
        prompt = len(self.job.prompt)
        first = self.finishes.get(0)
        cached = first.usage.cached_tokens if first else 0
        return Bill(
            prompt_tokens=prompt,
            completion_tokens=sum(u.output_tokens for u in usages),
            cached_tokens=cached,
            cache_write_tokens=prompt - cached if self.job.reuse else 0,
            preemptions=sum(u.preemptions for u in usages),
            recomputed_tokens=sum(u.recomputed_tokens for u in usages),
        )
