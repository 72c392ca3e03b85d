"""Time that passes only when told to."""

from __future__ import annotations

from typing import Protocol


class Passing(Protocol):
    """A clock that can be told how long something took."""

    def now(self) -> float:
        """The time in seconds."""
        ...

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        ...


class VirtualClock:
    """A ``Clock`` for paper. Owner: whoever runs the simulation; the paper executor advances it by each step's cost."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now(self) -> float:
        """The virtual time in seconds."""
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        assert seconds >= 0, f"time went back by {-seconds} s"
        self._now_s += seconds

    def advance_to(self, moment_s: float) -> None:
        """Let time pass until ``moment_s``; nothing when that is past."""
        self._now_s = max(self._now_s, moment_s)
