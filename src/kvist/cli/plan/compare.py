"""``kvist plan --compare``: two plans as a diff, first what was changed, then what follows and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvist.cli.plan.view import verdict
from kvist.planner.decide.compare import Difference, compare
from kvist.planner.plan import Plan
from kvist.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import Console


def as_dict(before: Plan, after: Plan) -> dict[str, Any]:
    """The second plan's verdict, and every difference."""
    return {
        "verdict": {"fits": after.verdict.fits, "sure": after.verdict.sure, "sentence": after.verdict.sentence},
        "differences": [
            {
                "name": d.name,
                "before": d.before,
                "after": d.after,
                "unit": d.unit,
                "ratio": d.ratio,
                "why": d.why,
                "setting": d.setting,
            }
            for d in compare(before, after)
        ],
    }


def render(before: Plan, after: Plan, console: Console) -> None:
    """The second verdict, what was changed, what follows from it."""
    from rich.text import Text

    differences = compare(before, after)
    console.print(Text("\nwith the changes: ", "bold").append_text(verdict(after)))
    if not differences:
        console.print("nothing differs")
    width = max((len(d.name) for d in differences), default=0)
    for title, setting in (("Changed", True), ("What follows", False)):
        chosen = [d for d in differences if d.setting is setting]
        if chosen:
            console.print(Text(f"\n{title}", "bold"))
        for d in chosen:
            _draw(d, width, console)


def _draw(d: Difference, width: int, console: Console) -> None:
    """``TPOT   14.5 ms -> 15.2 ms  x1.05``, and its cause on a line of its own."""
    from rich.padding import Padding
    from rich.text import Text

    first, second = _value(d, d.before), _value(d, d.after)
    said = f"{first} -> {second}" if first or second else d.why
    ratio = "" if d.ratio is None or d.setting else f"  x{d.ratio:.3g}"
    why = d.why.removeprefix(f"{first} -> {second}: ").removeprefix(f"changed: {first} -> {second}")
    console.print(Text(f"  {d.name:<{width}}  {said}{ratio}"))
    if why and why != said:
        console.print(Padding(Text(why, "dim"), (0, 0, 0, 6)))


def _value(difference: Difference, value: str | float | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if difference.unit == "bytes":
        return format_bytes(value)
    if difference.unit == "seconds":
        return format_seconds(value)
    return f"{value:,.4g}" if value != int(value) else f"{value:,.0f}"
