"""Cases that cannot be judged because of what stands in them: refused with the case's id and the field."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from kvist.errors import CorruptFile

JUDGED: Final = ("exact", "budget")
"""Classes whose number must come out right."""

CLASSES: Final = (*JUDGED, "ratio", "approximate", "inconsistent")

MOST: Final = 1e18
"""No printed number is as large: beyond, sums of bytes stop being exact."""

_COUNTS: Final = (
    "tp", "tensor_parallel_size", "pp", "pipeline_parallel_size", "cp", "dcp", "decode_context_parallel_size",
    "num_gpus", "max_model_len", "max_model_tokens", "context", "max_num_seqs", "n_seq", "n_parallel", "n_ctx", "ctx",
    "n_ubatch", "ubatch", "block_size", "block_tokens", "max_num_batched_tokens", "batched_tokens",
)  # fmt: skip
"""Settings of a run: whole numbers of at least one."""

_PRINTED: Final = (
    "kv_tokens", "tokens", "max_tokens", "max_total_num_tokens", "gpu_blocks", "num_gpu_blocks", "cpu_blocks", "cells",
    "kv_cells", "state_slots", "max_mamba_cache_size", "max_concurrency", "est_max_len", "total_gib", "weights_gib",
    "required_kv_gib", "activation_gib", "peak_activation_gib", "k_gib", "v_gib", "kv_gib", "ssm_gib", "conv_gib",
    "kv_mib", "kv_mib_k", "kv_mib_v",
)  # fmt: skip
"""Counts and sizes that a log prints: zero is a print too."""

_SIGNED: Final = ("available_kv_gib", "kv_cache_gib", "available_gib", "available_kv_gib_approx", "non_torch_gib")
"""Differences, which engines do print below zero."""

_SHARES: Final = ("gpu_memory_utilization", "gpu_util", "utilization")


def check_class(value: object, where: str) -> str:
    """The class of a case, in small letters; ``exact`` where none is given. Raises ``CorruptFile`` for others."""
    said = "exact" if value is None or value == "" else str(value).strip().lower()
    if said not in CLASSES:
        raise CorruptFile(f"{where}: check_class {value!r} is not known", remedy=f"one of {', '.join(CLASSES)}")
    return said


def check_fields(row: Mapping[str, object], where: str) -> None:
    """Refuse settings and printed numbers that are none. What is absent or null is nobody's fault."""
    reported = row.get("reported")
    if reported is not None and not isinstance(reported, dict):
        raise CorruptFile(f"{where}: reported is {shown(reported)}", remedy='give an object: {"kv_tokens": 26800}')
    for place, prefix in ((row, ""), (reported or {}, "reported.")):
        for names, ok, expected in _RULES:
            for name in names:
                value = place.get(name)
                if value is not None and not ok(number(value)):
                    raise CorruptFile(f"{where}: {prefix}{name} is {shown(value)}", remedy=f"give {expected}")


def number(value: object) -> float | None:
    """``12``, ``'26,800'``, ``'2.38x'`` -> a finite number below ``MOST``; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    found: float | int
    if isinstance(value, int | float):
        found = value
    else:
        match = re.fullmatch(r"\s*~?(-?[\d,_]*\.?\d+)\s*(?:x|GiB|GB|MiB|MB|tokens|blocks|%)?\s*", str(value))
        if match is None:
            return None
        found = float(re.sub(r"[,_]", "", match.group(1)))
    return float(found) if abs(found) < MOST else None


def shown(value: object) -> str:
    """A value as JSON writes it, cut where it is long."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):  # a whole number of more digits than Python prints
        text = f"a {type(value).__name__} too long to show"
    return text if len(text) <= 40 else f"{text[:37]}..."


def _count(value: float | None) -> bool:
    return value is not None and value >= 1 and value == int(value)


def _printed(value: float | None) -> bool:
    return value is not None and value >= 0


def _signed(value: float | None) -> bool:
    return value is not None


def _share(value: float | None) -> bool:
    return value is not None and 0 < value <= 1


_RULES: Final = (
    (_COUNTS, _count, "a whole number of at least 1"),
    (_PRINTED, _printed, "a number of at least 0"),
    (_SIGNED, _signed, "a finite number"),
    (_SHARES, _share, "a share between 0 and 1"),
)
