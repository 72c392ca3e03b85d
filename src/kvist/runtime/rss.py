"""How much memory this process has held at most."""

from __future__ import annotations

import resource
import sys


def peak_bytes() -> int:
    """Largest resident set size so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
