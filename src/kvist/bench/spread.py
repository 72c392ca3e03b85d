"""A distribution in seven numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Spread:
    """Of ``count`` values; percentiles interpolate linearly between the two nearest (numpy's default)."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @staticmethod
    def of(values: Iterable[float | None]) -> Spread | None:
        """None values are left out; None of nothing."""
        known = np.asarray([v for v in values if v is not None], dtype=float)
        if not known.size:
            return None
        p50, p90, p99 = (float(x) for x in np.percentile(known, (50, 90, 99)))
        return Spread(int(known.size), float(known.mean()), p50, p90, p99, float(known.max()))
