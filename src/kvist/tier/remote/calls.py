"""Threads that make blocking calls for somebody who waits only so long.

A call that was given up goes on in its thread until its library ends it; what it brings is thrown away. So a call must
not write into anything of its caller's. The threads are daemons: a call that hangs for ever holds nobody up at exit.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from kvist.tier.remote.place import left_s

T = TypeVar("T")


class Call(Generic[T]):
    """One call, done by a thread of ``Calls``."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._ended = threading.Event()
        self._result: list[T] = []
        self._error: Exception | None = None
        self.given_up = False

    @property
    def ended(self) -> bool:
        """Whether it is over, or will never be begun."""
        return self._ended.is_set()

    def run(self) -> None:
        """Make the call, unless nobody waits for it any more."""
        if not self.given_up:
            try:
                self._result.append(self._function())
            except Exception as error:  # handed to whoever waits
                self._error = error
        self._ended.set()

    def result(self, until: float) -> T:
        """What the call gave or raised. ``TimeoutError`` gives the call up."""
        try:
            if not self._ended.wait(left_s(until)):
                raise TimeoutError("no answer in time")
        except TimeoutError:
            self.given_up = True
            raise
        if self._error is not None:
            raise self._error
        return self._result[0]


class Calls:
    """At most ``threads`` calls at a time; the threads start when first needed."""

    def __init__(self, threads: int, name: str) -> None:
        self._threads = threads
        self._name = name
        self._lock = threading.Lock()
        self._started = 0
        self._queue: queue.SimpleQueue[Call[object] | None] = queue.SimpleQueue()

    def begin(self, function: Callable[[], T]) -> Call[T]:
        """Begin a call."""
        call = Call(function)
        with self._lock:
            if self._started < self._threads:
                self._started += 1
                threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()
        self._queue.put(call)  # type: ignore[arg-type]
        return call

    def close(self) -> None:
        """Let the threads end when they are done."""
        with self._lock:
            for _ in range(self._started):
                self._queue.put(None)
            self._started = self._threads

    def _work(self) -> None:
        while (call := self._queue.get()) is not None:
            call.run()
