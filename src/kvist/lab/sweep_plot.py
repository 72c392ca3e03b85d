"""The drawing of a sweep: time per token and bytes held over context lengths. matplotlib is optional."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kvist.lab.record import SweepRow
from kvist.units import MIB

_LOOKS = {"on": ("#3b6fb6", "o", "with the cache"), "off": ("#a05195", "s", "without it")}


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def plot(rows: Sequence[SweepRow], title: str, file: Path) -> None:
    """Draw ``rows`` into ``file`` (its suffix says the format). Raises ``OSError``, ``ImportError``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    time, memory = figure.add_subplot(1, 2, 1), figure.add_subplot(1, 2, 2)
    for mode, look in _LOOKS.items():
        mine = [r for r in rows if r.cache == mode]
        if mine:
            _draw_times(time, mine, look)
    _draw_bytes(memory, rows)
    time.set(xlabel="context, tokens", ylabel="ms", title="Time to the first token, and per token after it")
    for axes in (time, memory):
        axes.set_xscale("log", base=2)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    time.set_yscale("log")
    figure.suptitle(title)
    figure.savefig(file, dpi=150)


def _draw_times(axes: Any, rows: Sequence[SweepRow], look: tuple[str, str, str]) -> None:
    colour, marker, name = look
    lengths = [r.seq_tokens for r in rows]
    axes.plot(lengths, [r.tpot_s * 1e3 for r in rows], color=colour, marker=marker, label=f"per token, {name}")
    axes.plot(lengths, [r.ttft_s * 1e3 for r in rows], color=colour, linestyle=":", label=f"first token, {name}")


def _draw_bytes(axes: Any, rows: Sequence[SweepRow]) -> None:
    mode = "on" if any(r.cache == "on" for r in rows) else "off"
    mine = [r for r in rows if r.cache == mode]
    lengths = [r.seq_tokens for r in mine]
    axes.plot(lengths, [r.kv_bytes_formula / MIB for r in mine], color="black", linewidth=1, label="formula")
    axes.plot(lengths, [r.kv_bytes_held / MIB for r in mine], "o", color=_LOOKS["on"][0], label="held by the allocator")
    axes.set(xlabel="context, tokens", ylabel="MiB", title="Bytes of K and V, the whole batch")
