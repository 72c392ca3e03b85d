"""Two saved runs side by side: B over A."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from kvist.bench.report import FORMAT
from kvist.errors import UsageError

_ROWS: Final = (
    ("requests/s", "higher", ("throughput", "requests_per_s")),
    ("output tok/s", "higher", ("throughput", "output_tokens_per_s")),
    ("total tok/s", "higher", ("throughput", "total_tokens_per_s")),
    *(
        (f"{name.upper()} {p}", "lower", ("latency_s", name, p))
        for name in ("ttft", "tpot", "itl", "e2e")
        for p in ("p50", "p90", "p99", "max")
    ),
    ("goodput", "higher", ("goodput", "fraction")),
    ("hits reported", "higher", ("hits", "reported_rate")),
    ("hits inferred", "higher", ("hits", "inferred", "rate")),
    ("hits optimum", "", ("hits", "optimum_rate")),
    ("reported / optimum", "higher", ("hits", "reported_of_optimum")),
    ("failed", "lower", ("requests", "failed")),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One number of both runs. ``ratio`` is b / a, None where one is missing or a is 0; ``better``: higher or lower."""

    name: str
    a: float | None
    b: float | None
    ratio: float | None
    better: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rows, and what the two runs did not have in common besides their results."""

    rows: tuple[Row, ...]
    differences: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def read(file: Path) -> dict[str, Any]:
    """A saved run. Raises ``UsageError`` for anything else."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}", remedy="name files made with --save or --json") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise UsageError(f"{file} is not a saved run ({FORMAT})", remedy="name files made with --save or --json")
    return found


def compare(a: dict[str, Any], b: dict[str, Any]) -> Comparison:
    """Rows for which at least one run has a number."""
    rows = []
    for name, better, path in _ROWS:
        one, other = _at(a, path), _at(b, path)
        if one is None and other is None:
            continue
        ratio = other / one if one and other is not None else None
        rows.append(Row(name, one, other, ratio, better))
    return Comparison(tuple(rows), tuple(_differences(a, b)))


def _at(run: Any, path: tuple[str, ...]) -> float | None:
    for key in path:
        run = run.get(key) if isinstance(run, dict) else None
    return float(run) if isinstance(run, int | float) else None


def _differences(a: dict[str, Any], b: dict[str, Any], where: str = "") -> list[str]:
    """Fields of target, workload and load that differ, as ``name: a -> b``."""
    found = []
    keys = ("target", "workload", "load") if not where else sorted({*a, *b})
    for key in keys:
        one, other = a.get(key), b.get(key)
        if isinstance(one, dict) and isinstance(other, dict):
            found += _differences(one, other, f"{where}{key}.")
        elif one != other:
            found.append(f"{where}{key}: {one} -> {other}")
    return found
