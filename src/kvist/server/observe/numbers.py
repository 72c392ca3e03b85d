"""The engine's numbers, read on the engine's thread between two steps, kept for when a step takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from kvist.errors import KvistError
from kvist.server.service import Service
from kvist.tier.base import Usage

WAIT_S: Final = 0.25


class Numbers:
    """``latest`` is what ``Service.numbers`` said last, ``usages`` how each tier was. Owner: the event loop."""

    def __init__(self, service: Service, now: Callable[[], float]) -> None:
        self.latest: Mapping[str, float] = {}
        self.usages: Mapping[str, Usage] = {}
        self.pool_tokens = 0.0
        """Cached tokens that lay in the pool; never less than before."""
        self._service = service
        self._now = now
        self._taken_s: float | None = None
        self._asking: dict[str, asyncio.Task[None]] = {}

    @property
    def age_s(self) -> float:
        """Seconds since ``latest`` was read; 0 while nothing was."""
        return 0.0 if self._taken_s is None else self._now() - self._taken_s

    async def refresh(self, wait_s: float = WAIT_S) -> None:
        """Ask for newer numbers, and wait ``wait_s`` for them at most. One question of a kind is out at a time."""
        await asyncio.wait(self.ask(), timeout=wait_s)

    def ask(self) -> set[asyncio.Task[None]]:
        """Ask, and do not wait."""
        return {self._ask_once("engine", self._engine), self._ask_once("tiers", self._tiers)}

    def _ask_once(self, what: str, ask: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        task = self._asking.get(what)
        if task is None or task.done():
            task = self._asking[what] = asyncio.ensure_future(ask())
        return task

    async def _engine(self) -> None:
        try:
            numbers = await self._service.numbers()
        except KvistError:
            return  # no engine any more: the last numbers stay, their age says so
        self.take(numbers)

    def take(self, numbers: Mapping[str, float]) -> None:
        """New numbers came."""
        self.latest, self._taken_s = numbers, self._now()
        loaded = numbers.get("sched_loaded_tokens", 0.0)  # some of them for the second time: then they are not cached
        self.pool_tokens = max(self.pool_tokens, numbers.get("sched_cached_tokens", 0.0) - loaded)

    async def _tiers(self) -> None:
        places = self._service.served.places
        if places is None:
            self.usages = {}
            return
        self.usages = dict(zip(places.names, await asyncio.to_thread(places.usages), strict=True))
