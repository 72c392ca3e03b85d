"""One request's answer as the event loop sees it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kvist.errors import KvistError
from kvist.server.job import Delta, Finish, Job


@dataclass(frozen=True, slots=True)
class Bill:
    """What a request cost, all samples together; the prompt counts once.

    ``cached_by_tier``: where the cached tokens lay (``pool``, and the name of the tier or ``tiers`` for several).
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    preemptions: int
    recomputed_tokens: int
    cached_by_tier: Mapping[str, int] = field(default_factory=dict)

    @property
    def total_tokens(self) -> int:
        """Prompt and output."""
        return self.prompt_tokens + self.completion_tokens


class Live:
    """Deltas of all samples in the order in which they came. Owner: the handler that reads it.

    Read it once, to the end; or ``close`` it, and the engine stops working on it. What was not read yet is bounded by
    the request's own ``max_tokens``, and the request counts as inside until it was read or closed.
    """

    def __init__(
        self,
        ticket: int,
        job: Job,
        *,
        writes: bool,
        close: Callable[[int], None],
        release: Callable[[Live], None],
        tiers: Sequence[str] = (),
    ) -> None:
        """``writes``: what it computes stays in the cache. ``close`` aborts; ``release`` is called once, at the end.

        ``tiers``: names of those behind the pool.
        """
        self.ticket = ticket
        self.job = job
        self._writes = writes
        self._tiers = tuple(tiers)
        self._release: Callable[[Live], None] | None = release
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
            if self.done or self._closed:
                self._let_go()
                if self._error is not None:
                    raise self._error
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
            self._let_go()

    def _let_go(self) -> None:
        """Nothing of it is left on this side."""
        if self._release is not None and (self.done or self._closed):
            release, self._release = self._release, None
            release(self)

    def bill(self) -> Bill:
        """The costs so far: complete when ``done``."""
        usages = [f.usage for f in self.finishes.values()]
        prompt = len(self.job.prompt)
        first = self.finishes.get(0)
        cached = first.usage.cached_tokens if first else 0
        computed = max((u.computed_tokens for u in usages), default=0)
        return Bill(
            prompt_tokens=prompt,
            completion_tokens=sum(u.output_tokens for u in usages),
            cached_tokens=cached,
            cache_write_tokens=max(0, min(prompt, computed) - cached) if self._writes else 0,
            preemptions=sum(u.preemptions for u in usages),
            recomputed_tokens=sum(u.recomputed_tokens for u in usages),
            cached_by_tier=self._by_tier(cached, first.usage.loaded_tokens if first else 0),
        )

    def _by_tier(self, cached: int, loaded: int) -> dict[str, int]:
        if not self._tiers:
            return {"pool": cached}
        return {"pool": cached - loaded, self._tiers[0] if len(self._tiers) == 1 else "tiers": loaded}
