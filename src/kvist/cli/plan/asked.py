"""A question with its answer, and what can stand beside an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvist.planner.ask import Question, answer
from kvist.planner.decide.slo import Slo
from kvist.planner.plan import Plan

if TYPE_CHECKING:
    from rich.console import Console

    from kvist.cost.measured import MeasuredMachine


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
        limits = {f"{name}_s": self.limits[f"max_{name}"] for name in ("ttft", "tpot") if f"max_{name}" in self.limits}
        return Slo(**limits) if limits else None

    def changed(self, **fields: Any) -> Plan:
        """The answer to the question with some fields changed."""
        return answer(replace(self.question, **fields), self.machine)
