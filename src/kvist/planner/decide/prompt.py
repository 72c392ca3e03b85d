"""One prompt's seconds, step by step: what recomputing a prefix takes, and which part of it is attention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kvist.cost.interval import Interval
from kvist.cost.work import Chunk
from kvist.planner.plan import timing_of
from kvist.planner.setup import Setup
from kvist.planner.timing import Timing

OPEN_LIMIT_TOKENS: Final = 1 << 20
"""How far to look where a model does not say how long a context it takes."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of linear layers and head, and of attention, best guess."""

    linear_s: float
    attention_s: float

    @property
    def gap_s(self) -> float:
        """How much longer attention takes."""
        return self.attention_s - self.linear_s


@dataclass(frozen=True)
class PromptClock:
    """A prompt alone on the devices, in whole steps of ``budget_tokens`` and a rest. Whole steps are priced once."""

    timing: Timing
    _whole: list[Interval] = field(default_factory=lambda: [Interval.exactly(0.0)], repr=False, compare=False)
    _parts: list[Parts] = field(default_factory=lambda: [Parts(0.0, 0.0)], repr=False, compare=False)

    @staticmethod
    def of(setup: Setup) -> PromptClock:
        """The clock of one replica."""
        return PromptClock(timing_of(setup))

    def seconds(self, n_tokens: int) -> Interval:
        """To the end of the step that computes the last of ``n_tokens`` (>= 1): every step, none left out."""
        step = self.timing.budget_tokens
        whole = (n_tokens - 1) // step
        while len(self._whole) <= whole:
            at = (len(self._whole) - 1) * step
            self._whole.append(self._whole[-1] + self.timing.step([Chunk(step, at, rows=0)]))
        at = whole * step
        return self._whole[whole] + self.timing.step([Chunk(n_tokens - at, at)])

    def parts(self, n_tokens: int) -> Parts:
        """The same time by part, best guess, all stages."""
        step = self.timing.budget_tokens
        whole = (n_tokens - 1) // step
        while len(self._parts) <= whole:
            at = (len(self._parts) - 1) * step
            self._parts.append(_plus(self._parts[-1], self._step(Chunk(step, at, rows=0))))
        at = whole * step
        return _plus(self._parts[whole], self._step(Chunk(n_tokens - at, at)))

    def _step(self, chunk: Chunk) -> Parts:
        found = self.timing.parts([chunk])
        return Parts(sum(p.linear_s + p.head_s for p in found), sum(p.attention_s for p in found))


def _plus(a: Parts, b: Parts) -> Parts:
    return Parts(a.linear_s + b.linear_s, a.attention_s + b.attention_s)


def longest_asked(setup: Setup) -> int:
    """The model's own context, or where to stop looking when it names none."""
    return setup.spec.context_tokens or OPEN_LIMIT_TOKENS
