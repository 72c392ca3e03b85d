"""``kvist plan --plot FILE``: memory over context, latency over users, and the roofline, as .png, .svg or .html.

The page is one file: its drawings are SVG inside it, nothing is fetched when it is opened.
"""

from __future__ import annotations

import html
import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvist.cli.plan.words import counted
from kvist.errors import BadValue, KvistError, UsageError
from kvist.planner.decide.curves import latency_curve, memory_curve, roofline_points
from kvist.planner.plan import Plan
from kvist.planner.report import notes_of, weights_known
from kvist.units import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS: Final = (".png", ".svg", ".html")
_COLOURS: Final = ("#3b6fb6", "#a05195", "#2f9e9e", "#d9a441", "#b0b0b0")
_CACHE: Final = "#4c9f50"


def check_plot_file(file: Path) -> None:
    """Refuse what cannot be drawn before anything is computed. Raises ``BadValue``, ``UsageError``."""
    if file.suffix.lower() not in KINDS:
        raise BadValue("--plot", str(file), f"a file that ends in {', '.join(KINDS)}")
    if not file.absolute().parent.is_dir():
        raise BadValue("--plot", str(file), "a file in a folder that exists", remedy=f"make {file.parent} first")
    _figure(1, 1)


def plot(plan: Plan, file: Path) -> None:
    """Draw the plan into ``file``. Raises ``BadValue``, ``UsageError`` (no matplotlib) or ``KvistError`` (no place)."""
    check_plot_file(file)
    try:
        if file.suffix.lower() == ".html":
            file.write_text(page(plan), encoding="utf-8")
            return
        figure = _figure(12, 11)
        axes = (figure.add_subplot(2, 2, (1, 2)), figure.add_subplot(2, 2, 3), figure.add_subplot(2, 2, 4))
        for draw, one in zip(_DRAWINGS, axes, strict=True):
            draw(plan, one)
        figure.suptitle(_title(plan))
        figure.savefig(file, dpi=150, format=file.suffix.lower()[1:])
    except OSError as error:
        raise KvistError(f"{file} cannot be written ({error.strerror})", remedy="check the path") from error


def _figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            "--plot draws with matplotlib, which is not installed", remedy="pip install 'kvist[plot]'"
        ) from error
    return Figure(figsize=(width, height), layout="constrained")


def _title(plan: Plan) -> str:
    setup, load = plan.setup, plan.load
    name = setup.spec.name or setup.spec.architecture
    unknown = "" if weights_known(setup) else ", weights not known"
    return (
        f"{name} on {setup.place.devices} x {setup.device.name} ({setup.place.name}), "
        f"{setup.engine}, {setup.kv_format.name} cache, {counted(load.users, 'user')} at {load.context_tokens:,} tokens"
        f"{unknown}"
    )


def draw_memory(plan: Plan, axes: Axes) -> None:
    """Stacked terms of one device, the cache of all users on top, the device's limits."""
    curve = memory_curve(plan)
    ground = 0.0
    for (name, size), colour in zip(curve.terms, _COLOURS, strict=False):
        axes.fill_between(curve.contexts, ground / GIB, (ground + size) / GIB, color=colour, label=name, linewidth=0)
        ground += size
    for users, held in curve.cache_bytes.items():
        top = [(ground + size) / GIB for size in held]
        label = f"cache of {counted(users, 'user')}"
        if users == plan.load.users:
            axes.fill_between(curve.contexts, ground / GIB, top, color=_CACHE, alpha=0.6, label=label, linewidth=0)
        else:
            axes.plot(curve.contexts, top, color=_CACHE, linestyle="--" if users > 1 else ":", label=label)
    axes.axhline(curve.total_bytes / GIB, color="black", linewidth=1.5, label="the device")
    axes.axhline(curve.usable_bytes / GIB, color="black", linewidth=1, linestyle="--", label="what the engine may use")
    axes.axvline(plan.load.context_tokens, color="grey", linewidth=0.8)
    axes.set(xlabel="context, tokens", ylabel="GiB on one device", title="Memory over context")
    axes.set_xlim(curve.contexts[0], curve.contexts[-1])
    axes.set_ylim(0, 1.6 * max(curve.total_bytes, ground) / GIB)
    axes.legend(fontsize="small", loc="upper left", ncols=2)


def draw_latency(plan: Plan, axes: Axes) -> None:
    """Seconds between tokens with their spread, and to first tokens."""
    points = latency_curve(plan)
    users = [p.users for p in points]
    axes.plot(users, [p.tpot.best for p in points], marker="o", color=_COLOURS[0], label="next token")
    axes.fill_between(
        users, [p.tpot.low for p in points], [p.tpot.high for p in points], color=_COLOURS[0], alpha=0.2, linewidth=0
    )
    axes.plot(users, [p.ttft.best for p in points], color=_COLOURS[1], label="first token, alone")
    axes.plot(
        users, [p.burst_mean_s for p in points], color=_COLOURS[3], linestyle="--", label="first token, burst mean"
    )
    axes.axvline(max(plan.users_fit[1], 1), color="red", linewidth=0.8, label=f"{plan.users_fit[1]:,} fit")
    axes.axvline(plan.load.users, color="grey", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="users at a time", ylabel="seconds", title="Latency over users")
    axes.legend(fontsize="small")


def draw_roofline(plan: Plan, axes: Axes) -> None:
    """The data sheet's roof, and where this workload's steps lie under it."""
    device, points = plan.setup.device, roofline_points(plan)
    rate, bandwidth = device.flops_for(plan.setup.compute), device.bandwidth_bytes_per_s
    ridge = rate / bandwidth
    low = min(0.1 * ridge, *(p.flops_per_byte for p in points)) / 2
    high = max(10 * ridge, *(p.flops_per_byte for p in points)) * 2
    axes.plot(
        [low, ridge, high], [low * bandwidth, rate, rate], color="black", label=f"{device.name}, {plan.setup.compute}"
    )
    for point, colour in zip(points, (_COLOURS[0], _COLOURS[2], _COLOURS[1]), strict=False):
        axes.plot(point.flops_per_byte, point.flops_per_s, "o", color=colour, label=point.name)
    axes.axvline(ridge, color="grey", linewidth=0.8, linestyle=":")
    axes.set(
        xscale="log", yscale="log", xlabel="FLOPs per byte", ylabel="FLOPs per second", title="Roofline, one device"
    )
    axes.legend(fontsize="small", loc="lower right")


_DRAWINGS: Final[tuple[Callable[[Plan, Any], None], ...]] = (draw_memory, draw_latency, draw_roofline)


def _svg(draw: Callable[[Plan, Any], None], plan: Plan) -> str:
    figure, out = _figure(9, 5), io.StringIO()
    draw(plan, figure.add_subplot())
    figure.savefig(out, format="svg")
    text = out.getvalue()
    return text[text.index("<svg") :]


def page(plan: Plan) -> str:
    """One HTML file: the screen's tables and three drawings."""
    from rich.console import Console

    from kvist.cli.plan.bars import legend, segments
    from kvist.cli.plan.view import table, verdict

    record = Console(width=100, record=True, file=io.StringIO(), force_terminal=True)
    record.print(verdict(plan))
    record.print()
    record.print(legend(segments(plan), ascii_only=False))
    record.print()
    record.print(table(plan))
    for note in notes_of(plan):
        record.print(f"- {note}", markup=False, style="dim")
    screen = record.export_html(inline_styles=True, code_format="<pre>{code}</pre>")
    title = html.escape(_title(plan))
    drawings = "\n".join(f"<figure>{_svg(draw, plan)}</figure>" for draw in _DRAWINGS)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>\n'
        "<style>body{font:15px sans-serif;max-width:62em;margin:2em auto}pre{line-height:1.35}"
        "figure{margin:1em 0}svg{max-width:100%;height:auto}</style></head>\n"
        f"<body><h1>{title}</h1>\n{screen}\n{drawings}\n</body></html>\n"
    )
