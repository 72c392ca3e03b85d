"""What is timed to learn a machine: few points, each a context, a batch and a KV format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvist.errors import BadValue

DECODED: Final = 12
"""Tokens of each sequence that a decode reading is the median of."""


@dataclass(frozen=True, slots=True)
class Point:
    """One thing that is timed."""

    kv_format: str
    context_tokens: int
    batch: int

    @property
    def tokens(self) -> int:
        """Prompt tokens to compute."""
        return self.context_tokens * self.batch


POINTS: Final = (
    Point("f16", 200, 1),
    Point("f16", 500, 20),
    Point("f16", 2600, 8),
    Point("f16", 5500, 1),
    Point("f32", 300, 2),
    Point("f32", 2600, 6),
    Point("bf16", 300, 2),
    Point("bf16", 2600, 6),
    Point("int8t", 300, 2),
    Point("int8t", 3900, 6),
)
"""Few and many rows, short and long contexts; every KV format with next to no cache and with so much of it that
reading it takes about half of a step: a rate is learnt no better than the share of time it has.
"""

SHORT_TOKENS: Final = 4000
"""Points of so few prompt tokens are computed again: the others have many steps alike anyway."""


def fitting(points: Sequence[Point], context_tokens: int) -> tuple[Point, ...]:
    """Points cut to what the model can see, with room to decode."""
    longest = context_tokens - DECODED - 3
    if longest < 8:
        raise BadValue("model", f"context of {context_tokens} tokens", f"a context of {DECODED + 11} tokens or more")
    return tuple(dict.fromkeys(replace(p, context_tokens=min(p.context_tokens, longest)) for p in points))


def pool_tokens(points: Sequence[Point], kv_format: str) -> int:
    """Room for the prompts of a round and what is answered behind them, and a little more."""
    mine = [p for p in points if p.kv_format == kv_format]
    return sum(p.batch * (p.context_tokens + 2 * DECODED) + p.tokens // 4 + 512 for p in mine)
