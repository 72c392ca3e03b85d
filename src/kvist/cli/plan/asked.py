"""A question with its answer, and what can stand beside an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvist.errors import BadValue, MissingField, UsageError
from kvist.planner.ask import Question, answer
from kvist.planner.decide.slo import Slo
from kvist.planner.plan import Plan

if TYPE_CHECKING:
    from rich.console import Console

    from kvist.cost.measured import MeasuredMachine


def answered(question: Question, machine: MeasuredMachine | None) -> Plan:
    """The plan, with errors in the words of the command line. Raises ``KvistError``."""
    if question.draft_tokens and not question.draft_layers:
        raise UsageError(
            f"--draft-tokens {question.draft_tokens} are proposed by no layer", remedy="add --draft-layers, such as 1"
        )
    try:
        return answer(question, machine)
    except MissingField as error:
        hint = "" if question.shape_only else ", or take --shape-only for the cache's shape alone"
        raise MissingField(error.fields, source=question.model, remedy=f"add the fields{hint}") from error


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
        """Limits on seconds that were asked for. Raises ``BadValue`` for one that is not above 0."""
        for name, limit in self.limits.items():
            if not limit > 0:
                raise BadValue(f"--{name.replace('_', '-')}", limit, "a time above 0")
        limits = {f"{name}_s": self.limits[f"max_{name}"] for name in ("ttft", "tpot") if f"max_{name}" in self.limits}
        return Slo(**limits) if limits else None

    def changed(self, **fields: Any) -> Plan:
        """The answer to the question with some fields changed."""
        return answered(replace(self.question, **fields), self.machine)
