"""An agent whose main context grows by tool results while cold sub-agents push it out of the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, ClassVar, Final

from kvist.bench.infer import Fit
from kvist.bench.record import Record
from kvist.bench.workload.base import Ask, Part, Play, Script, check_counts

WARM: Final = 0.9
"""A main context is still warm when this much of what could be reused was."""


@dataclass(frozen=True, slots=True)
class Agent:
    """``clients`` agents: ``rounds`` tool calls, each followed by ``subagents`` cold prompts, then a last question.

    The main context starts with ``prefix_tokens`` and grows by ``suffix_tokens`` and the answer each round. Sub-agents
    share nothing with anybody; their lengths are drawn between half of ``subagent_tokens`` and all of it.
    """

    clients: int = 1
    rounds: int = 8
    prefix_tokens: int = 2048
    suffix_tokens: int = 512
    output_tokens: int = 64
    subagents: int = 2
    subagent_tokens: int = 2048

    name: ClassVar[str] = "agent"
    about: ClassVar[str] = "a growing main context, cold sub-agents in between; is it warm at the end?"
    scaled: ClassVar[tuple[str, ...]] = ("prefix_tokens", "suffix_tokens", "output_tokens", "subagent_tokens")
    needs_answers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_counts(self, zero=("subagents",))

    @property
    def clients_at_once(self) -> int:
        """Every agent; each sends one request at a time."""
        return self.clients

    @property
    def longest_prompt_tokens(self) -> int:
        """The last question's."""
        return self.prefix_tokens + self.rounds * (self.suffix_tokens + self.output_tokens)

    @property
    def by_turns(self) -> bool:
        """Agents run side by side."""
        return True

    def scripts(self, seed: int) -> Sequence[Script]:
        """One script an agent."""
        requests = self.rounds * (1 + self.subagents) + 1
        return [Script(f"a{a}", requests, partial(self._play, a, seed)) for a in range(self.clients)]

    def _play(self, agent: int, seed: int) -> Play:
        draw = Random(f"agent/{seed}/{agent}")
        parts: tuple[Part, ...] = (Part("system", f"main/{agent}", self.prefix_tokens),)
        for turn in range(1, self.rounds + 1):
            parts += (Part("user", f"tool/{agent}/{turn}", self.suffix_tokens),)
            answer = yield Ask(f"a{agent}t{turn}", parts, self.output_tokens, turn, "main")
            parts += (Part("assistant", said=answer),)
            for sub in range(self.subagents):
                cold = f"sub/{agent}/{turn}/{sub}"
                length = draw.randint((self.subagent_tokens + 1) // 2, self.subagent_tokens)
                yield Ask(f"a{agent}t{turn}s{sub}", (Part("user", cold, length),), self.output_tokens, turn, "sub")
        parts += (Part("user", f"tool/{agent}/last", self.suffix_tokens),)
        yield Ask(f"a{agent}last", parts, self.output_tokens, self.rounds + 1, "final")

    def verdict(self, records: Sequence[Record], fit: Fit) -> dict[str, Any] | None:
        """Of the agents that came to their last question: how many were warm, by usage and by TTFT."""
        finals = [r for r in records if r.role == "final" and r.ok]
        reported = [r.cached_tokens for r in finals]
        known = all(c is not None for c in reported) and bool(finals)
        times = [fit.cached_tokens(r) for r in finals]
        timed = bool(times) and None not in times
        return {
            "main_contexts": len(finals),
            "warm_reported": sum(_warm(c, r) for c, r in zip(reported, finals, strict=True)) if known else None,
            "warm_by_ttft": sum(_warm(c, r) for c, r in zip(times, finals, strict=True)) if timed else None,
            "warm_means_of_reusable": WARM,
            "final_ttft_s": [r.ttft_s for r in finals],
            "expected_cold_ttft_s": [fit.cold_s(r.prompt_tokens) for r in finals] if fit.usable else None,
        }


def _warm(cached_tokens: float | None, record: Record) -> bool:
    return cached_tokens is not None and cached_tokens >= WARM * record.optimum_tokens
