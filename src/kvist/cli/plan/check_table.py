"""The table of a check: by engine and by category, then every number that did not simply come out right, and why."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvist.planner.check.report import Report, Row, Summary


def render(report: Report, console: Console) -> None:
    """Print the whole report. Nothing is left out: rows that could not be predicted have their reason."""
    console.print(_table("By engine", "engine", (*report.by_engine(), report.total)))
    console.print(_table("\nBy category", "category", report.by_category()))
    rows = report.not_passing()
    if rows:
        console.print("\n[bold]Not simply right[/]")
    for row in rows:
        _print_row(row, console)
    console.print()
    console.print(_verdict(report), highlight=False)


def _table(title: str, first: str, summaries: tuple[Summary, ...]) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False
    )
    table.add_column(first, overflow="fold")
    for name in ("cases", "judged", "right", "median", "worst", "unanswered"):
        table.add_column(name, justify="right")
    table.add_column("worst case", overflow="fold")
    for s in summaries:
        numbers = (str(s.count), str(s.judged), str(s.passed), _percent(s.median_percent), _percent(s.worst_percent))
        table.add_row(s.name, *numbers, str(s.unanswered or ""), s.worst_id, style="bold" if s.name == "all" else "")
    return table


def _print_row(row: Row, console: Console) -> None:
    """One number that needs a word: what was printed, what was predicted, and why they differ or agree."""
    off = f" ({_percent(row.error_percent)})" if row.error_percent is not None else ""
    numbers = f"printed {_number(row.expected)}, predicted {_number(row.predicted) or 'nothing'}{off}"
    colour = "red" if row.status == "off" else "yellow"
    console.print(f" [{colour}]{escape(row.status)}[/] [bold]{escape(row.id)}[/]: {escape(row.quantity)}: {numbers}")
    why = "; ".join(part for part in (*row.why, row.how) if part)
    if why:
        console.print(Padding(Text(why, style="dim"), (0, 0, 0, 3)))


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
