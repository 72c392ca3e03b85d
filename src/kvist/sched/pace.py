"""How many prompt tokens a step may compute beside those it continues: learnt from the seconds that steps took."""

from __future__ import annotations

from collections import deque
from math import isfinite
from statistics import median
from typing import Final

from kvist.errors import BadValue

FLOOR_TOKENS: Final = 16
"""Prompt tokens of a step whatever the bound says: prompts always progress."""

RECENT_STEPS: Final = 15
"""Steps that only continue, of whose seconds the median counts."""

RECENT_CHUNKS: Final = 8
"""Mixed steps, of whose seconds per token the second highest counts: one hiccup is forgiven, growth is followed."""


def read_slo(text: str) -> tuple[float | None, float | None]:
    """(seconds, multiple of a continuing step) of ``off``, ``80ms``, ``0.1s`` or ``2x``. Raises ``BadValue``."""
    word = text.strip().lower()
    if word == "off":
        return None, None
    for suffix, scale in (("ms", 1e-3), ("s", 1.0), ("x", 1.0)):
        if word.endswith(suffix):
            try:
                value = float(word.removesuffix(suffix)) * scale
            except ValueError:
                break
            least = 1.0 if suffix == "x" else 0.0
            if not isfinite(value) or value <= least:
                break
            return (None, value) if suffix == "x" else (value, None)
    raise BadValue("itl_slo", text, "off, seconds such as 80ms, or a multiple above 1 such as 2x")


class Pace:
    """Bounds the seconds of a step while sequences are being continued.

    Predicted seconds = ``decode_step_s`` + tokens * ``chunk_token_s``. Both come from results alone. Until they are
    known, and whenever chunks were small for long, the bound starts at ``FLOOR_TOKENS`` and at most doubles.
    """

    def __init__(self, slo: str) -> None:
        """Raises ``BadValue`` (``read_slo``)."""
        self._seconds, self._multiple = read_slo(slo)
        self._continued: deque[float] = deque(maxlen=RECENT_STEPS)
        self._per_token: deque[float] = deque(maxlen=RECENT_CHUNKS)
        self._chunks: deque[int] = deque(maxlen=RECENT_CHUNKS)
        self._least_mixed_s: float | None = None
        self.limit_tokens: int | None = None
        """The last bound on prompt tokens; None: there was none."""

    @property
    def decode_step_s(self) -> float:
        """Seconds of a step that only continues (0: not seen yet)."""
        return median(self._continued) if self._continued else 0.0

    @property
    def chunk_token_s(self) -> float:
        """Seconds that one prompt token adds to such a step, on the high side (0: not seen yet)."""
        recent = sorted(self._per_token)
        return recent[max(0, len(recent) - 2)] if recent else 0.0

    @property
    def bound_s(self) -> float | None:
        """What a step may take while somebody is continued; None: off, or not known yet."""
        if self._multiple is None:
            return self._seconds
        if self._continued:
            return self._multiple * self.decode_step_s
        return None if self._least_mixed_s is None else self._multiple * self._least_mixed_s

    def prompt_tokens(self, budget: int, *, continues: bool) -> int:
        """Most prompt tokens of the next step, of ``budget``; ``continues``: somebody waits for his next token."""
        self.limit_tokens = None
        if not continues or (self._seconds is None and self._multiple is None):
            return budget
        bound_s = self.bound_s
        most = 2 * max(self._chunks, default=0)
        if bound_s is None:
            most = 0
        elif self.chunk_token_s > 0:
            most = min(most, int((bound_s - self.decode_step_s) / self.chunk_token_s))
        self.limit_tokens = max(FLOOR_TOKENS, most)
        return min(budget, self.limit_tokens)

    def learn(self, *, continued: int, chunk_tokens: int, seconds: float) -> None:
        """A step continued so many sequences, computed so many tokens besides, and took ``seconds``."""
        if not continued or seconds < 0:
            return
        if not chunk_tokens:
            self._continued.append(seconds)
            return
        least = self._least_mixed_s
        self._least_mixed_s = seconds if least is None else min(least, seconds)
        self._per_token.append(max(0.0, seconds - self.decode_step_s) / chunk_tokens)
        self._chunks.append(chunk_tokens)
