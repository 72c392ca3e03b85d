"""A switch in front of a remote place: after several failures in a row nobody asks it until a pause is over.

While it is off every question is answered at once. When the pause is over one caller asks; if that fails too, the next
pause is twice as long, up to a minute. So a dead or slow server costs one caller its timeout once a pause.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger("kvist.tier")


class Breaker:
    """``good`` and ``bad`` say how a question went; ``allows`` whether to ask the next one.

    ``failures`` in a row turn it off, for ``pause_s`` first and ``most_pause_s`` at most. One log line a change.
    """

    def __init__(
        self,
        where: str,
        *,
        failures: int = 3,
        pause_s: float = 1.0,
        most_pause_s: float = 60.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._where = where
        self._failures = failures
        self._first_pause_s = pause_s
        self._most_pause_s = most_pause_s
        self._now = now
        self._lock = threading.Lock()
        self._in_a_row = 0
        self._pause_s = 0.0
        """Above 0: it is off."""
        self._next_s = 0.0
        self._reason = ""

    def allows(self) -> bool:
        """Whether the place may be asked. While it is off, one caller a pause is let through."""
        with self._lock:
            if not self._pause_s:
                return True
            if self._now() < self._next_s:
                return False
            self._next_s = self._now() + self._pause_s
            return True

    def good(self) -> None:
        """The place answered."""
        with self._lock:
            was_off, self._in_a_row, self._pause_s, self._reason = self._pause_s > 0, 0, 0.0, ""
        if was_off:
            log.info("%s answers again", self._where)

    def bad(self, reason: str) -> None:
        """The place did not answer, or not with sense."""
        with self._lock:
            self._in_a_row += 1
            self._reason = reason
            was_off = self._pause_s > 0
            if was_off:
                self._pause_s = min(2 * self._pause_s, self._most_pause_s)
            elif self._in_a_row >= self._failures:
                self._pause_s = self._first_pause_s
            self._next_s = self._now() + self._pause_s
            turned_off = self._pause_s > 0 and not was_off
        if turned_off:
            log.warning("%s is off: %s; it is asked again after pauses of up to a minute", self._where, reason)

    @property
    def off(self) -> bool:
        """Whether questions are answered without asking."""
        with self._lock:
            return self._pause_s > 0

    @property
    def reason(self) -> str:
        """Why it is off, in one line; empty while it is on."""
        with self._lock:
            if not self._pause_s:
                return ""
            left_s = max(0.0, self._next_s - self._now())
            return f"{self._where}: {self._reason}; asked again in {left_s:.0f} s"
