"""What can stand beside a plan: each part is plain data for ``--json`` and knows how to be drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvist.cli.plan_options import changes_of
from kvist.planner.ask import Question, answer
from kvist.planner.plan import Plan

if TYPE_CHECKING:
    from rich.console import Console

    from kvist.cost.measured import MeasuredMachine
    from kvist.planner.slo import Slo


@dataclass(frozen=True, slots=True)
class Part:
    """``key`` in the JSON object, ``data`` there, ``draw`` on a console.

    ``answered``: for a question of its own, whether there is an answer; None where the plan's verdict counts.
    """

    key: str
    data: Any
    draw: Callable[[Console], None]
    answered: bool | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with its answer, and what other answers to it are made from."""

    question: Question
    machine: MeasuredMachine | None
    plan: Plan
    params: Mapping[str, Any]
    limits: Mapping[str, float]

    @property
    def promise(self) -> Slo | None:
        """Limits on seconds that were asked for."""
        from kvist.planner.slo import Slo

        limits = {f"{name}_s": self.limits[f"max_{name}"] for name in ("ttft", "tpot") if f"max_{name}" in self.limits}
        return Slo(**limits) if limits else None

    def changed(self, **fields: Any) -> Plan:
        """The answer to the question with some fields changed."""
        return answer(replace(self.question, **fields), self.machine)


def parts_of(asked: Asked) -> tuple[Part, ...]:
    """The parts that the flags ask for, in the order of the table below."""
    return tuple(make(asked) for flag, make in _PARTS.items() if asked.params.get(flag) not in (None, False))


def _explain(asked: Asked) -> Part:
    from kvist.cli.plan_explain import render, render_no_cache
    from kvist.planner.explain import cache_or_none, derivation
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
    from kvist.cli.plan_compare import as_dict, render

    other = asked.changed(**changes_of(asked.params["compare"]))
    return Part("comparison", as_dict(asked.plan, other), lambda console: render(asked.plan, other, console))


def _what(asked: Asked) -> Part:
    from kvist.cli.plan_what import part

    return part(asked)


def _offload(asked: Asked) -> Part:
    from kvist.cli.plan_tables import offload_part

    return offload_part(asked)


def _split(asked: Asked) -> Part:
    from kvist.cli.plan_tables import split_part

    return split_part(asked)


def _hit_rates(asked: Asked) -> Part:
    from kvist.cli.plan_tables import hit_rates_part

    return hit_rates_part(asked)


_PARTS: dict[str, Callable[[Asked], Part]] = {
    "what": _what,
    "compare": _compare,
    "hit_rates": _hit_rates,
    "offload": _offload,
    "split": _split,
    "explain": _explain,
}
