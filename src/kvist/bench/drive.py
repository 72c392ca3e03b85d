"""When requests are sent: so many at once, at random times of a rate, or at the times of a trace."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import accumulate, repeat
from random import Random

from kvist.bench.record import Answer
from kvist.bench.workload.base import Ask, Script

Send = Callable[[Ask, float | None], Awaitable[Answer | None]]
"""Send one request, due at a time (None: now); None when it failed."""


class Gate:
    """Lets requests pass until ``limit`` were let, or somebody closes it."""

    def __init__(self, limit: int | None = None) -> None:
        self._left = limit
        self.closed_because = ""

    def close(self, why: str) -> None:
        """No request passes from now on."""
        self.closed_because = self.closed_because or why

    def passes(self) -> bool:
        """Whether one more may be sent."""
        if self.closed_because or self._left == 0:
            return False
        if self._left is not None:
            self._left -= 1
        return True


class Player:
    """A script on its way: what it wants to send next."""

    def __init__(self, script: Script) -> None:
        self._play = script.play()
        self._next = next(self._play)

    async def turn(self, send: Send, gate: Gate, due_s: float | None = None) -> bool:
        """Send one request; whether another is to follow. A failure ends the script: there is nothing to go on with."""
        if self._next.pause_s:
            await asyncio.sleep(self._next.pause_s)
        if not gate.passes():
            return False
        answer = await send(self._next, due_s)
        if answer is None:
            return False
        try:
            self._next = self._play.send(answer)
        except StopIteration:
            return False
        return True


async def closed_loop(scripts: Sequence[Script], at_once: int, send: Send, gate: Gate, *, by_turns: bool) -> None:
    """Keep ``at_once`` requests in flight while there are scripts that have one.

    ``by_turns``: a script that sent one goes behind all others; else it is played to its end first.
    """
    waiting: deque[Script | Player] = deque(scripts)

    async def work() -> None:
        while waiting:
            first = waiting.popleft()
            player = first if isinstance(first, Player) else Player(first)
            if await player.turn(send, gate):
                (waiting.append if by_turns else waiting.appendleft)(player)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(at_once, len(scripts))):
            tasks.create_task(work())


async def open_loop(
    scripts: Sequence[Script],
    due_s: Iterator[float],
    send: Send,
    gate: Gate,
    now: Callable[[], float],
    max_concurrency: int | None,
) -> None:
    """Start each script at its time, whatever became of those before; ``max_concurrency`` bounds requests in flight."""
    room = asyncio.Semaphore(max_concurrency) if max_concurrency else None

    async def bounded(ask: Ask, due: float | None) -> Answer | None:
        if room is None:
            return await send(ask, due)
        due = now() if due is None else due
        async with room:
            return await send(ask, due)

    async def play(script: Script, due: float | None) -> None:
        player = Player(script)
        while await player.turn(bounded, gate, due):
            due = None

    async with asyncio.TaskGroup() as tasks:
        for script, due in zip(scripts, due_s, strict=False):
            await asyncio.sleep(max(0.0, due - now()))
            if gate.closed_because:
                return
            tasks.create_task(play(script, due))


def poisson_times(rate: float, seed: int) -> Iterator[float]:
    """Arrivals at ``rate`` a second: exponential gaps, the first one at 0."""
    draw = Random(f"arrivals/{seed}")
    return accumulate((draw.expovariate(rate) for _ in repeat(None)), initial=0.0)
