"""What the log doctor found: printed beside predicted, then sentences, then what a plan can take over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kvist.planner.doctor.diagnose import Diagnosis, Row
from kvist.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_COLOURS: Final = {"agrees": "green", "differs": "yellow", "read": "dim"}
_UNKNOWN: Final = "-"
_WIDE: Final = 120
_TERM: Final = 14
"""Cells that a term's name has at least; longer ones take several lines."""

_LABELS: Final = {
    "kv": "cache", "k": "cache, keys", "v": "cache, values", "state": "states", "s": "states, S", "r": "states, R",
    "ssm": "states", "conv": "states, filters", "kv_cells": "cells", "kv_available": "available to the cache",
    "kv_tokens": "tokens", "gpu_blocks": "blocks", "cpu_blocks": "blocks on the host", "non_torch": "outside torch",
    "peak_torch": "peak in torch", "needed": "needed by one request", "longest_tokens": "longest request",
    "concurrency": "requests at a time", "block_tokens": "tokens of a block", "graphs": "captured graphs",
}  # fmt: skip
"""Terms whose name is not yet what people call them."""
_REFITTED: Final = {
    "weights_bytes": "weights", "activation_bytes": "activations", "runtime_bytes": "runtime",
    "graph_bytes": "captured graphs",
}  # fmt: skip


def render(diagnosis: Diagnosis, console: Console) -> None:
    """Draw a diagnosis. Nothing that was read is left out; what differs and has no explanation is said last."""
    from rich.markup import escape
    from rich.padding import Padding

    console.print(_headline(diagnosis))
    if diagnosis.rows:
        console.print(_rows(diagnosis, console.width))
    for finding in diagnosis.findings:
        mark = "[red]?[/]" if finding.cause == "unexplained" else "[yellow]![/]" if finding.explains else "[cyan]*[/]"
        console.print(Padding(f"{mark} [bold]{escape(finding.cause)}[/]: {escape(finding.sentence)}", (0, 0, 0, 1)))
    if lines := _refit(diagnosis.refit):
        console.print("\n[bold]A plan can take over[/]", *lines, sep="\n ", highlight=False)
    for note in diagnosis.notes:
        console.print(f"[dim]note: {escape(note)}[/]", highlight=False)


def _headline(d: Diagnosis) -> RenderableType:
    from rich.text import Text

    name = d.log.engine + (f" {d.log.version}" if d.log.version else "")
    facts = [f"{d.log.lines:,} lines read", f"{len(d.log.terms)} numbers found"]
    settings = d.log.settings
    facts += [
        f"{key} {settings[key]}" for key in ("model", "tp", "pp", "max_model_tokens", "kv_dtype") if key in settings
    ]
    return Text(name, style="bold").append("  " + " · ".join(facts), style="not bold dim")


def _rows(d: Diagnosis, width: int) -> RenderableType:
    """Where there is room, the ends of a prediction, the line of the log and the sum it came from stand beside it."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    wide = width >= _WIDE
    shown = _fitting(d, width)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, int(wide), 0, 0))
    table.add_column("term", overflow="fold", min_width=_TERM)
    for name in shown:
        table.add_column(name, justify="left" if name in ("", "known") else "right", no_wrap=True)
    if wide:
        table.add_column("from", overflow="fold")
    for r in d.rows:
        cells = _cells(r)
        verdict = f"[{_COLOURS[r.verdict]}]{r.verdict}[/]"
        numbers = (verdict if name == "" else escape(cells[name]) for name in shown)
        table.add_row(escape(_name(r)), *numbers, *[escape(r.how)] * wide)
    return table


def _cells(r: Row) -> dict[str, str]:
    """Everything a row can show, by its column."""
    guess = r.predicted
    return {
        "line": str(r.line),
        "printed": r.text,
        "predicted": _number(guess.best, r.unit) if guess else _UNKNOWN,
        "low - high": _span(guess.low, guess.high, r.unit) if guess and guess.low < guess.high else "",
        "off": "" if r.percent is None else f"{r.percent:+.2f} %",
        "": r.verdict,
        "known": guess.tag if guess else "",
    }


def _fitting(d: Diagnosis, width: int) -> list[str]:
    """Columns that fit whole beside a term's name: the ends of predictions go first, then how they are known."""
    from rich.cells import cell_len

    rows = [_cells(r) for r in d.rows]
    shown = ["printed", "predicted", "low - high", "off", "", "known"]
    if width >= _WIDE:
        return ["line", *shown]
    for dropped in ("low - high", "known"):
        taken = sum(1 + max(cell_len(text) for text in (name, *(row[name] for row in rows))) for name in shown)
        if _TERM + taken <= width:
            break
        shown.remove(dropped)
    return shown


def _span(low: float, high: float, unit: str) -> str:
    """Both ends, the unit once where they share it."""
    first, last = _number(low, unit), _number(high, unit)
    same = first.partition(" ")[2] == last.partition(" ")[2]
    return f"{first.partition(' ')[0] if same else first} - {last}"


def _name(r: Row) -> str:
    """What people call a term, of which layers or device, and by whom it was printed."""
    what = "" if r.what == "recurrent state" else r.what
    parts = (_LABELS.get(r.name, r.name.replace("_", " ")), what, f"({r.rank})" if r.rank else "")
    return " ".join(part for part in parts if part)


def _number(value: float, unit: str) -> str:
    if unit == "bytes":
        return format_bytes(value)
    return f"{value:,.2f}" if value != int(value) else f"{int(value):,}"


def _refit(refit: Mapping[str, object]) -> list[str]:
    """One line a constant: what it was, between which ends, and which lines of the log say so."""
    out = []
    for key, name in _REFITTED.items():
        entry = refit.get(key)
        if isinstance(entry, Mapping):
            low, best, high = (format_bytes(float(entry[end])) for end in ("low", "best", "high"))
            ends = f" ({low} to {high})" if low != high else ""
            out.append(f"{name}: {best}{ends}, {entry.get('tag')}: {entry.get('how')}")
    rate, step = refit.get("activation_bytes_per_token"), refit.get("batched_tokens")
    if isinstance(rate, int | float) and isinstance(step, int):
        out.append(f"activations per token of a step of {step:,}: {format_bytes(rate)}")
    share = refit.get("utilization")
    return [*out, f"share of the device: {share:.4g}"] if isinstance(share, int | float) else out
