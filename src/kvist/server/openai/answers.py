"""Several requests read as one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from kvist.errors import KvistError
from kvist.server.job import Delta, Job
from kvist.server.live import Bill, Live
from kvist.server.service import Service

News = tuple[int, Delta]
"""(which prompt, what it gained)."""


def submit_all(service: Service, jobs: Sequence[Job]) -> list[Live]:
    """Take all or none. Raises what ``Service.submit`` raises."""
    lives: list[Live] = []
    for job in jobs:
        try:
            live = service.submit(job)
        except KvistError:
            for taken in lives:
                taken.close()
            raise
        lives.append(live)
    return lives


class Answers:
    """Reads them side by side, each in its own order. Owner: the handler. Close it at the end, whatever the end was."""

    def __init__(self, lives: Sequence[Live]) -> None:
        self.lives = tuple(lives)
        self._came: asyncio.Queue[tuple[int, list[Delta] | KvistError]] = asyncio.Queue()
        self._open = len(lives)
        self._pumps: list[asyncio.Task[None]] = []

    async def batch(self) -> list[News]:
        """What came, waiting for something; empty when all are over. Raises the engine's refusal."""
        if len(self.lives) == 1:
            return [(0, delta) for delta in await self.lives[0].batch()]
        if not self._pumps:
            self._pumps = [asyncio.ensure_future(self._pump(i, live)) for i, live in enumerate(self.lives)]
        news: list[News] = []
        while self._open and (not news or not self._came.empty()):
            prompt, came = await self._came.get()
            if isinstance(came, KvistError):
                raise came
            self._open -= not came
            news += [(prompt, delta) for delta in came]
        return news

    async def _pump(self, prompt: int, live: Live) -> None:
        try:
            while deltas := await live.batch():
                self._came.put_nowait((prompt, deltas))
            self._came.put_nowait((prompt, []))
        except KvistError as error:
            self._came.put_nowait((prompt, error))

    def bills(self) -> list[Bill]:
        """The costs, prompt by prompt."""
        return [live.bill() for live in self.lives]

    def close(self) -> None:
        """Nobody reads this any more."""
        for pump in self._pumps:
            pump.cancel()
        for live in self.lives:
            live.close()
