"""A report for a person: tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from kvist.bench.report import Hits, Report, Stage
from kvist.bench.spread import Spread
from kvist.units import format_seconds


def tables(report: Report) -> Iterator[Table]:
    """Totals, latencies, hits; by turn, the workload's verdict and errors where there are any."""
    yield _totals(report)
    yield _latencies(report)
    yield _hits(report.hits, report.requests.ok)
    if report.turns:
        yield _turns(report)
    if report.verdict:
        yield _pairs("verdict", [(k.replace("_", " "), _plain(v)) for k, v in report.verdict.items()])
    if report.errors:
        yield _errors(report)


def percent(share: float | None, missing: str = "not reported") -> str:
    """``0.5`` -> ``'50.0 %'``."""
    return missing if share is None else f"{share:.1%}".replace("%", " %")


def _pairs(title: str, rows: Sequence[tuple[str, str]]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for row in rows:
        table.add_row(*row)
    return table


def _totals(report: Report) -> Table:
    requests, speed, tokens = report.requests, report.throughput, report.tokens
    counts = f"{requests.ok} ok, {requests.failed} failed, {requests.not_sent} not sent, of {requests.planned}"
    target = report.target
    rows = [
        ("server", f"{target['url']}, {target['model']}, {target['api']} with {target['form']}"),
        ("load", _load(report)),
        ("requests", counts + (f" ({requests.interrupted} interrupted)" if requests.interrupted else "")),
        ("not counted", f"{_stage(report.warmup)} warm-up, {_stage(report.calibration)} calibration"),
        ("time", format_seconds(report.duration_s)),
        ("tokens", f"{tokens.prompt} prompt, {tokens.output} output (by {tokens.counted_by})"),
        ("requests/s", f"{speed.requests_per_s:.4g}"),
        ("output tok/s", f"{speed.output_tokens_per_s:.4g}"),
        ("total tok/s", f"{speed.total_tokens_per_s:.4g}"),
    ]
    if report.goodput is not None:
        bounds = ", ".join(f"{name} {format_seconds(s)}" for name, s in report.goodput.bounds_s.items())
        good = f"{percent(report.goodput.fraction)} = {report.goodput.requests_per_s:.4g} requests/s within {bounds}"
        rows.append(("goodput", good))
    return _pairs(f"{report.workload['name']}, seed {report.workload['seed']}", rows)


def _stage(stage: Stage) -> str:
    return f"{stage.sent} ({stage.failed} failed)" if stage.failed else f"{stage.sent}"


def _load(report: Report) -> str:
    load = report.load
    bound = f", at most {load['max_concurrency']} at once" if load["max_concurrency"] else ""
    order = report.workload["knobs"].get("order")
    first = {
        "rate": f"Poisson, {load['rate_per_s']} a second{bound}",
        "trace": f"at the trace's times, speed-up {report.workload['knobs'].get('speedup')}{bound}",
        "concurrency": f"{load['concurrency']} at once",
    }[load["kind"]]
    return first + (f", {order} order" if order else "")


def _latencies(report: Report) -> Table:
    table = Table(title="latency", title_justify="left")
    for head in ("", "p50", "p90", "p99", "max", "mean", "count"):
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    itl = "ITL" if report.tokens.per_event <= 1.05 else "gap of events"
    latency = report.latency_s
    for name, spread in (("TTFT", latency.ttft), ("TPOT", latency.tpot), (itl, latency.itl), ("E2E", latency.e2e)):
        table.add_row(name, *_cells(spread))
    return table


def _cells(spread: Spread | None) -> list[str]:
    if spread is None:
        return ["-"] * 5 + ["0"]
    times = (spread.p50, spread.p90, spread.p99, spread.max, spread.mean)
    return [*(format_seconds(t) for t in times), str(spread.count)]


def _hits(hits: Hits, answered: int) -> Table:
    inferred = hits.inferred
    if inferred.seconds_per_prompt_token is None or inferred.error_tokens is None:
        seen = f"cannot be inferred: {inferred.why}"
    else:
        line = f"{format_seconds(inferred.seconds_per_prompt_token)} a token, +-{inferred.error_tokens:.0f} tokens"
        of = ""
        if inferred.requests < answered:
            of = f"of the {inferred.requests} requests that were alone, reported {percent(inferred.reported_rate)}; "
        seen = f"{percent(inferred.rate)} ({of}{line}; {inferred.source})"
    by = "" if hits.optimum_by == "ids" else " (about: by text)"
    rows = [
        ("reported", percent(hits.reported_rate)),
        ("inferred from TTFT", seen),
        ("optimum", f"{percent(hits.optimum_rate)}{by}"),
        ("reported / optimum", percent(hits.reported_of_optimum, "-")),
    ]
    return _pairs("cache hits, of prompt tokens", rows)


def _turns(report: Report) -> Table:
    table = Table(title="by turn", title_justify="left")
    for head in ("turn", "requests", "prompt tokens", "TTFT p50", "reported", "inferred", "optimum"):
        table.add_column(head, justify="right", no_wrap=True)
    for t in report.turns:
        ttft = "-" if t.ttft_p50_s is None else format_seconds(t.ttft_p50_s)
        shares = percent(t.reported_rate), percent(t.inferred_rate, "-"), percent(t.optimum_rate)
        table.add_row(str(t.turn), str(t.requests), str(t.prompt_tokens), ttft, *shares)
    return table


def _errors(report: Report) -> Table:
    table = Table(title="errors", title_justify="left")
    for head in ("kind", "count", "the first of them"):
        table.add_column(head)
    for error in report.errors:
        table.add_row(error.kind, str(error.count), error.example)
    return table


def _plain(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(_plain(v) for v in value)
    if value is None:
        return "cannot be told"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
