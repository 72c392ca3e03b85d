"""The desk between the protocols and the engine's thread: takes jobs, refuses what it must, hands out answers.

Everything here happens on the event loop. The bridge is bounded on both sides: at most ``max_queue`` requests of a
tenant are inside, and an answer holds at most its own tokens.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeVar

from kvist.engine.engine import Engine
from kvist.errors import BadValue
from kvist.ids import RequestId
from kvist.sched.request import Request
from kvist.server.config import ServeConfig
from kvist.server.job import Job
from kvist.server.live import Live
from kvist.server.loop import LEAST_FLUSH_S, EngineLoop, Parcel, Work
from kvist.server.observe.base import Observer
from kvist.server.pressure import Pressure
from kvist.server.records import Records
from kvist.server.refuse import Refusal, busy
from kvist.server.served import Loader, Served

log = logging.getLogger("kvist.server")
T = TypeVar("T")
CLOSE_S = 5.0
"""What tiers may take to close once everything was written."""
PRIORITY_LIMIT = 1_000_000
MOST_SCORES = 400_000
"""Log-probabilities of one request: writing them takes microseconds each, during which nobody else is answered."""


class Service:
    """Owner of everything that is open. One per server."""

    def __init__(
        self, served: Served, config: ServeConfig, *, now: Callable[[], float], loader: Loader | None = None
    ) -> None:
        """``now`` is the clock the engine reads; ``loader`` may replace the weights."""
        self.config = config
        self.records = Records(config.history)
        self.observers: list[Observer] = []
        self.counts: Counter[str] = Counter()
        """Requests by what became of them: ``accepted``, ``refused_<code>``, ``disconnected``, ..."""
        self.draining = False
        self.swapping = False
        self.dead: BaseException | None = None
        self.on_death: Callable[[BaseException], None] = lambda error: None
        self._now = now
        self._loader = loader
        self._loop: asyncio.AbstractEventLoop | None = None
        self._live: dict[int, Live] = {}
        self._inside: Counter[str] = Counter()
        self._tickets = 0
        self._pressure = Pressure(dict(config.tenants.weights))
        self._engine_loop = EngineLoop(served, self._from_engine, self._from_grave)

    @property
    def served(self) -> Served:
        """What is served now."""
        return self._engine_loop.served

    @property
    def open(self) -> int:
        """Requests inside, waiting or running."""
        return len(self._live)

    @property
    def ready(self) -> bool:
        """True when new work is taken."""
        return self._loop is not None and self.dead is None and not self.draining

    def start(self) -> None:
        """Begin serving; call it on the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._engine_loop.start()

    async def stop(self, timeout_s: float = 5.0, flush_s: float = 0.0) -> None:
        """End the engine's thread after its step; what is open ends with ``abort``.

        Then the tiers are closed: what is on its way to them has ``flush_s`` (``LEAST_FLUSH_S`` at least) to arrive.
        """
        self.draining = True
        until = self._now() + timeout_s
        if self.served.places is not None:
            until += max(flush_s, LEAST_FLUSH_S) + CLOSE_S
        if self._engine_loop.alive:
            self._engine_loop.stop(flush_s)
        while (self._engine_loop.alive or self._live) and self._now() < until:
            await asyncio.sleep(0.01)

    async def drain(self, timeout_s: float) -> int:
        """Take nothing new and wait for what is open; says how many had not ended after ``timeout_s``."""
        self.draining = True
        until = self._now() + timeout_s
        while self._live and self._now() < until and self.dead is None:
            await asyncio.sleep(0.02)
        return len(self._live)

    # --- work -----------------------------------------------------------------------------------------------------

    def submit(self, job: Job) -> Live:
        """Take a job. Raises ``Refusal`` (busy, draining, dead) or what is wrong with the request itself."""
        request = self._request(job)
        limit = self.served.engine.scheduler.limits.limit_tokens(request)
        self._admit(job)
        ticket = self._tickets
        writes = job.reuse and self.served.engine.scheduler.cache.reuse
        places = self.served.places
        tiers = places.names if places is not None else ()
        live = Live(ticket, job, writes=writes, close=self._closed, release=self._released, tiers=tiers)
        self._live[ticket] = live
        self._inside[job.tenant.name] += job.n
        self._pressure.enter(ticket, job.tenant.name, len(job.prompt), limit - len(job.prompt), job.n)
        record = self.records.open(ticket, job, self._now())
        self.counts["accepted"] += 1
        self._tell(lambda observer: observer.opened(record))
        self._engine_loop.submit(Work(ticket, request, self.served, job.stop, job.show_special))
        return live

    def _request(self, job: Job) -> Request:
        served = self.served
        self._tickets += 1
        if abs(job.priority) > PRIORITY_LIMIT:
            raise BadValue("priority", job.priority, f"a whole number in [-{PRIORITY_LIMIT}, {PRIORITY_LIMIT}]")
        if job.prompt and not (0 <= min(job.prompt) and max(job.prompt) < served.vocab):
            wrong = next(token for token in job.prompt if not 0 <= token < served.vocab)
            raise BadValue("prompt", wrong, f"token ids in [0, {served.vocab})")
        for token in job.stop_ids:
            if not 0 <= token < served.vocab:
                raise BadValue("stop_token_ids", token, f"token ids in [0, {served.vocab})")
        for token, bias in job.sampling.logit_bias:
            if token >= served.vocab:
                raise BadValue("logit_bias", (token, bias), f"token ids below the vocabulary size {served.vocab}")
        most = job.max_tokens or self.config.max_output_tokens or served.context_tokens
        if job.sampling.logprobs is not None:
            scores = job.n * min(most, served.context_tokens) * (1 + job.sampling.logprobs)
            if scores > MOST_SCORES:
                expected = f"at most {MOST_SCORES} log-probabilities in all: n x max_tokens x (1 + alternatives)"
                raise BadValue("logprobs", scores, expected, remedy="ask for fewer, or set max_tokens")
        return Request(
            id=RequestId(f"r{self._tickets}"),
            prompt=job.prompt,
            max_tokens=most,
            sampling=job.sampling,
            stop_ids=(*served.tokenizer.eos_ids, *job.stop_ids),
            n=job.n,
            priority=-job.priority,
            salt=self.config.tenants.salt(job.tenant, job.salt),
            extras=job.extras,
            prompt_logprobs=job.prompt_logprobs,
            reuse=job.reuse,
            ignore_eos=job.ignore_eos,
            tenant=job.tenant.name,
        )

    def _admit(self, job: Job) -> None:
        """Shed before collapse: what could not be served in time is refused at once, with the numbers."""
        if self.dead is not None:
            raise Refusal(500, "engine_dead", f"the engine has stopped: {self.dead}", remedy="restart the server")
        if self.draining or self._loop is None:
            what = "the server is shutting down" if self.draining else "the server is starting"
            raise busy(what, retry_after_s=5, status=503, code="not_ready")
        name, most = job.tenant.name, self.config.max_queue
        if job.n > most:
            raise BadValue("n", job.n, f"at most {most}: a tenant may have no more answers inside")
        config, wait_s, inside = self.config, self._pressure.wait_s(name), self._inside[name]
        if inside + job.n > most:
            what = f"{inside} answers of {name} are waiting, running or not read yet, and {most} are allowed"
            raise busy(what, retry_after_s=wait_s / max(1, inside), code="queue_full")
        if wait_s > config.max_wait_s:
            what = f"about {wait_s:.0f} s of {name}'s work are waiting, and {config.max_wait_s:g} s are allowed"
            raise busy(what, retry_after_s=wait_s - config.max_wait_s, status=503, code="overloaded")

    def _closed(self, ticket: int) -> None:
        self.counts["disconnected"] += 1
        self._engine_loop.abort(ticket)

    # --- the engine -----------------------------------------------------------------------------------------------

    async def call(self, run: Callable[[Engine], T]) -> T:
        """Run a function on the engine between two steps. Raises ``Refusal`` when there is no engine any more."""
        if self.dead is not None or not self._engine_loop.taking:
            raise Refusal(500, "engine_dead", "the engine has stopped", remedy="restart the server")
        return await asyncio.wrap_future(self._engine_loop.call(run))

    async def numbers(self) -> Mapping[str, float]:
        """``Engine.metrics``, totals counted from the server's start on: other weights begin no new count.

        Raises what ``call`` raises.
        """
        return await self.call(lambda engine: self._engine_loop.earlier.plus(engine.metrics()))

    async def swap(self, path: str) -> Served:
        """Serve the weights at ``path`` instead: what runs ends on the old ones, what comes later gets the new ones.

        Raises what the loader raises, and then goes on with the old ones. Nothing cached survives.
        """
        loader = self._loader
        if loader is None:
            raise Refusal(400, "unsupported", "this server cannot change its weights")
        if self.swapping:
            raise Refusal(409, "busy", "new weights are being loaded already", remedy="wait for them")
        self.swapping = True
        try:
            return await asyncio.wrap_future(self._engine_loop.swap(lambda: loader(path)))
        finally:
            self.swapping = False

    def _from_engine(self, parcels: list[Parcel]) -> None:
        """On the engine's thread."""
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._take, parcels)

    def _from_grave(self, error: BaseException) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._die, error)

    def _take(self, parcels: list[Parcel]) -> None:
        now = self._now()
        for ticket, parcel in parcels:
            live = self._live.get(ticket)
            if live is None:
                continue
            live.push(parcel)
            self._pressure.note(ticket, parcel, now)
            record = self.records.note(ticket, parcel, now)
            self._tell(lambda o, r=record, p=parcel: o.gained(r, p, now))  # type: ignore[misc]
            if live.done:
                self._end(ticket, live)

    def _end(self, ticket: int, live: Live) -> None:
        """The engine is done with it; its place is free when it was read, too."""
        del self._live[ticket]
        self._pressure.leave(ticket)
        record = self.records.close(ticket, live)
        self._tell(lambda observer: observer.ended(record, live))

    def _released(self, live: Live) -> None:
        name = live.job.tenant.name
        self._inside[name] -= live.job.n
        if not self._inside[name]:
            del self._inside[name]

    def _tell(self, what: Callable[[Observer], None]) -> None:
        """Tell the observers. What one of them does wrong is its own affair: answers go on."""
        for observer in self.observers:
            try:
                what(observer)
            except Exception:
                self.counts["observer_failures"] += 1
                if self.counts["observer_failures"] == 1:
                    log.exception("an observer failed")

    def _die(self, error: BaseException) -> None:
        self.dead = error
        refusal = Refusal(500, "engine_dead", f"the engine has stopped: {type(error).__name__}: {error}")
        for ticket, live in list(self._live.items()):
            live.push(refusal)
            self._end(ticket, live)
        self.on_death(error)
