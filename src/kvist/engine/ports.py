"""What the engine needs from outside: something that carries out plans, and something that tells the time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kvist.step import StepPlan, StepResult


class Executor(Protocol):
    """The doing half, or its double on paper.

    ``execute`` applies the plan in the order ``step.py`` gives and answers every sample asked for, in the plan's
    order. It keeps what it was told of a sequence (``new``) and the tokens it drew for it until ``forget``, also while
    the sequence is preempted and has no table. When it raises, the plan counts as not done: every running sequence
    ends, and the ids of its ``forget`` come again in the next plan (forgetting an unknown id is fine).
    """

    def execute(self, plan: StepPlan) -> StepResult:
        """Carry out one step."""
        ...

    @property
    def counters(self) -> Mapping[str, int]:
        """Totals by name of how steps were carried out; none where nothing is told apart."""
        ...


class Clock(Protocol):
    """Seconds from some fixed moment, never going back."""

    def now(self) -> float:
        """The time in seconds."""
        ...
