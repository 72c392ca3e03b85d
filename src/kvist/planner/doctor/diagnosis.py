"""What the doctor says: rows of printed beside predicted, and sentences that explain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvist.cost.interval import Interval
from kvist.planner.doctor.base import EngineLog
from kvist.planner.doctor.compare import Row


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence. ``explains`` names the term that differs and agrees once this is taken into account."""

    cause: str
    sentence: str
    explains: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """``engine`` is the emulator that was asked; ``refit`` what a plan can take in (see ``refit``)."""

    log: EngineLog
    engine: str
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]
    refit: Mapping[str, object]
    notes: tuple[str, ...] = ()

    @property
    def unexplained(self) -> tuple[Row, ...]:
        """Rows that differ and that no finding explains."""
        known = {family(f.explains) for f in self.findings if f.explains}
        return tuple(r for r in self.rows if r.verdict == "differs" and family(r.name) not in known)

    def as_dict(self) -> dict[str, object]:
        """JSON-able: the same as the table shows. Sizes in bytes."""
        return {
            "engine": self.log.engine,
            "emulator": self.engine,
            "version": self.log.version,
            "lines": self.log.lines,
            "settings": dict(self.log.settings),
            "rows": [_row(r) for r in self.rows],
            "findings": [{"cause": f.cause, "sentence": f.sentence, "explains": f.explains} for f in self.findings],
            "refit": dict(self.refit),
            "notes": list(self.notes),
        }


_FAMILIES: Final = (
    ("kv_tokens", "gpu_blocks", "concurrency", "longest_tokens"), ("kv", "k", "v", "kv_cells"), ("state", "s", "r"),
    ("ssm", "conv"),
)  # fmt: skip
"""Terms that stand or fall together: explaining one explains all."""


def family(name: str) -> str:
    """The first of a term's family; the term itself where it stands alone."""
    return next((names[0] for names in _FAMILIES if name in names), name)


def _row(r: Row) -> dict[str, object]:
    return {
        "name": r.name, "what": r.what, "unit": r.unit, "rank": r.rank, "line": r.line, "text": r.text,
        "printed": _ends(r.printed), "predicted": _ends(r.predicted), "percent": r.percent,
        "verdict": r.verdict, "how": r.how,
    }  # fmt: skip


def _ends(x: Interval | None) -> dict[str, object] | None:
    return None if x is None else {"low": x.low, "best": x.best, "high": x.high, "tag": x.tag}
