"""Daemon threads that take jobs from one queue and call a tier, which may take longer than it should."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

GRACE_S: Final = 0.25
"""How far beyond its time a tier's call may go before it counts as hung."""

J = TypeVar("J")


@dataclass(slots=True, eq=False)
class Call(Generic[J]):
    """A tier's call that runs now. ``given_up``: its job was answered without it."""

    job: J
    deadline: float
    given_up: bool = False

    def hung(self, now: float) -> bool:
        """Whether it should have come back long ago."""
        return now > self.deadline + GRACE_S


class Worker(Generic[J]):
    """``queue`` (oldest first) and ``calls`` are changed with ``lock`` held; ``run`` is called without it.

    Threads start with the first job. ``patience``: seconds for which a job that is alone may wait for more to join it.
    ``nice``: how far its threads, and those that they start, stand back behind others that want the processor.
    """

    def __init__(
        self,
        name: str,
        lock: threading.Lock,
        run: Callable[[J], None],
        *,
        threads: int = 1,
        patience: Callable[[J], float] = lambda _: 0.0,
        nice: int = 0,
    ) -> None:
        self.queue: deque[J] = deque()
        self.calls: list[Call[J]] = []
        self._name = name
        self._ready = threading.Condition(lock)
        self._run = run
        self._wanted = threads
        self._patience = patience
        self._nice = nice
        self._threads: list[threading.Thread] = []
        self.closed = False

    def add(self, job: J) -> None:
        """Queue a job. With the lock held."""
        assert not self.closed, "a job for a mover that was closed"
        self.queue.append(job)
        self.wake()
        if not self._threads:
            for i in range(self._wanted):
                thread = threading.Thread(target=self._loop, name=f"kvist-{self._name}-{i}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def wake(self) -> None:
        """Have a thread look at the queue. With the lock held."""
        self._ready.notify()

    def hung(self, now: float) -> bool:
        """Whether none of its threads can take a job: each is in a call that should have come back. Lock held."""
        return sum(call.hung(now) for call in self.calls) >= self._wanted

    def close(self) -> None:
        """No more jobs. With the lock held."""
        self.closed = True
        self.queue.clear()
        self._ready.notify_all()

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads; whether they are gone. Without the lock."""
        for thread in self._threads:
            thread.join(max(0.0, timeout_s))
        return not any(thread.is_alive() for thread in self._threads)

    def _loop(self) -> None:
        if self._nice:
            _be_nice(self._nice)
        while True:
            with self._ready:
                while not self.closed and (left_s := self._left_s()) != 0:
                    self._ready.wait(left_s)
                if self.closed:
                    return
                job = self.queue.popleft()
            self._run(job)

    def _left_s(self) -> float | None:
        """0 when there is a job to do now; None when there is none."""
        if not self.queue:
            return None
        return 0.0 if len(self.queue) > 1 else max(0.0, self._patience(self.queue[0]))


def _be_nice(nice: int) -> None:
    """Only this thread, where the system can (Linux); elsewhere nothing changes."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
