"""A device's memory as one line of blocks, and what each stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from kvist.cost.interval import Interval, Tag
from kvist.planner.plan import Plan
from kvist.planner.report import need_bytes
from kvist.units import GIB, format_bytes

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_LOOKS: Final = {
    "weights": ("█", "#", "blue"),
    "activations": ("▓", "%", "magenta"),
    "graphs": ("▚", "&", "cyan"),
    "runtime": ("▒", "=", "yellow"),
    "cache used": ("■", "+", "green"),
    "cache free": ("·", ".", "green"),
    "missing": ("✖", "!", "bold red"),
    "left to others": ("░", "~", "dim"),
}
"""Glyph, the same for terminals that have ASCII only, colour. Glyphs differ, so that a pipe loses nothing."""

TAG_STYLE: Final = {"exact": "green", "measured": "cyan", "assumed": "yellow"}


@dataclass(frozen=True, slots=True)
class Segment:
    """One run of the bar: bytes of one device. ``drawn_bytes`` of them have a place in the bar; None: all."""

    name: str
    bytes: Interval
    drawn_bytes: float | None = None

    @property
    def in_bar(self) -> float:
        """Bytes that the bar gives cells to."""
        return self.bytes.best if self.drawn_bytes is None else self.drawn_bytes


def segments(plan: Plan) -> tuple[Segment, ...]:
    """The whole device, and what is asked for beyond it (``missing``), in the order in which memory is taken.

    The term that breaks is drawn as far as there is memory; what comes after it has none.
    """
    budget, need, missing = plan.budget, float(need_bytes(plan)), plan.verdict.short_bytes
    room, left = budget.available, budget.usable_bytes
    used = max(0.0, min(need, room.best))
    free = max(0.0, room.best - used)
    outside = max(0.0, budget.total_bytes - budget.usable_bytes)
    tag: Tag = "exact" if missing <= 0 else room.tag
    found = []
    for term in budget.terms:
        found.append(Segment(term.name, term.bytes, min(term.bytes.best, left)))
        left = max(0.0, left - term.bytes.best) if term.name != plan.verdict.broken else 0.0
    found.append(Segment("cache used", Interval.exactly(used, tag)))
    if missing > 0:
        found.append(Segment("missing", Interval.exactly(missing, tag)))
    low, high = (max(0.0, end - used) for end in (room.low, room.high))
    found.append(Segment("cache free", Interval(min(low, free), free, max(high, free), room.tag)))
    found.append(Segment("left to others", Interval.exactly(outside)))
    return tuple(found)


def cells(sizes: Sequence[float], width: int) -> list[int]:
    """``width`` cells dealt out by size; what is not nothing gets one at least, the largest pay for it."""
    total = sum(sizes)
    if total <= 0:
        return [0] * len(sizes)
    exact = [size / total * width for size in sizes]
    dealt = [max(1, int(x)) if x > 0 else 0 for x in exact]
    while sum(dealt) > width:
        dealt[max(range(len(dealt)), key=lambda i: dealt[i] - exact[i] if dealt[i] > 1 else -width)] -= 1
    while sum(dealt) < width:
        dealt[max(range(len(dealt)), key=lambda i: exact[i] - dealt[i] if exact[i] > 0 else -width)] += 1
    return dealt


def glyph(name: str, *, ascii_only: bool) -> str:
    """The sign of a segment; a term of any other name looks like the runtime."""
    unicode, plain, _ = _LOOKS.get(name, _LOOKS["runtime"])
    return plain if ascii_only else unicode


def style(name: str) -> str:
    """Its colour."""
    return _LOOKS.get(name, _LOOKS["runtime"])[2]


def bar(parts: Sequence[Segment], width: int, *, ascii_only: bool) -> Text:
    """One line of ``width`` cells."""
    from rich.text import Text

    line = Text()
    for part, n in zip(parts, cells([part.in_bar for part in parts], width), strict=True):
        line.append(glyph(part.name, ascii_only=ascii_only) * n, style(part.name))
    return line


def limit_mark(plan: Plan, parts: Sequence[Segment], width: int, *, ascii_only: bool) -> Text | None:
    """Under a bar that is too long: where the memory that the engine may use ends. None when all fits."""
    from rich.text import Text

    if plan.verdict.fits:
        return None
    names = [part.name for part in parts]
    at = sum(cells([part.in_bar for part in parts], width)[: names.index("missing")])
    said = f"{'^' if ascii_only else '▲'} {format_bytes(plan.budget.usable_bytes)}: what there is"
    return Text(" " * min(at, width - len(said)) + said, "bold red")


def legend(parts: Sequence[Segment], *, ascii_only: bool) -> Table:
    """GiB, ends and how each is known."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    justified: tuple[Literal["left", "right"], ...] = ("left", "right", "left", "left")
    for justify in justified:
        table.add_column(justify=justify, no_wrap=True)
    for part in parts:
        if not part.bytes.high:
            continue
        name = Text(f"{glyph(part.name, ascii_only=ascii_only)} {part.name}", style(part.name))
        tag = Text(part.bytes.tag, TAG_STYLE[part.bytes.tag])
        table.add_row(name, f"{part.bytes.best / GIB:.2f} GiB", _ends(part.bytes), tag)
    return table


def _ends(known: Interval) -> str:
    """``0.5..1.9``, or nothing where low and high print alike."""
    low, high = f"{known.low / GIB:.2f}", f"{known.high / GIB:.2f}"
    return "" if low == high else f"{low}..{high}"
