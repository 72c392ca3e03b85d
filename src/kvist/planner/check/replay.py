"""Replay what real engines printed: every reported number against what the emulator of that engine says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from math import isfinite
from pathlib import Path

from kvist.errors import KvistError
from kvist.planner.check.case import Case, load_cases
from kvist.planner.check.llama import pick, settle
from kvist.planner.check.models import Fallback, Found, Models
from kvist.planner.check.quantity import BESIDE, Quantity, quantity
from kvist.planner.check.report import Report, Row, judge
from kvist.planner.check.run import Draft, draft
from kvist.planner.check.valid import number
from kvist.planner.check.vllm import blocks_as_bytes, budget, formula, span
from kvist.planner.engines.base import Capacity, Line
from kvist.planner.engines.registry import engine, named
from kvist.units import GIB, MIB

__all__ = ["Case", "Fallback", "Report", "Row", "check_cases", "load_cases"]

_LLAMA = ("llama.cpp", "ik_llama.cpp", "ipex-llm")


def check_cases(cases: Iterable[Case], configs_dir: str | Path, *, fallback: Fallback | None = None) -> Report:
    """Predict every case from the configs in a folder (``org__name.json``).

    ``fallback`` finds a model by name where the folder has none. No case is dropped: what cannot be predicted has a
    row that says why. Raises ``BadValue`` when the folder does not exist.
    """
    models = Models(configs_dir, fallback)
    rows: list[Row] = []
    for case in cases:
        rows += _rows(case, models)
    return Report(tuple(rows))


def _rows(case: Case, models: Models) -> list[Row]:
    """The case's own row, then one for each number reported beside it."""
    blank = Row(case.id, case.engine, case.category, case.check_class, case.quantity, case.expected)
    name = named(case.engine)
    if name is None:
        return [replace(blank, status="not predicted", why=(f"engine {case.engine!r} has no emulator",))]
    asked = quantity(case.quantity)
    if asked is None:
        return [replace(blank, status="not predicted", why=(f"{case.quantity!r} is no number that is planned",))]
    if asked.kind == "available_kv":
        return [budget(case, blank)]
    found = models.find(case.model)
    if isinstance(found, str):
        return [replace(blank, status="no config", why=(found,))]
    own = _row(case, found, asked, name, blank)
    return [own, *_beside(case, found, asked, name, blank)]


def _row(case: Case, found: Found, asked: Quantity, name: str, blank: Row) -> Row:
    blank = replace(blank, config=found.config, fit=found.how)
    try:
        out = _prepared(case, found, asked, name, blank.expected)
        line, why = _line(out, blank.expected)
    except KvistError as error:
        return replace(blank, status="not predicted", why=(str(error),))
    if line is None:
        return replace(
            blank, status="not predicted", why=(f"{out.engine} gives no {asked.kind} for what is known", *out.said)
        )
    low, high = span(out, lambda trial: _value(*_line(trial, blank.expected), asked))
    predicted = _value(line, why, asked)
    if not isfinite(predicted):
        return replace(blank, status="not predicted", why=(f"{out.engine} gives no finite {asked.kind}", *out.said))
    done = replace(
        blank,
        predicted=predicted,
        low=low,
        high=high,
        half_digit=0.005 if asked.kind == "max_concurrency" or asked.unit_bytes > 1 else 0.0,
        how=f"{out.engine}: {line.how}",
        why=tuple(w for w in (*out.said, why) if w),
    )
    judged = judge(done, out.run)
    return _with_other_settings(judged, out, asked) if judged.status == "off" else judged


def _with_other_settings(row: Row, out: Draft, asked: Quantity) -> Row:
    """A row that is off, but would not be had a setting that nobody stated another of its documented defaults.

    Such a row is neither right nor wrong: its prediction stays the default's.
    """
    names = list(out.unstated)
    for values in product(*((getattr(out.run, name), *out.unstated[name]) for name in names)):
        chosen = dict(zip(names, values, strict=True))
        trial = replace(out, run=replace(out.run, **chosen), said=[], unstated={})
        other = _value(*_line(trial, row.expected), asked)
        if judge(replace(row, predicted=other, low=None, high=None), trial.run).status == "exact":
            said = ", ".join(f"{k} {v}" for k, v in chosen.items() if v != getattr(out.run, k))
            return replace(row, status="setting not stated", why=(*row.why, f"with {said}: {other:,.6g}"))
    return row


def _prepared(case: Case, found: Found, asked: Quantity, name: str, printed: float) -> Draft:
    """The run, with everything settled that depends on the engine."""
    out = draft(case, found, asked, name)
    if out.engine in _LLAMA:
        settle(out)
    elif out.engine.startswith("vllm"):
        blocks_as_bytes(out)
        formula(out, printed)
    return out


def _line(out: Draft, printed: float) -> tuple[Line | None, str]:
    """The line that answers the quantity, and how it was told from others of its name."""
    capacity = engine(out.engine).capacity(out.run)
    if "window_pool_percent" in out.run.knobs:  # older versions, and a flag, keep windows in the one pool
        plain = replace(out.run, knobs={**out.run.knobs, "window_pool_percent": 0})
        more = tuple(replace(line, what="all layers") for line in engine(out.engine).capacity(plain).lines)
        capacity = replace(capacity, lines=(*capacity.lines, *more))
    for name, unit in _names(out.quantity):
        if any(line.name == name for line in capacity.lines):
            scaled = printed * (out.quantity.unit_bytes or 1) / unit
            found = pick(out, capacity, name, scaled)
            if found is not None:
                return replace(found.line, value=found.line.value * unit), found.why
    return _other(out, capacity)


def _names(asked: Quantity) -> list[tuple[str, int]]:
    """Names under which engines print this kind, each with its unit in bytes (1 for counts)."""
    if not asked.unit_bytes:
        return [(asked.kind, 1)]
    stems = {"kv_k": ("kv_mib_k", "k_gib"), "kv_v": ("kv_mib_v", "v_gib"), "kv": ("kv_mib", "kv_gib")}
    names = stems.get(asked.kind, (f"{asked.kind}_gib", f"{asked.kind}_mib"))
    return [(n, MIB if "_mib" in n else GIB) for n in names]


def _other(out: Draft, capacity: Capacity) -> tuple[Line | None, str]:
    """Numbers that are not a line of their own."""
    if out.quantity.kind == "per_token":
        rate = out.found.spec.kv_bytes_per_token(out.run.kv_format)
        return Line("per_token", rate, "sum over layers that keep every token"), ""
    if out.quantity.kind == "block_tokens" and capacity.block_tokens:
        return Line("block_tokens", capacity.block_tokens, "the engine's block"), ""
    return None, ""


def _value(line: Line | None, why: str, asked: Quantity) -> float:
    """A line's value in the unit of the quantity."""
    assert line is not None, why
    return line.value / (asked.unit_bytes or 1)


def _beside(case: Case, found: Found, asked: Quantity, name: str, blank: Row) -> list[Row]:
    """Informative rows for other numbers of the same log."""
    rows: list[Row] = []
    for key in BESIDE:
        printed, other = number(case.reported.get(key)), quantity(key)
        if printed is None or printed == 0 or other is None or other.kind == asked.kind:
            continue
        if other.kind == "cpu_blocks" or _is_input(key, asked, name):
            continue
        row = _row(case, found, replace(other, part=asked.part), name, replace(blank, quantity=key, expected=printed))
        if row.predicted is not None:
            rows.append(replace(row, check_class="beside", status="beside"))
    return rows


def _is_input(key: str, asked: Quantity, name: str) -> bool:
    """True for a number that a prediction of ``asked`` starts from: it would be checked against itself."""
    return key == "kv_tokens" and name in ("sglang", "tensorrt-llm")
