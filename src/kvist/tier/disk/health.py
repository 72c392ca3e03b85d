"""Whether the tier takes records now, why not, and when it is tried again."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Final

from kvist.tier.base import Condition

LOG: Final = logging.getLogger("kvist.tier")
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


def reason_of(error: BaseException) -> str:
    """One line for people."""
    if isinstance(error, OSError) and error.errno:
        return f"{errno.errorcode.get(error.errno, error.errno)}: {os.strerror(error.errno)}"
    return (str(error) or type(error).__name__).splitlines()[0]


class Health:
    """The tier's condition. A failed write makes a pause, each twice as long as the last up to a minute."""

    def __init__(self, place: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._place, self._clock = place, clock
        self._lock = threading.Lock()
        self._pause_s, self._again_s = 0.0, 0.0
        self._fixed = self._bounded = False
        self.condition: Condition = "ok"
        self.reason = ""

    def fix(self, condition: Condition, reason: str) -> None:
        """For good: a folder that can only be read."""
        with self._lock:
            self._fixed = True
            self._change(condition, reason)

    def close(self) -> None:
        """The tier was closed: nothing to tell anybody."""
        with self._lock:
            self._fixed = True
            self.condition, self.reason = "off", "closed"

    def failed(self, reason: str, condition: Condition = "read-only") -> None:
        """A write failed (or the index could not be had: ``off``)."""
        with self._lock:
            if self._fixed:
                return
            self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s) if self._pause_s else FIRST_PAUSE_S
            self._again_s = self._clock() + self._pause_s
            self._change(condition, reason)

    def worked(self) -> None:
        """A write went through."""
        with self._lock:
            if not self._fixed and self.condition != "ok":
                self._pause_s = 0.0
                self._change("ok", "")

    def hopeful(self) -> None:
        """Something was removed: the next write is tried at once."""
        with self._lock:
            self._again_s = 0.0

    def tell(self, what: str) -> None:
        """A line in the log that changes nothing."""
        LOG.warning("disk tier %s: %s", self._place, what)

    def bounded(self, by: str) -> None:
        """Something else than the capacity bounds what is held (empty: nothing does); records make room for others."""
        with self._lock:
            if by and not self._bounded:
                LOG.warning("disk tier %s: what was used longest ago makes room: %s", self._place, by)
            self._bounded = bool(by)

    def may_try(self) -> bool:
        """Whether a write should be tried now."""
        with self._lock:
            return self.condition == "ok" or (not self._fixed and self._clock() >= self._again_s)

    def _change(self, condition: Condition, reason: str) -> None:
        if condition != self.condition:
            why = reason and f" ({reason})"
            told = {"condition": condition}  # so that who shows the condition in another way can leave this line out
            LOG.warning("disk tier %s: %s -> %s%s", self._place, self.condition, condition, why, extra=told)
        self.condition, self.reason = condition, reason
