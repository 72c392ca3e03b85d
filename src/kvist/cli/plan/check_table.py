"""The table of a check: by engine and by category, then every number that did not simply come out right, and why."""

from __future__ import annotations

from typing import Final

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvist.planner.check.report import Report, Row, Summary

_GAP: Final = 2
_DROPPED: Final = ("median", "worst case", "cases", "worst")
"""Columns that go, in this order, where there is no room. The rows below the tables name every case that matters."""


def render(report: Report, console: Console) -> None:
    """Print the whole report. Nothing is left out: rows that could not be predicted have their reason."""
    console.print(_table("By engine", "engine", (*report.by_engine(), report.total), console.width))
    console.print(_table("\nBy category", "category", report.by_category(), console.width))
    rows = report.not_passing()
    if rows:
        console.print("\n[bold]Not simply right[/]")
    for row in rows:
        _print_row(row, console)
    console.print()
    console.print(Text(_verdict(report)))


def _table(title: str, first: str, summaries: tuple[Summary, ...], width: int) -> Table:
    """Numbers and ids whole at any width: what does not fit beside them is dropped, names of categories wrap."""
    columns = _columns(first, summaries)
    for name in _DROPPED:
        if _needed(columns, first) <= width:
            break
        columns.pop(name)
    table = Table(
        title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False,
        padding=(0, _GAP - 1, 0, 0),
    )  # fmt: skip
    for name in columns:
        table.add_column(name, justify="left" if name in (first, "worst case") else "right", no_wrap=name != first)
    for i, s in enumerate(summaries):
        table.add_row(*(escape(cells[i]) for cells in columns.values()), style="bold" if s.name == "all" else "")
    return table


def _columns(first: str, summaries: tuple[Summary, ...]) -> dict[str, list[str]]:
    columns = {
        first: [s.name for s in summaries],
        "cases": [str(s.count) for s in summaries],
        "right": [f"{s.passed} of {s.judged}" if s.judged else "" for s in summaries],
        "median": [_percent(s.median_percent) for s in summaries],
        "worst": [_percent(s.worst_percent) for s in summaries],
    }
    if any(s.unanswered for s in summaries):
        columns["no answer"] = [str(s.unanswered or "") for s in summaries]
    return {**columns, "worst case": [s.worst_id for s in summaries]}


def _needed(columns: dict[str, list[str]], first: str) -> int:
    """Cells that the columns take; of the first column only its longest word, since its names wrap."""
    words = [word for text in (first, *columns[first]) for word in text.split()]
    rest = sum(max(map(cell_len, (name, *cells))) for name, cells in columns.items() if name != first)
    return max(map(cell_len, words), default=0) + rest + _GAP * (len(columns) - 1)


def _print_row(row: Row, console: Console) -> None:
    """One number that needs a word: what was printed, what was predicted, and why they differ or agree."""
    off = f" ({_off(row)})" if row.difference is not None else ""
    numbers = f"printed {_number(row.expected)}, predicted {_number(row.predicted) or 'nothing'}{off}"
    colour = "red" if row.status == "off" else "yellow"
    console.print(f" [{colour}]{escape(row.status)}[/] [bold]{escape(row.id)}[/]: {escape(row.quantity)}: {numbers}")
    why = "; ".join(part for part in (*row.why, row.how) if part)
    if why:
        console.print(Padding(Text(why, style="dim"), (0, 0, 0, 3)))


def _off(row: Row) -> str:
    """How far off: in percent, and of a print of zero in its own unit."""
    if row.error_percent is not None:
        return _percent(row.error_percent)
    return f"{'+' if (row.difference or 0) > 0 else ''}{_number(row.difference)}"


def _verdict(report: Report) -> str:
    total = report.total
    said = f"{total.passed} of {total.judged} judged numbers right, {total.unanswered} without an answer"
    lost = [row.id for row in report.unanswered]
    said += f", of which {len(lost)} must have one ({', '.join(lost)})" if lost else ""
    off = [row.id for row in report.rows if row.status == "off"]
    borrowed = [row.id for row in report.own if row.fit == "stand-in"]
    said += f", {len(borrowed)} from the config of a relative ({', '.join(borrowed)})" if borrowed else ""
    return f"{said}; off: {', '.join(off)}" if off else f"{said}; none is off"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.4f} %" if abs(value) < 1e4 else f"{value:.2e} %"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.2f}"
