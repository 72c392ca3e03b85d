"""Seconds of a step from a table: measured points in between which it interpolates."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

from kvist.errors import BadValue


@dataclass(frozen=True, slots=True)
class CostTable:
    """Step seconds = ``seconds`` interpolated at the step's tokens + ``kv_token_s`` for each cached token read.

    ``tokens`` ascend; below the first point and beyond the last one the nearest segment is prolonged (never under 0).
    """

    tokens: tuple[int, ...]
    seconds: tuple[float, ...]
    kv_token_s: float = 0.0

    def __post_init__(self) -> None:
        if len(self.tokens) < 2 or len(self.tokens) != len(self.seconds):
            raise BadValue("tokens", self.tokens, "two points or more, and as many seconds")
        if any(a >= b for a, b in pairwise(self.tokens)):
            raise BadValue("tokens", self.tokens, "ascending counts")

    @staticmethod
    def linear(step_s: float, token_s: float, kv_token_s: float = 0.0) -> CostTable:
        """``step_s + token_s * tokens + kv_token_s * kv_tokens_read``."""
        return CostTable((0, 1), (step_s, step_s + token_s), kv_token_s)

    def step_s(self, tokens: int, kv_tokens_read: int) -> float:
        """Seconds of a step that computes ``tokens`` and reads ``kv_tokens_read`` cached ones."""
        i = min(max(bisect_right(self.tokens, tokens), 1), len(self.tokens) - 1)
        x0, x1 = self.tokens[i - 1], self.tokens[i]
        y0, y1 = self.seconds[i - 1], self.seconds[i]
        return max(0.0, y0 + (y1 - y0) * (tokens - x0) / (x1 - x0)) + self.kv_token_s * kv_tokens_read
