"""What engines counted that were replaced: totals go on where the last one left them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_TOTALS: Final = ("sched_", "cache_", "exec_")
_SECONDS: Final = ("plan_s", "execute_s", "commit_s")
_GAUGE: Final = "_queued_"


class Earlier:
    """Sums of the totals of engines that are gone. Owner: the engine's loop."""

    def __init__(self) -> None:
        self._totals: dict[str, float] = {}

    def add(self, numbers: Mapping[str, float]) -> None:
        """An engine is replaced; these are its last numbers."""
        for name, value in numbers.items():
            if name in _SECONDS or (name.startswith(_TOTALS) and _GAUGE not in name):
                self._totals[name] = self._totals.get(name, 0.0) + value

    def plus(self, numbers: Mapping[str, float]) -> dict[str, float]:
        """The numbers of the engine that runs now, its totals counted from the first engine on."""
        return {name: numbers.get(name, 0.0) + self._totals.get(name, 0.0) for name in {**numbers, **self._totals}}
