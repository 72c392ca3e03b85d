"""Pieces of memory that a library reads and writes by address, lent to one call at a time.

A lane whose call was given up comes back only when that call has ended: until then the library may write to it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from kvist.tier.remote.calls import Call, Calls
from kvist.tier.remote.place import left_s

T = TypeVar("T")

ALIGN_BYTES: Final = 64
_POLL_S: Final = 0.002


class Lanes:
    """``n`` lanes of ``lane_bytes``. ``calls`` has as many threads, so a call that was begun has its lane's time."""

    def __init__(self, n: int, lane_bytes: int, calls: Calls) -> None:
        self.lane_bytes = lane_bytes
        self._calls = calls
        self._lock = threading.Lock()
        self._free = [np.zeros(lane_bytes, np.uint8) for _ in range(n)]
        self.all = tuple(self._free)
        self._lent: list[tuple[npt.NDArray[np.uint8], Call[object]]] = []

    def run(
        self, until: float, fill: Callable[[memoryview], Callable[[int], T]], use: Callable[[memoryview, T], None]
    ) -> None:
        """Fill a lane, make the call that ``fill`` gives with the lane's address, use what came of it."""
        lane = self._take(until)
        try:
            function = fill(lane.data)
            address = lane.ctypes.data
            call = self._calls.begin(lambda: function(address))
        except BaseException:
            self._give_back(lane)
            raise
        try:
            result = call.result(until)
            use(lane.data, result)
        finally:
            if call.ended:
                self._give_back(lane)
            else:
                with self._lock:
                    self._lent.append((lane, call))  # type: ignore[arg-type]

    def _take(self, until: float) -> npt.NDArray[np.uint8]:
        while True:
            with self._lock:
                back = [lane for lane, call in self._lent if call.ended]
                self._lent = [(lane, call) for lane, call in self._lent if not call.ended]
                self._free += back
                if self._free:
                    return self._free.pop()
            time.sleep(min(_POLL_S, left_s(until)))

    def _give_back(self, lane: npt.NDArray[np.uint8]) -> None:
        with self._lock:
            self._free.append(lane)


def round_up(n_bytes: int) -> int:
    """Where the next value in a lane may begin."""
    return -(-n_bytes // ALIGN_BYTES) * ALIGN_BYTES
