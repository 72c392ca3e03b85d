"""Records into a report: sums, shares and percentiles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from typing import Any

from kvist.bench import infer, report
from kvist.bench.infer import Fit
from kvist.bench.notes import notes
from kvist.bench.options import BenchOptions
from kvist.bench.probe import Target
from kvist.bench.record import INTERRUPTED, Record
from kvist.bench.spread import Spread
from kvist.bench.workload.base import Workload


@dataclass(frozen=True, slots=True)
class Run:
    """What a finished (or interrupted) run left behind; ``records`` in the order in which they were sent."""

    options: BenchOptions
    workload: Workload
    target: Target
    records: tuple[Record, ...]
    warmup: tuple[Record, ...]
    calibration: tuple[Record, ...]
    planned: int
    started_at: str
    load: report.ClientLoad
    stopped: str
    interrupted: bool


def summarise(run: Run) -> report.Report:
    """The report of a run."""
    records, good = run.records, [r for r in run.records if r.ok]
    fit = infer.fit(good, run.calibration)
    duration_s = max((r.sent_s + r.e2e_s for r in records), default=0.0) - min((r.sent_s for r in records), default=0.0)
    tokens, hits = _tokens(good), _hits(good, fit, run.target.form)
    return report.Report(
        kvist=_version(),
        started_at=run.started_at,
        target=_target(run.target),
        workload=_workload(run),
        load=_load(run),
        duration_s=duration_s,
        requests=_counts(records, run.planned),
        errors=_errors(records),
        tokens=tokens,
        throughput=_throughput(good, tokens, duration_s),
        latency_s=_latency(good),
        goodput=_goodput(run.options, records, duration_s),
        hits=hits,
        turns=_turns(good, fit),
        verdict=run.workload.verdict(good, fit),
        warmup=_stage(run.warmup),
        calibration=_stage(run.calibration),
        client=run.load,
        notes=run.target.notes
        + notes(run.target, good, tokens, run.load, {"warm-up": run.warmup, "calibration": run.calibration}),
        stopped=run.stopped,
        interrupted=run.interrupted,
        details=records,
    )


def _version() -> str:
    try:
        return version("kvist")
    except PackageNotFoundError:
        return "unknown"


def _target(target: Target) -> dict[str, Any]:
    return {
        "url": target.url,
        "model": target.model,
        "api": target.api,
        "form": target.form,
        "optional_fields": list(target.extras),
    }


def _workload(run: Run) -> dict[str, Any]:
    knobs = asdict(run.workload)  # type: ignore[call-overload]  # every variant is a dataclass
    return {"name": run.workload.name, "seed": run.options.seed, "scale": run.options.scale, "knobs": knobs}


def _load(run: Run) -> dict[str, Any]:
    options = run.options
    kind = "rate" if options.rate is not None else "trace" if options.timed else "concurrency"
    at_once = options.concurrency or run.workload.clients_at_once
    return {
        "kind": kind,
        "concurrency": at_once if kind == "concurrency" else None,
        "rate_per_s": options.rate,
        "max_concurrency": options.max_concurrency,
        "temperature": options.temperature,
        "timeout_s": options.timeout_s,
        "stop_at_eos": options.stop_at_eos,
        "flushed": options.flush,
    }


def _counts(records: Sequence[Record], planned: int) -> report.Counts:
    kinds = Counter("ok" if r.ok else "failed" if r.failed else INTERRUPTED for r in records)
    return report.Counts(
        planned=planned,
        sent=len(records),
        ok=kinds["ok"],
        failed=kinds["failed"],
        interrupted=kinds[INTERRUPTED],
        not_sent=max(0, planned - len(records)),
    )


def _errors(records: Sequence[Record]) -> tuple[report.ErrorKind, ...]:
    failed = sorted((r for r in records if r.failed), key=lambda r: r.error)
    kinds = [(kind, list(group)) for kind, group in groupby(failed, key=lambda r: r.error)]
    kinds.sort(key=lambda kind: -len(kind[1]))
    return tuple(report.ErrorKind(kind, len(group), group[0].message) for kind, group in kinds)


def _tokens(good: Sequence[Record]) -> report.Tokens:
    events, output = sum(r.events for r in good), sum(r.output_tokens for r in good)
    return report.Tokens(
        prompt=sum(r.prompt_tokens for r in good),
        output=output,
        cached_reported=_reported(good),
        counted_by="usage" if all(r.usage_reported for r in good) else "events",
        per_event=output / events if events else 0.0,
    )


def _reported(good: Sequence[Record]) -> int | None:
    """Cached tokens by usage. None where no request told any; servers that tell some may leave out a 0."""
    told = [r.cached_tokens for r in good if r.cached_tokens is not None]
    return sum(told) if told else None


def _throughput(good: Sequence[Record], tokens: report.Tokens, duration_s: float) -> report.Throughput:
    if not duration_s:
        return report.Throughput(0.0, 0.0, 0.0)
    return report.Throughput(
        len(good) / duration_s, tokens.output / duration_s, (tokens.prompt + tokens.output) / duration_s
    )


def _latency(good: Sequence[Record]) -> report.Latency:
    return report.Latency(
        ttft=Spread.of(r.ttft_s for r in good),
        tpot=Spread.of(r.tpot_s for r in good),
        itl=Spread.of(gap for r in good for gap in r.itl_s),
        e2e=Spread.of(r.e2e_s for r in good),
        late=Spread.of(r.late_s for r in good),
    )


def _goodput(options: BenchOptions, records: Sequence[Record], duration_s: float) -> report.Goodput | None:
    slo = options.bounds
    if slo is None:
        return None
    ended = [r for r in records if r.ok or r.failed]
    met = sum(slo.met(r) for r in ended)
    return report.Goodput(
        bounds_s=dict(slo.bounds),
        met=met,
        fraction=met / len(ended) if ended else 0.0,
        requests_per_s=met / duration_s if duration_s else 0.0,
    )


def _share(part: float | None, whole: float) -> float | None:
    return None if part is None else part / whole if whole else 0.0


def _inferred(good: Sequence[Record], fit: Fit) -> report.Inferred:
    """Over those requests whose TTFT shows their own computing and nothing else."""
    judged = [(r, tokens) for r in good if (tokens := fit.cached_tokens(r)) is not None]
    prompt = sum(r.prompt_tokens for r, _ in judged)
    found = sum(tokens for _, tokens in judged) if judged else None
    return report.Inferred(
        tokens=found,
        rate=_share(found, prompt),
        requests=len(judged),
        reported_rate=_share(_reported([r for r, _ in judged]), prompt),
        seconds_per_prompt_token=fit.seconds_per_token if fit.usable else None,
        overhead_s=fit.overhead_s if fit.usable else None,
        error_tokens=fit.error_tokens if fit.usable else None,
        source=fit.source,
        why=fit.why,
    )


def _hits(good: Sequence[Record], fit: Fit, form: str) -> report.Hits:
    prompt, reported = sum(r.prompt_tokens for r in good), _reported(good)
    optimum = sum(r.optimum_tokens for r in good)
    return report.Hits(
        reported_rate=_share(reported, prompt),
        optimum_tokens=optimum,
        optimum_rate=_share(optimum, prompt) or 0.0,
        optimum_by=form,
        reported_of_optimum=_share(reported, optimum) if optimum else None,
        inferred=_inferred(good, fit),
    )


def _turns(good: Sequence[Record], fit: Fit) -> tuple[report.Turn, ...]:
    """By turn, where there is more than one."""
    mine = sorted((r for r in good if r.role != "sub"), key=lambda r: r.turn)
    if not mine or mine[-1].turn == 1:
        return ()
    return tuple(_turn(turn, list(group), fit) for turn, group in groupby(mine, key=lambda r: r.turn))


def _turn(turn: int, group: Sequence[Record], fit: Fit) -> report.Turn:
    prompt = sum(r.prompt_tokens for r in group)
    ttft = Spread.of(r.ttft_s for r in group)
    return report.Turn(
        turn=turn,
        requests=len(group),
        prompt_tokens=prompt,
        reported_rate=_share(_reported(group), prompt),
        optimum_rate=_share(sum(r.optimum_tokens for r in group), prompt) or 0.0,
        inferred_rate=_inferred(group, fit).rate,
        ttft_p50_s=None if ttft is None else ttft.p50,
    )


def _stage(records: Sequence[Record]) -> report.Stage:
    return report.Stage(len(records), sum(r.failed for r in records))
