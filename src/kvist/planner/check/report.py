"""Rows and summaries of a check: plain data, so that a table, a JSON file and an exit code say the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Final, Literal

from kvist.planner.check.valid import JUDGED
from kvist.planner.engines.base import Run
from kvist.planner.engines.registry import named

Status = Literal[
    "exact",
    "within rounding",
    "one rank of N shown",
    "setting not stated",
    "off",
    "budget",
    "shown",
    "beside",
    "no config",
    "not predicted",
]

TOLERANCE_PERCENT: Final = 0.5
RANK_PERCENT: Final = 3.0
"""How much less than one rank's memory allows another rank may have had."""


@dataclass(frozen=True, slots=True)
class Row:
    """One number.

    ``half_digit`` is half of its last printed digit (0: a whole number). ``low`` and ``high`` bound the prediction when
    an input was printed rounded; ``why`` says what was assumed or read from words; ``fit`` how well ``config`` is the
    model's.
    """

    id: str
    engine: str
    category: str
    check_class: str
    quantity: str
    expected: float
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    status: Status = "not predicted"
    how: str = ""
    why: tuple[str, ...] = ()
    config: str = ""
    fit: str = ""
    tolerance_percent: float = TOLERANCE_PERCENT
    half_digit: float = 0.0

    @property
    def error_percent(self) -> float | None:
        """Prediction against print, signed; None without a prediction, and of a print of zero that was missed."""
        if self.predicted is None:
            return None
        if self.expected == 0:
            return 0.0 if self.predicted == 0 else None
        return 100 * (self.predicted - self.expected) / abs(self.expected)

    @property
    def difference(self) -> float | None:
        """Prediction less print, in the quantity's unit; None without a prediction."""
        return None if self.predicted is None else self.predicted - self.expected

    @property
    def judged(self) -> bool:
        """True for a number that must come out right."""
        return self.check_class in JUDGED

    @property
    def unanswered(self) -> bool:
        """True when nothing was predicted."""
        return self.status in ("no config", "not predicted")


@dataclass(frozen=True, slots=True)
class Summary:
    """Rows of one engine or category. Errors are absolute, in percent, over judged rows that have a prediction."""

    name: str
    count: int
    judged: int
    passed: int
    median_percent: float | None
    worst_percent: float | None
    worst_id: str
    unanswered: int


@dataclass(frozen=True, slots=True)
class Report:
    """All rows of a check."""

    rows: tuple[Row, ...] = field(default=())

    @property
    def own(self) -> tuple[Row, ...]:
        """One row a case: without the numbers reported beside."""
        return tuple(row for row in self.rows if row.status != "beside")

    @property
    def failed(self) -> bool:
        """True when a number that must come out right is off or has no answer."""
        return any(row.status == "off" for row in self.rows) or bool(self.unanswered)

    @property
    def unanswered(self) -> tuple[Row, ...]:
        """Rows that must come out right and have no answer."""
        return tuple(row for row in self.own if row.judged and row.unanswered)

    @property
    def total(self) -> Summary:
        """Everything."""
        return _summary("all", self.own)

    def by_engine(self) -> tuple[Summary, ...]:
        """One summary an engine, whatever the spelling of its name."""
        return self._by(lambda row: named(row.engine) or row.engine)

    def by_category(self) -> tuple[Summary, ...]:
        """One summary a category."""
        return self._by(lambda row: row.category)

    def _by(self, key: Callable[[Row], str]) -> tuple[Summary, ...]:
        groups: dict[str, list[Row]] = {}
        for row in self.own:
            groups.setdefault(key(row), []).append(row)
        return tuple(_summary(name, rows) for name, rows in sorted(groups.items()))

    def not_passing(self) -> tuple[Row, ...]:
        """Rows that need words: off, unanswered, one rank of several, and those shown without judgement."""
        return tuple(row for row in self.own if row.status not in ("exact", "budget"))

    def as_dict(self) -> dict[str, object]:
        """JSON-able."""
        return {
            "failed": self.failed,
            "total": asdict(self.total),
            "by_engine": [asdict(s) for s in self.by_engine()],
            "by_category": [asdict(s) for s in self.by_category()],
            "rows": [_row_dict(row) for row in self.rows],
        }


def _row_dict(row: Row) -> Mapping[str, object]:
    out: dict[str, object] = {**asdict(row), "why": list(row.why), "error_percent": row.error_percent}
    out["difference"] = row.difference
    return out


def judge(row: Row, run: Run) -> Row:
    """The row with its status: exact, explained by rounding or by another rank, off, or only shown."""
    assert row.predicted is not None
    error = row.error_percent
    if not row.judged:
        return replace(row, status="shown")
    step = row.half_digit * (1 + 1e-9)
    if error is not None and abs(error) <= row.tolerance_percent or abs(row.predicted - row.expected) <= step:
        return replace(row, status="exact")
    if row.low is not None and row.high is not None and row.low - step <= row.expected <= row.high + step:
        return replace(
            row, status="within rounding", why=(*row.why, "the printed GiB has two decimals: the number lies between")
        )
    ranks = run.place.tp * run.place.pp
    if ranks > 1 and error is not None and 0 < error <= RANK_PERCENT and run.available_bytes is not None:
        said = (
            f"the printed GiB is of one rank of {ranks}; the engine takes the least of all, so this is an upper bound"
        )
        return replace(row, status="one rank of N shown", why=(*row.why, said))
    return replace(row, status="off")


def _summary(name: str, rows: tuple[Row, ...] | list[Row]) -> Summary:
    judged = [row for row in rows if row.judged]
    errors = {row.id: abs(row.error_percent) for row in judged if row.error_percent is not None}
    worst = max(errors, key=lambda i: errors[i], default="")
    passed = sum(row.status in ("exact", "budget", "within rounding", "one rank of N shown") for row in judged)
    return Summary(
        name=name,
        count=len(rows),
        judged=len(judged),
        passed=passed,
        median_percent=median(errors.values()) if errors else None,
        worst_percent=errors.get(worst),
        worst_id=worst,
        unanswered=sum(row.unanswered for row in rows),
    )
