"""The table of a check: by engine and by category, then every number that did not simply come out right, and why."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from kvist.planner.check_report import Report, Row, Summary


def render(report: Report, console: Console) -> None:
    """Print the whole report. Nothing is left out: rows that could not be predicted have their reason."""
    console.print(_table("By engine", "engine", (*report.by_engine(), report.total)))
    console.print(_table("By category", "category", report.by_category()))
    rows = report.not_passing()
    if rows:
        console.print(_rows(rows))
    console.print(_verdict(report), highlight=False)


def _table(title: str, first: str, summaries: tuple[Summary, ...]) -> Table:
    table = Table(title=title, title_justify="left", show_lines=False)
    table.add_column(first, overflow="fold")
    for name in ("cases", "judged", "right", "median error", "worst", "no answer"):
        table.add_column(name, justify="right")
    table.add_column("worst case", overflow="fold")
    for s in summaries:
        table.add_row(
            s.name,
            str(s.count),
            str(s.judged),
            str(s.passed),
            _percent(s.median_percent),
            _percent(s.worst_percent),
            str(s.unanswered),
            s.worst_id,
            end_section=s.name == "all",
        )
    return table


def _rows(rows: tuple[Row, ...]) -> Table:
    table = Table(title="Not simply right", title_justify="left", show_lines=True)
    table.add_column("case", overflow="fold")
    table.add_column("number", overflow="fold")
    table.add_column("printed", justify="right")
    table.add_column("predicted", justify="right")
    table.add_column("error", justify="right")
    table.add_column("status")
    table.add_column("why", overflow="fold", ratio=1)
    for row in rows:
        why = "; ".join(part for part in (*row.why, row.how) if part)
        table.add_row(
            row.id,
            row.quantity,
            _number(row.expected),
            _number(row.predicted),
            _percent(row.error_percent),
            row.status,
            why,
        )
    return table


def _verdict(report: Report) -> str:
    total = report.total
    said = f"{total.passed} of {total.judged} judged numbers right, {total.unanswered} without an answer"
    off = [row.id for row in report.rows if row.status == "off"]
    borrowed = [row.id for row in report.own if row.fit == "stand-in"]
    said += f", {len(borrowed)} from the config of a relative ({', '.join(borrowed)})" if borrowed else ""
    return f"{said}; off: {', '.join(off)}" if off else f"{said}; none is off"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.4f} %"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.2f}"
