"""``kvist plan --explain``: the derivation, equation by equation, with this model's numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvist.cli.plan.bars import TAG_STYLE
from kvist.cost.interval import Interval
from kvist.planner.explain.derivation import Equation, Section, Unit
from kvist.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from kvist.planner.decide.no_cache import Row


def render(sections: Sequence[Section], console: Console) -> None:
    """Draw every section: its title, what the symbols mean, its equations."""
    from rich.table import Table
    from rich.text import Text

    for section in sections:
        console.print(Text(f"\n{section.title}", "bold"))
        if section.about:
            console.print(Text(section.about, "dim"))
        grid = Table.grid(padding=(0, 1))
        grid.add_column(style="cyan", no_wrap=True)
        grid.add_column(overflow="fold")
        for equation in section.equations:
            grid.add_row(equation.symbol, _right_side(equation))
        console.print(grid)


def _right_side(equation: Equation) -> Text:
    """``= formula = numbers = value [ends] (note)``."""
    from rich.text import Text

    line = Text()
    for part in (equation.formula, equation.numbers):
        if part:
            line.append(f"= {part} ")
    line.append("= ").append(value_text(equation.value, equation.unit), "bold")
    if equation.value.tag != "exact":
        line.append(f" {equation.value.tag}", TAG_STYLE[equation.value.tag])
    return line.append(f"  [{equation.note}]", "dim") if equation.note else line


def value_text(value: Interval, unit: Unit) -> str:
    """``163,840 B = 160 KiB``, ``41.1 ms (35..58.1 ms)``: the best, and the ends where they differ."""
    best = number_text(value.best, unit)
    low, high = (number_text(x, unit, short=True) for x in (value.low, value.high))
    return best if low == high else f"{best} ({low}..{high})"


def number_text(value: float, unit: Unit, *, short: bool = False) -> str:
    """One number with its unit."""
    match unit:
        case "bytes":
            said = format_bytes(value)
            return said if short or abs(value) < 1024 else f"{value:,.0f} B = {said}"
        case "seconds":
            return format_seconds(value)
        case "flops":
            return _metric(value, "FLOP")
        case "flops/byte":
            return f"{value:.4g} FLOP/B"
        case "ratio":
            return f"{value:,.4g}"
        case _:
            return f"{value:,.0f} {unit}"


def _metric(value: float, unit: str) -> str:
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.4g} {letter}{unit}"
    return f"{value:,.0f} {unit}"


def render_no_cache(rows: Sequence[Row], console: Console) -> None:
    """What it takes to generate n tokens from nothing, with a cache and without."""
    from rich import box
    from rich.table import Table

    table = Table(
        title="\nThe same text generated with a cache and without, whole model",
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        caption="bytes: what crosses the memory bus, all steps together",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )
    for name in ("tokens", "FLOPs", "without", "linear", "attn", "bytes", "without", "cache"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            f"{row.n_tokens:,}",
            _metric(row.cached.flops, ""),
            _metric(row.plain.flops, ""),
            f"x{row.linear_times:,.4g}",
            f"x{row.attention_times:,.4g}",
            _metric(row.cached.bytes, "B"),
            _metric(row.plain.bytes, "B"),
            format_bytes(row.cache_bytes),
        )
    console.print(table)
