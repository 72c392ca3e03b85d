"""Prompts that share nothing (or one prefix), lengths drawn around a mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from kvist.bench.infer import Fit
from kvist.bench.record import Record
from kvist.bench.workload.base import Ask, Part, Script, check_counts, once
from kvist.errors import BadValue


@dataclass(frozen=True, slots=True)
class RandomLengths:
    """Input and output lengths are uniform in [n (1 - range_ratio), n (1 + range_ratio)], as in vLLM."""

    prompts: int = 100
    prefix_tokens: int = 0
    suffix_tokens: int = 1024
    output_tokens: int = 128
    range_ratio: float = 0.0

    name: ClassVar[str] = "random"
    about: ClassVar[str] = "prompts that share nothing but an optional prefix, lengths drawn around a mean"
    scaled: ClassVar[tuple[str, ...]] = ("prompts", "suffix_tokens", "output_tokens")
    needs_answers: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_counts(self, zero=("prefix_tokens",))
        if not 0 <= self.range_ratio < 1:
            raise BadValue("range_ratio", self.range_ratio, "a number in [0, 1)")

    @property
    def clients_at_once(self) -> int:
        """Eight, or all."""
        return min(8, self.prompts)

    @property
    def longest_prompt_tokens(self) -> int:
        """The prefix and the longest draw."""
        return self.prefix_tokens + round(self.suffix_tokens * (1 + self.range_ratio))

    @property
    def by_turns(self) -> bool:
        """Scripts are single requests."""
        return False

    def scripts(self, seed: int) -> Sequence[Script]:
        """One script a prompt."""
        draw = Random(f"lengths/{seed}")
        return [self._script(i, draw) for i in range(self.prompts)]

    def _script(self, index: int, draw: Random) -> Script:
        name = f"r{index}"
        parts: tuple[Part, ...] = (Part("system", "system", self.prefix_tokens),) if self.prefix_tokens else ()
        parts += (Part("user", f"prompt/{index}", self._near(self.suffix_tokens, draw)),)
        return Script(name, 1, once(Ask(name, parts, self._near(self.output_tokens, draw))))

    def _near(self, mean: int, draw: Random) -> int:
        low, high = mean * (1 - self.range_ratio), mean * (1 + self.range_ratio)
        return max(1, draw.randint(round(low), round(high)))

    def verdict(self, records: Sequence[Record], fit: Fit) -> dict[str, Any] | None:
        """None."""
        return None
