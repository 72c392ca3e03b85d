"""Groups of questions, each group under a long system prompt of its own (SGLang's generated-shared-prefix)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from kvist.bench.infer import Fit
from kvist.bench.record import Record
from kvist.bench.workload.base import Ask, Part, Script, arranged, check_counts, check_order, once


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """``groups`` x ``prompts`` requests: prefix (shared in the group), suffix (its own)."""

    groups: int = 64
    prompts: int = 16
    prefix_tokens: int = 2048
    suffix_tokens: int = 128
    output_tokens: int = 256
    order: str = "shuffled"

    name: ClassVar[str] = "generated-shared-prefix"
    about: ClassVar[str] = "groups of questions, each group under a long system prompt of its own"
    scaled: ClassVar[tuple[str, ...]] = ("groups", "prompts", "prefix_tokens", "suffix_tokens", "output_tokens")
    needs_answers: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_counts(self)
        check_order(self.order)

    @property
    def clients_at_once(self) -> int:
        """Eight, or all."""
        return min(8, self.groups * self.prompts)

    @property
    def longest_prompt_tokens(self) -> int:
        """Prefix and suffix."""
        return self.prefix_tokens + self.suffix_tokens

    @property
    def by_turns(self) -> bool:
        """Scripts are single requests."""
        return False

    def scripts(self, seed: int) -> Sequence[Script]:
        """One script a question."""
        groups = [[self._script(g, q) for q in range(self.prompts)] for g in range(self.groups)]
        return arranged(groups, self.order, seed)

    def _script(self, group: int, question: int) -> Script:
        name = f"g{group}q{question}"
        parts = (
            Part("system", f"system/{group}", self.prefix_tokens),
            Part("user", f"question/{group}/{question}", self.suffix_tokens),
        )
        return Script(name, 1, once(Ask(name, parts, self.output_tokens)))

    def verdict(self, records: Sequence[Record], fit: Fit) -> dict[str, Any] | None:
        """None."""
        return None
