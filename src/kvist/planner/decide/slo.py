"""What a service promises: it fits, and tokens come in time."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.errors import BadValue
from kvist.planner.plan import Plan
from kvist.units import format_seconds


@dataclass(frozen=True, slots=True)
class Slo:
    """Longest seconds to a first token and between tokens; None: any. A load that does not fit meets nothing."""

    ttft_s: float | None = None
    tpot_s: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("ttft_s", self.ttft_s), ("tpot_s", self.tpot_s)):
            if value is not None and not value > 0:
                raise BadValue(name, value, "seconds above 0")

    def missed(self, plan: Plan) -> tuple[str, ...]:
        """What breaks with the best guess: a term of the memory, ``ttft``, ``tpot``. Empty when all is met."""
        out = [] if plan.verdict.fits else [plan.verdict.broken]
        latency = plan.latency
        out += ["ttft"] if self.ttft_s is not None and latency.ttft.best > self.ttft_s else []
        out += ["tpot"] if self.tpot_s is not None and latency.tpot.best > self.tpot_s else []
        return tuple(out)

    def met(self, plan: Plan) -> bool:
        """True when nothing breaks with the best guess."""
        return not self.missed(plan)

    def sure(self, plan: Plan) -> bool:
        """True when nothing breaks with the worst of every guess either."""
        latency = plan.latency
        late = self.ttft_s is not None and latency.ttft.high > self.ttft_s
        slow = self.tpot_s is not None and latency.tpot.high > self.tpot_s
        return plan.verdict.sure and not late and not slow

    def room(self, plan: Plan) -> float:
        """The tightest limit over what the plan takes: above 1 is met with room to spare. Infinite without limits."""
        pairs = ((self.ttft_s, plan.latency.ttft.best), (self.tpot_s, plan.latency.tpot.best))
        return min((limit / taken for limit, taken in pairs if limit is not None), default=float("inf"))

    def said(self, plan: Plan) -> str:
        """What breaks, in words with numbers; or that nothing does."""
        out = [] if plan.verdict.fits else [plan.verdict.sentence]
        for name, limit, known in (
            ("the first token", self.ttft_s, plan.latency.ttft),
            ("a token", self.tpot_s, plan.latency.tpot),
        ):
            if limit is not None and known.best > limit:
                out.append(f"{name} takes {format_seconds(known.best)}, {format_seconds(limit)} are allowed")
        return "; ".join(out) or "all limits are met"
