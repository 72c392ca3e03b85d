"""Promises on latency, and who kept them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvist.bench.record import Record
from kvist.errors import BadValue

_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "min": 60.0}
_READ: Final[dict[str, Callable[[Record], float | None]]] = {
    "ttft": lambda r: r.ttft_s,
    "tpot": lambda r: r.tpot_s,
    "itl": lambda r: max(r.itl_s, default=None),
    "e2e": lambda r: r.e2e_s,
}


@dataclass(frozen=True, slots=True)
class Slo:
    """(measure, bound in seconds) pairs; all must hold. ``itl`` bounds the longest gap of a request."""

    bounds: tuple[tuple[str, float], ...]

    @staticmethod
    def parse(text: str) -> Slo:
        """``ttft=2s,tpot=100ms``. Raises ``BadValue``."""
        bounds: dict[str, float] = {}
        for part in text.split(","):
            found = re.fullmatch(r"\s*(\w+)\s*=\s*([0-9.]+)\s*([a-z]*)\s*", part)
            name, unit = (found[1], found[3]) if found else ("", "")
            try:
                value = float(found[2]) * _SECONDS[unit] if found and name in _READ else math.nan
            except (ValueError, KeyError):
                value = math.nan
            if not value > 0 or name in bounds:
                raise BadValue("slo", text, f"each of {', '.join(_READ)} at most once, such as ttft=2s,tpot=100ms")
            bounds[name] = value
        return Slo(tuple(bounds.items()))

    def met(self, record: Record) -> bool:
        """Whether an answered request kept all bounds; a measure it does not have (TPOT of one token) is kept."""
        if not record.ok:
            return False
        return all((value := _READ[name](record)) is None or value <= bound_s for name, bound_s in self.bounds)
