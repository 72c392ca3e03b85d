"""What can stand beside a plan: one maker for each flag, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvist.cli.plan.asked import Asked, Part
from kvist.cli.plan.options import changes_of

if TYPE_CHECKING:
    from rich.console import Console


def parts_of(asked: Asked) -> tuple[Part, ...]:
    """The parts that the flags ask for, in the order of the table below."""
    return tuple(make(asked) for flag, make in _PARTS.items() if asked.params.get(flag) not in (None, False))


def _explain(asked: Asked) -> Part:
    from kvist.cli.plan.explain import render, render_no_cache
    from kvist.planner.explain.derive import cache_or_none, derivation
    from kvist.planner.report import no_cache_as_list, notes_of, sections_as_list

    sections, rows = derivation(asked.plan), cache_or_none(asked.plan)
    data = {"sections": sections_as_list(sections), "no_cache": no_cache_as_list(rows)}

    def draw(console: Console) -> None:
        render(sections, console)
        render_no_cache(rows, console)
        if notes_of(asked.plan):
            console.print("\nNotes", style="bold")
        for note in notes_of(asked.plan):
            console.print(f" - {note}", markup=False, highlight=False)

    return Part("derivation", data, draw)


def _compare(asked: Asked) -> Part:
    from kvist.cli.plan.compare import as_dict, render

    other = asked.changed(**changes_of(asked.params["compare"]))
    return Part("comparison", as_dict(asked.plan, other), lambda console: render(asked.plan, other, console))


def _what(asked: Asked) -> Part:
    from kvist.cli.plan.what import part

    return part(asked)


def _offload(asked: Asked) -> Part:
    from kvist.cli.plan.tables import offload_part

    return offload_part(asked)


def _split(asked: Asked) -> Part:
    from kvist.cli.plan.tables import split_part

    return split_part(asked)


def _hit_rates(asked: Asked) -> Part:
    from kvist.cli.plan.tables import hit_rates_part

    return hit_rates_part(asked)


_PARTS: dict[str, Callable[[Asked], Part]] = {
    "what": _what,
    "compare": _compare,
    "hit_rates": _hit_rates,
    "offload": _offload,
    "split": _split,
    "explain": _explain,
}
