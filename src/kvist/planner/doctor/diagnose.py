"""The doctor: each term of a log beside its prediction, and a sentence for what differs.

log = read_log("vllm.log")
run = run_of_log(log, find(model))
print(diagnose(log, run).findings)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kvist.cost.interval import Interval
from kvist.errors import KvistError
from kvist.planner.budget import Overheads
from kvist.planner.doctor import causes_budget, causes_cells, causes_model, causes_pool
from kvist.planner.doctor.base import EngineLog, Term
from kvist.planner.doctor.budget_rows import budget_rows
from kvist.planner.doctor.case import Case, Cause, predictions
from kvist.planner.doctor.compare import Row, lines_for, predict, row
from kvist.planner.doctor.diagnosis import Diagnosis, Finding, family
from kvist.planner.doctor.named import other_model
from kvist.planner.doctor.refit import overheads as overheads_of
from kvist.planner.doctor.refit import refit
from kvist.planner.doctor.run_of_log import available_of_log, emulator_name, run_of_log
from kvist.planner.doctor.shape import spec_of_log
from kvist.planner.engines.base import Engine, Run
from kvist.planner.engines.registry import engine as engine_named
from kvist.spec.model import ModelSpec

__all__ = [
    "Diagnosis", "Finding", "Row", "diagnose", "emulator_name", "overheads_of", "refit", "run_of_log", "spec_of_log",
]  # fmt: skip

_POOL_CAUSES: Final[tuple[Cause, ...]] = (*causes_pool.CAUSES, *causes_model.CAUSES, *causes_pool.LAST)


def diagnose(
    log: EngineLog,
    run: Run | None = None,
    engine: Engine | None = None,
    *,
    spec: ModelSpec | None = None,
    weights: Interval | None = None,
    overheads: Overheads | None = None,
) -> Diagnosis:
    """Compare a log with what its engine's rules give, and explain.

    ``run`` None: the run that the log describes, for ``spec`` or, of llama.cpp, for the shape the log prints; without
    either only the log's own sums are checked. ``weights`` are bytes on one rank, ``overheads`` what a plan assumed.
    What the emulator refuses becomes a note. Never raises for what a log holds.
    """
    notes = list(log.notes)
    renamed = other_model(log, spec.name) if spec is not None else None
    spec = spec or (spec_of_log(log) if run is None else None)
    if run is None and spec is not None:
        run = _run(log, spec, notes)
    if run is None and "llama" in log.engine and spec is None:
        notes.append("the log does not print the model's shape: name the model to have its sizes checked")
    elif run is None and spec is None:
        notes.append("no model was named: only the log's own sums are checked")
    one = engine or engine_named(emulator_name(log))
    available = available_of_log(log)
    case = _case(log, run, one, available, notes) if run is not None else None
    rows = [*budget_rows(log, weights, overheads), *_capacity_rows(log, case)]
    findings = [renamed] if renamed is not None else []
    findings += [*_findings(case, log)] if case is not None else [*_own_sums(log)]
    findings += _open_questions(Diagnosis(log, one.name, tuple(rows), tuple(findings), {}))
    return Diagnosis(log, one.name, tuple(rows), tuple(findings), refit(log), tuple(notes))


def _open_questions(found: Diagnosis) -> list[Finding]:
    """One sentence for every family of terms that differs and that no cause explains."""
    families = {family(r.name): r for r in reversed(found.unexplained)}
    return [
        Finding(
            "unexplained",
            f"{r.name}{f' ({r.what})' if r.what else ''}: {r.text} are printed, {r.percent:+.2f} % off what {r.how} "
            "gives; no known cause fits (is it this model, this placement, this format?)",
        )
        for r in families.values()
        if r.percent is not None
    ]


def _run(log: EngineLog, spec: ModelSpec, notes: list[str]) -> Run | None:
    try:
        return run_of_log(log, spec)
    except KvistError as error:
        notes.append(f"the log describes a run that cannot be: {error}")
        return None


def _case(log: EngineLog, run: Run, engine: Engine, available: Term | None, notes: list[str]) -> Case | None:
    """The case, or None when the emulator refuses the run; a note says why."""
    try:
        predict(engine, run, available)
    except KvistError as error:
        notes.append(f"{engine.name} would not start like this: {error}")
        return None
    return Case(log, run, engine, available, predictions(engine, run, log, available))


def _findings(case: Case, log: EngineLog) -> Iterator[Finding]:
    """Sentences, at most one that explains each term."""
    groups = (causes_cells.CAUSES if "llama" in log.engine else _POOL_CAUSES, causes_budget.CAUSES)
    explained: set[str] = set()
    for cause in (c for group in groups for c in group):
        finding = cause(case)
        if finding is not None and finding.explains not in explained:
            explained |= {finding.explains} - {""}
            yield finding


def _own_sums(log: EngineLog) -> Iterator[Finding]:
    """What can be said without a model: causes that ask no emulator."""
    empty = ModelSpec(architecture="", hidden=0, layers=(), vocab=0, context_tokens=0)
    case = Case(log, Run(empty), engine_named(emulator_name(log)), available_of_log(log))
    for cause in causes_budget.CAUSES:
        if (finding := cause(case)) is not None:
            yield finding


def _capacity_rows(log: EngineLog, case: Case | None) -> Iterator[Row]:
    """What fits: printed beside the emulator's. One row for a term that several ranks print alike."""
    for name in lines_for(log.engine):
        seen: set[tuple[str, float]] = set()
        for term in log.all(name):
            if (term.what, term.value) in seen:
                continue
            seen.add((term.what, term.value))
            predicted = case.predicted(term) if case is not None else None
            yield row(term, log, predicted, case.engine.name if case is not None and predicted is not None else "")
