"""The engine's numbers, read on the engine's thread between two steps, kept for when a step takes long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from kvist.errors import KvistError
from kvist.server.service import Service

WAIT_S: Final = 0.25


class Numbers:
    """``latest`` is what ``Engine.metrics`` said last. Owner: the event loop."""

    def __init__(self, service: Service, now: Callable[[], float]) -> None:
        self.latest: Mapping[str, float] = {}
        self._service = service
        self._now = now
        self._taken_s: float | None = None
        self._asking: asyncio.Task[None] | None = None

    @property
    def age_s(self) -> float:
        """Seconds since ``latest`` was read; 0 while nothing was."""
        return 0.0 if self._taken_s is None else self._now() - self._taken_s

    async def refresh(self, wait_s: float = WAIT_S) -> None:
        """Ask for newer numbers, and wait ``wait_s`` for them at most. One question is out at a time."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._ask())
        await asyncio.wait({self._asking}, timeout=wait_s)

    async def _ask(self) -> None:
        try:
            numbers = await self._service.call(lambda engine: engine.metrics())
        except KvistError:
            return  # no engine any more: the last numbers stay, their age says so
        self.latest, self._taken_s = numbers, self._now()
