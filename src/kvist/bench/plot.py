"""A report as a picture: TTFT over time, its distribution, and hits by turn. matplotlib is optional."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from kvist.bench.report import Report
from kvist.errors import BadValue, KvistError

SUFFIXES: Final = (".png", ".svg")


def check(file: Path) -> None:
    """Before anything is measured. Raises ``BadValue`` for another suffix, ``KvistError`` without matplotlib."""
    if file.suffix not in SUFFIXES:
        raise BadValue("plot", str(file), f"a file ending in {' or '.join(SUFFIXES)}")
    if find_spec("matplotlib") is None:
        raise KvistError("matplotlib is not installed", remedy="pip install 'kvist[plot]'")


def plot(report: Report, file: Path) -> None:
    """Draw into ``file``. Raises ``OSError``."""
    from matplotlib.figure import Figure

    panels = 3 if report.turns else 2
    figure = Figure(figsize=(5.5 * panels, 4.2), layout="constrained")
    axes = figure.subplots(1, panels)
    _over_time(axes[0], report)
    _distribution(axes[1], report)
    if report.turns:
        _by_turn(axes[2], report)
    for one in axes:
        one.grid(alpha=0.3)
    figure.suptitle(f"{report.workload['name']}, {report.target['model']}")
    figure.savefig(file, dpi=150)


def _over_time(axes: Any, report: Report) -> None:
    good = [r for r in report.details if r.ok and r.ttft_s is not None]
    told = any(r.cached_tokens is not None for r in good)
    shares = [(r.cached_tokens or 0) / max(1, r.prompt_tokens) for r in good]
    colour = {"c": shares, "cmap": "viridis", "vmin": 0, "vmax": 1} if told else {"color": "#3b6fb6"}
    dots = axes.scatter([r.sent_s for r in good], [r.ttft_s for r in good], s=12, **colour)
    if told:
        axes.figure.colorbar(dots, ax=axes, label="cached share of the prompt")
    for failed in (r.sent_s for r in report.details if r.failed):
        axes.axvline(failed, color="#c23b3b", alpha=0.4, linewidth=0.8)
    axes.set(xlabel="sent at, s", ylabel="TTFT, s", title="TTFT over time (red: a failure)")


def _distribution(axes: Any, report: Report) -> None:
    times = sorted(r.ttft_s for r in report.details if r.ok and r.ttft_s is not None)
    axes.step(times, [(i + 1) / len(times) for i in range(len(times))], where="post", color="#3b6fb6")
    axes.set(xlabel="TTFT, s", ylabel="share of requests", ylim=(0, 1.02), title="Distribution of TTFT")


def _by_turn(axes: Any, report: Report) -> None:
    from matplotlib.ticker import MaxNLocator

    turns = [t.turn for t in report.turns]
    for name, colour, style, values in (
        ("reported", "#3b6fb6", "o-", [t.reported_rate for t in report.turns]),
        ("inferred", "#a05195", "o-", [t.inferred_rate for t in report.turns]),
        ("optimum", "black", ".--", [t.optimum_rate for t in report.turns]),
    ):
        if any(v is not None for v in values):
            axes.plot(turns, [float("nan") if v is None else v for v in values], style, color=colour, label=name)
    axes.set(xlabel="turn", ylabel="share of prompt tokens", ylim=(-0.02, 1.02), title="Cache hits by turn")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(fontsize="small")
