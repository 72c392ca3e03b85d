"""Bytes, rates and seconds: print them for people, parse them from people."""

from __future__ import annotations

import re
from typing import Final

from kvist.errors import BadValue

KIB: Final = 1024
MIB: Final = 1024**2
GIB: Final = 1024**3

_SUFFIX: Final = {
    "": 1, "b": 1,
    "k": 1000, "kb": 1000, "kib": KIB,
    "m": 1000**2, "mb": 1000**2, "mib": MIB,
    "g": 1000**3, "gb": 1000**3, "gib": GIB,
    "t": 1000**4, "tb": 1000**4, "tib": 1024**4,
}  # fmt: skip


def format_bytes(n_bytes: float) -> str:
    """``163840`` -> ``'160 KiB'``; three significant digits, binary units."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(n_bytes) >= size:
            return f"{n_bytes / size:.4g} {unit}"
    return f"{n_bytes:.0f} B"


def parse_bytes(text: str, *, name: str = "bytes") -> int:
    """``'2GiB'``, ``'512MB'``, ``'1.5g'`` -> bytes. Raises ``BadValue`` for anything else."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", text)
    if not found or found.group(2).lower() not in _SUFFIX:
        raise BadValue(name, text, "a size such as 512MiB, 2GB or 1.5GiB")
    return int(float(found.group(1)) * _SUFFIX[found.group(2).lower()])


def format_seconds(seconds: float) -> str:
    """``0.0123`` -> ``'12.3 ms'``; minutes from ten of them on, hours from two."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    if seconds < 600:
        return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:,.0f} min"
    hours = seconds / 3600
    return f"{hours:,.0f} h" if hours >= 100 else f"{hours:.3g} h"


def ceil_div(a: int, b: int) -> int:
    """Smallest integer >= a / b, for b > 0."""
    return -(-a // b)


def round_up(a: int, multiple: int) -> int:
    """Smallest multiple of ``multiple`` that is >= a."""
    return ceil_div(a, multiple) * multiple
