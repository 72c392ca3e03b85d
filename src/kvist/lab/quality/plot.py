"""The record as a picture: bytes against KL for each rule, and KL by position. matplotlib is optional."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from kvist.lab.quality.rows import QualityRow
from kvist.lab.quality.table import by_text, title
from kvist.units import MIB

_COLOURS: Final = ("#3b6fb6", "#c26a3b", "#a05195", "#4a8f5c", "#7a7a7a")
_MARKERS: Final = ("o", "s", "^", "D", "v")
_LEAST: Final = 1e-12
_NAME_PX: Final = (95.0, 17.0)
"""Room that a name takes, in pixels across and up."""


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def plot(rows: Sequence[QualityRow], heading: str, file: Path) -> None:
    """Draw ``rows`` into ``file`` (its suffix says the format): a line of panels for each text and length, in it one
    for each rule, and one for KL by position where there is more than one bucket.

    Raises ``OSError``, ``ImportError``.
    """
    from matplotlib.figure import Figure

    texts = by_text(rows)
    rules = list(dict.fromkeys(row.protection for row in rows if not row.noise))
    deep = any(len(mine[0].quality.kl_by_position) > 1 for mine in texts)
    panels = max(1, len(rules) + deep)
    figure = Figure(figsize=(7.5 * panels, 5.4 * len(texts)), dpi=150, layout="constrained")
    grid = figure.subplots(len(texts), panels, squeeze=False, sharey="row")
    for mine, line in zip(texts, grid, strict=True):
        for i, (rule, axes) in enumerate(zip(rules, line[: len(rules)], strict=True)):
            _bytes_against_kl(axes, [row for row in mine if row.protection == rule and not row.noise], i)
            axes.set_title(f"exact: {rule}", fontsize="medium")
        if deep and rules:
            _by_position(line[-1], [row for row in mine if not row.noise], rules)
        line[0].set_ylabel(f"{title(mine[0])}\n\nmean KL, nats{_floor(mine)}")
    figure.suptitle(heading)
    figure.draw_without_rendering()
    for axes in (axes for line in grid for axes in line):
        _spread(axes)
    figure.savefig(file)


def _floor(rows: Sequence[QualityRow]) -> str:
    return "".join(f" (noise floor {row.quality.kl_mean:.0e})" for row in rows if row.noise)


def _bytes_against_kl(axes: Any, rows: Sequence[QualityRow], look: int) -> None:
    """Every method a named dot; those that no other beats in both are joined by a line."""
    colour = _COLOURS[look % len(_COLOURS)]
    dots = [(row.size.bytes_at_8k / MIB, _positive(row.quality.kl_mean)) for row in rows]
    axes.scatter(*zip(*dots, strict=True), s=28, color=colour, marker=_MARKERS[look % len(_MARKERS)])
    front = sorted((row.size.bytes_at_8k / MIB, _positive(row.quality.kl_mean)) for row in front_of(rows))
    axes.plot(*zip(*front, strict=True), color=colour, linewidth=1, alpha=0.6)
    for row, dot in zip(rows, dots, strict=True):
        _name(axes, row.spec, dot, colour)
    axes.set(xscale="log", yscale="log", xlabel="K and V of 8,192 tokens, MiB")
    _plain_sizes(axes)
    axes.grid(alpha=0.3, which="both")
    axes.margins(x=0.18)


def front_of(rows: Sequence[QualityRow]) -> list[QualityRow]:
    """Rows that no other beats in bytes and in KL at once."""
    return [
        row
        for row in rows
        if not any(
            (o.size.bytes_at_8k, o.quality.kl_mean) != (row.size.bytes_at_8k, row.quality.kl_mean)
            and o.size.bytes_at_8k <= row.size.bytes_at_8k
            and o.quality.kl_mean <= row.quality.kl_mean
            for o in rows
        )
    ]


def _plain_sizes(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator

    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 3, 5, 7)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))


def _by_position(axes: Any, rows: Sequence[QualityRow], rules: Sequence[str]) -> None:
    """Mean KL of each bucket of positions: one line for each method, named at its end, one colour for each rule."""
    for row in rows:
        look = rules.index(row.protection)
        colour, marker = _COLOURS[look % len(_COLOURS)], _MARKERS[look % len(_MARKERS)]
        values = [_positive(kl) for kl in row.quality.kl_by_position.values()]
        axes.plot(list(row.quality.kl_by_position), values, color=colour, marker=marker, linewidth=1)
        _name(axes, row.spec, (len(values) - 1, values[-1]), colour)
    axes.set(yscale="log", xlabel="position of the query, tokens")
    axes.set_title("by position", fontsize="medium")
    axes.margins(x=0.15)
    axes.grid(alpha=0.3)


def _name(axes: Any, text: str, at: tuple[float, float], colour: str) -> None:
    axes.annotate(text, at, xytext=(6, -3), textcoords="offset points", fontsize=7, color=colour)


def _spread(axes: Any) -> None:
    """Move names up until none lies on another that is below it."""
    placed: list[tuple[float, float]] = []
    dots = [(axes.transData.transform((axes.convert_xunits(name.xy[0]), name.xy[1])), name) for name in axes.texts]
    for (x, y), name in sorted(dots, key=lambda pair: float(pair[0][1])):
        up = 0.0
        while any(abs(x - px) < _NAME_PX[0] and abs(y + up - py) < _NAME_PX[1] for px, py in placed):
            up += 1.0
        placed.append((x, y + up))
        name.set_position((6, -3 + up * 72 / axes.figure.dpi))


def _positive(kl: float) -> float:
    """KL on a logarithmic axis: rounding can make it nothing, or less."""
    return max(kl, _LEAST)
