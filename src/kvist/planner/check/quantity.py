"""What a number is, from the words it is reported under: ``kv_tokens``, ``max_concurrency @32768``, ``K size GiB``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from kvist.units import GIB, MIB


@dataclass(frozen=True, slots=True)
class Quantity:
    """``kind`` is the name of the line that answers it, without its unit; ``unit_bytes`` 0 for counts.

    ``at_tokens`` is a length named with it (``@32768``), ``part`` a kind of layers (``windowed layers``...).
    """

    kind: str
    unit_bytes: int = 0
    at_tokens: int | None = None
    part: str = ""


_KINDS: Final = (
    (r"cpu[ _]?blocks|swap", "cpu_blocks"),
    (r"block[ _-]?(?:size|tokens)", "block_tokens"),
    (r"blocks", "gpu_blocks"),
    (r"required|needed|one max|per request", "required_kv"),
    (r"est\w*[ _-]?max|estimated max|max\w*[ _]len", "est_max_len"),
    (r"concurren", "max_concurrency"),
    (r"bytes?[ _/]*(?:per|/)[ _]*token|b/tok", "per_token"),
    (r"conv", "conv"),
    (r"ssm|temporal", "ssm"),
    (r"available", "available_kv"),
    (r"\bk[ _-]?(?:size|cache|buffer|gi?b|mi?b)|kv_mib_k|kv_gib_k|_k\b|\bk\b", "kv_k"),
    (r"\bv[ _-]?(?:size|cache|buffer|gi?b|mi?b)|kv_mib_v|kv_gib_v|_v\b|\bv\b", "kv_v"),
    (r"tok", "kv_tokens"),
    (r"recurrent|\brs\b|state", "kv"),
    (r"kv|cache|gi?b|mi?b", "kv"),
)
_PARTS: Final = (
    (r"non[- _]?swa|full|global|base", "full layers"),
    (r"swa|window|sliding|local", "windowed layers"),
    (r"recurrent|state|\brs\b", "recurrent state"),
    (r"total|all", "all"),
)
_SIZED: Final = ("required_kv", "conv", "ssm", "available_kv", "kv_k", "kv_v", "kv", "per_token")


def quantity(text: str) -> Quantity | None:
    """What ``text`` asks for, or None when it is nothing a planner can answer."""
    low = text.lower()
    kind = next((name for pattern, name in _KINDS if re.search(pattern, low)), None)
    if kind is None:
        return None
    unit = 0
    if kind in _SIZED:
        unit = 1 if kind == "per_token" else MIB if re.search(r"mi?b", low) else GIB
    part = (
        next((name for pattern, name in _PARTS if re.search(pattern, low)), "")
        if kind in ("kv", "kv_k", "kv_v")
        else ""
    )
    at = re.search(r"@\s*([\d,_]+)\s*(k)?", low)
    tokens = int(re.sub(r"[,_]", "", at.group(1))) * (1024 if at.group(2) else 1) if at else None
    return Quantity(kind, unit, tokens, part)


BESIDE: Final = (
    "kv_tokens", "gpu_blocks", "cpu_blocks", "max_concurrency", "required_kv_gib", "est_max_len",
    "k_gib", "v_gib", "kv_gib", "kv_mib_k", "kv_mib_v", "ssm_gib", "conv_gib",
)  # fmt: skip
"""Numbers reported beside the expected one that are checked too, for information."""
