"""Conversations that go on with what the server really answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from kvist.bench.infer import Fit
from kvist.bench.record import Record
from kvist.bench.workload.base import Ask, Part, Play, Script, check_counts, check_order
from kvist.errors import BadValue


@dataclass(frozen=True, slots=True)
class MultiTurn:
    """``clients`` conversations of ``rounds`` turns: a shared system prompt, then ``suffix_tokens`` a turn."""

    clients: int = 16
    rounds: int = 5
    prefix_tokens: int = 256
    suffix_tokens: int = 128
    output_tokens: int = 64
    think_s: float = 0.0
    order: str = "round-robin"

    name: ClassVar[str] = "multi-turn"
    about: ClassVar[str] = "conversations that go on with the server's real answers"
    scaled: ClassVar[tuple[str, ...]] = ("clients", "prefix_tokens", "suffix_tokens", "output_tokens")
    needs_answers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_counts(self, zero=("prefix_tokens",))
        check_order(self.order, ("round-robin", "grouped"))
        if not self.think_s >= 0:
            raise BadValue("think_s", self.think_s, "seconds >= 0")

    @property
    def clients_at_once(self) -> int:
        """Everybody."""
        return self.clients

    @property
    def longest_prompt_tokens(self) -> int:
        """The last turn's."""
        return self.prefix_tokens + self.rounds * self.suffix_tokens + (self.rounds - 1) * self.output_tokens

    @property
    def by_turns(self) -> bool:
        """With ``round-robin`` every conversation waits until all others had their turn."""
        return self.order == "round-robin"

    def scripts(self, seed: int) -> Sequence[Script]:
        """One script a conversation."""
        return [Script(f"c{c}", self.rounds, partial(self._play, c)) for c in range(self.clients)]

    def _play(self, client: int) -> Play:
        parts: tuple[Part, ...] = (Part("system", "system", self.prefix_tokens),) if self.prefix_tokens else ()
        for turn in range(1, self.rounds + 1):
            parts += (Part("user", f"user/{client}/{turn}", self.suffix_tokens),)
            pause_s = self.think_s if turn > 1 else 0.0
            answer = yield Ask(f"c{client}t{turn}", parts, self.output_tokens, turn, pause_s=pause_s)
            parts += (Part("assistant", said=answer),)

    def verdict(self, records: Sequence[Record], fit: Fit) -> dict[str, Any] | None:
        """None: the report by turn says it."""
        return None
