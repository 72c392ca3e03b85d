"""One reported case: what an engine printed, and how it was started. Reads anything of the shape, however spelled."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kvist.errors import CorruptFile
from kvist.planner.check.valid import JUDGED, check_class, check_fields, number, shown
from kvist.planner.check.words import Words


@dataclass(frozen=True, slots=True)
class Case:
    """``raw`` is the record as it stands; ``reported`` what the engine printed beside the expected number."""

    id: str
    engine: str
    model: str
    category: str
    check_class: str
    quantity: str
    expected: float
    reported: Mapping[str, object]
    raw: Mapping[str, object]

    @property
    def judged(self) -> bool:
        """True for a number that must come out right."""
        return self.check_class in JUDGED

    @property
    def words(self) -> Words:
        """Everything said in words: where settings are looked for that no field has."""
        names = ("model", "hardware", "kv_dtype", "category", "notes", "formula_note", "flags", "args", "command")
        return Words(" | ".join([self.quantity, *(str(self.raw[n]) for n in names if self.raw.get(n))]))

    @property
    def hardware(self) -> Words:
        """What is said of the devices."""
        return Words(str(self.raw.get("hardware") or ""))

    @property
    def version(self) -> tuple[int, ...]:
        """The engine's version as numbers, empty when unknown."""
        for text in (str(self.raw.get("engine_version") or ""), self.engine):
            found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
            if found:
                return tuple(int(x) for x in found.groups(default="0"))
        return ()

    def field(self, *names: str) -> float | None:
        """The first of ``names`` that is a number, in the record or in what was reported."""
        for name in names:
            for place in (self.raw, self.reported):
                value = number(place.get(name))
                if value is not None:
                    return value
        return None

    def count(self, *names: str) -> int | None:
        """The same, as a whole number of at least one."""
        value = self.field(*names)
        return int(value) if value is not None and value >= 1 else None


def load_cases(path: str | Path) -> tuple[Case, ...]:
    """Cases of a JSONL (or JSON list) file. Raises ``CorruptFile`` naming the line and field."""
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CorruptFile(
            f"{file} cannot be read: {error}", remedy="name a file of cases, one JSON object a line"
        ) from error
    if text.lstrip().startswith("["):
        rows = _parsed(text, str(file))
        return tuple(
            _case(row, f"{file}, entry {i}") for i, row in enumerate(rows if isinstance(rows, list) else [], 1)
        )
    lines = ((i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip())
    return tuple(_case(_parsed(line, f"{file}, line {i}"), f"{file}, line {i}") for i, line in lines)


def _parsed(text: str, where: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{where} is not JSON: {error}", remedy="write one JSON object a line") from error


def _case(row: object, where: str) -> Case:
    expected = row.get("expected") if isinstance(row, dict) else None
    if not isinstance(row, dict) or not isinstance(expected, dict):
        raise CorruptFile(f"{where} is no case", remedy='a case is an object with "expected": {"quantity", "value"}')
    name = str(row.get("id") or "")
    where = f"{where} (case {name})" if name else where
    value = number(expected.get("value"))
    if value is None:
        said = shown(expected.get("value"))
        raise CorruptFile(f"{where}: expected.value is {said}", remedy="give a finite number")
    check_fields(row, where)
    reported = row.get("reported")
    return Case(
        id=name or where,
        engine=str(row.get("engine") or ""),
        model=str(row.get("model") or ""),
        category=str(row.get("category") or "uncategorised"),
        check_class=check_class(row.get("check_class"), where),
        quantity=str(expected.get("quantity") or ""),
        expected=value,
        reported=reported if isinstance(reported, dict) else {},
        raw=row,
    )
