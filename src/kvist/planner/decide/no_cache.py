"""What a cache saves: FLOPs and bytes to generate n tokens with it and without, counted step by step.

Without a cache every step computes all tokens so far again: linear layers go from n to n^2 / 2 rows, attention from
n^2 / 2 to n^3 / 6 pairs. The price is the memory that holds the rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvist.cost.work import Chunk, ModelWork
from kvist.errors import BadValue


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over all steps. ``other_flops`` are the head's and recurrent states'; ``bytes`` cross the memory bus."""

    linear_flops: float = 0.0
    attention_flops: float = 0.0
    other_flops: float = 0.0
    bytes: float = 0.0

    @property
    def flops(self) -> float:
        """All of them."""
        return self.linear_flops + self.attention_flops + self.other_flops

    def plus(self, model_work: ModelWork, steps: list[Chunk]) -> Totals:
        """With more steps of one chunk each. Their FLOPs and rows are those of one step of all of them; weights, which
        such a step would read once, are read by each. K and V are written and read whether or not they are kept.
        """
        if not steps:
            return self
        work, alone = model_work.step(steps), model_work.step(steps[:1])
        width = model_work.widths.expert
        dense = alone.weight_bytes - model_work.expert_elements(steps[0].new_tokens) * width
        experts = sum(model_work.expert_elements(step.new_tokens) for step in steps) * width
        weights = len(steps) * (dense + alone.head_bytes) + experts
        return Totals(
            self.linear_flops + work.linear_flops,
            self.attention_flops + work.attention_flops,
            self.other_flops + work.head_flops + work.state_flops,
            self.bytes + work.bytes - work.weight_bytes - work.head_bytes + weights,
        )


@dataclass(frozen=True, slots=True)
class Row:
    """``n_tokens`` generated from nothing, on one rank: with a cache of ``cache_bytes`` at the end, and without."""

    n_tokens: int
    cached: Totals
    plain: Totals
    cache_bytes: int

    @property
    def linear_times(self) -> float:
        """How often linear layers' work is repeated without a cache: (n + 1) / 2."""
        return self.plain.linear_flops / self.cached.linear_flops if self.cached.linear_flops else 1.0

    @property
    def attention_times(self) -> float:
        """The same of attention: (n + 2) / 3 where every layer sees all tokens."""
        return self.plain.attention_flops / self.cached.attention_flops if self.cached.attention_flops else 1.0

    @property
    def how(self) -> str:
        """The row in a sentence."""
        return (
            f"{self.n_tokens:,} tokens: {self.plain.flops:.3g} FLOPs without a cache, {self.cached.flops:.3g} with "
            f"{self.cache_bytes:,} B of it: linear layers x{self.linear_times:,.4g}, "
            f"attention x{self.attention_times:,.4g}"
        )


def rows(model_work: ModelWork, lengths: Iterable[int]) -> tuple[Row, ...]:
    """One row for each length (tokens >= 1), in the order asked. Counts every step up to the longest one.

    Raises ``BadValue`` for a length below 1.
    """
    asked = tuple(lengths)
    if any(n < 1 for n in asked):
        raise BadValue("lengths", asked, "counts of tokens >= 1")
    cached, plain, done = Totals(), Totals(), 0
    found: dict[int, Row] = {}
    spec = model_work.spec
    for n in sorted(set(asked)):
        cached = cached.plus(model_work, [Chunk(1, i) for i in range(done, n)])
        plain = plain.plus(model_work, [Chunk(i + 1) for i in range(done, n)])
        held = spec.kv_bytes(n, model_work.fmt) + spec.state_elements * model_work.state_element_bytes
        found[n], done = Row(n, cached, plain, held), n
    return tuple(found[n] for n in asked)
