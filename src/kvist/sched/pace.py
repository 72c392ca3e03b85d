"""How many prompt tokens a step may compute beside those it continues: learnt from the seconds that steps took."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import isfinite
from statistics import median_low
from typing import Final

from kvist.errors import BadValue

FLOOR_TOKENS: Final = 4
"""Prompt tokens of a step whatever the bound says: prompts always progress. Behind 4,000 tokens each one may cost a
fifth of a step that continues eight short sequences.
"""

RECENT_STEPS: Final = 15
"""Steps that only continue, of whose seconds the lower median counts, where their load was like the present one."""

RECENT_CHUNKS: Final = 8
"""Mixed steps, of whose seconds per token the second highest counts: one hiccup is forgiven, growth is followed."""

PROBES: Final = 2
"""Steps that are made to only continue when none were seen: of two a hiccup is the higher one and does not count."""

PROBE_EVERY: Final = 64
"""Mixed steps in a row after which that is done anyway."""

PROBE_GAP: Final = 16
"""Mixed steps in a row after which it is done when the load has changed: probing costs less than 2 steps in 18."""


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


@dataclass(frozen=True, slots=True)
class Load:
    """How many sequences a step continues, and how many tokens they have in the cache."""

    sequences: int = 0
    context_tokens: int = 0

    def like(self, other: Load) -> bool:
        """True when both differ by an eighth at most, or by next to nothing (one sequence, 512 tokens)."""
        a, b = other.sequences, other.context_tokens
        return abs(self.sequences - a) * 8 <= max(self.sequences, a, 8) and abs(self.context_tokens - b) * 8 <= max(
            self.context_tokens, b, 4096
        )


class Pace:
    """Bounds the seconds of a step while sequences are being continued.

    Predicted seconds = ``decode_step_s`` + tokens * ``chunk_token_s``. Both come from results alone. Until they are
    known, and whenever chunks were small for long, the bound starts at ``FLOOR_TOKENS`` and at most doubles.

    While a queue never empties no step merely continues, yet what continuing costs grows with the batch and its
    context. So when no such step was seen at a load like the present one, or for long, ``PROBES`` steps compute no
    prompt tokens at all: what grew is then not taken for the price of prompt tokens.
    """

    def __init__(self, slo: str) -> None:
        """Raises ``BadValue`` (``read_slo``)."""
        self._seconds, self._multiple = read_slo(slo)
        self._continued: deque[tuple[Load, float]] = deque(maxlen=RECENT_STEPS)
        self._mixed: deque[tuple[int, float]] = deque(maxlen=RECENT_CHUNKS)
        self._least_mixed_s: float | None = None
        self._load = Load()
        self._mixed_in_a_row = 0
        self._probes = 0
        self.limit_tokens: int | None = None
        """The last bound on prompt tokens; None: there was none."""

    @property
    def decode_step_s(self) -> float:
        """Seconds of a step that only continues (0: not seen yet), at a load like the present one or the last seen."""
        known = self._at_this_load() or [seconds for _, seconds in self._continued][-PROBES:]
        return median_low(known) if known else 0.0

    @property
    def chunk_token_s(self) -> float:
        """Seconds that one prompt token adds to such a step, on the high side (0: not seen yet)."""
        decode_step_s = self.decode_step_s
        recent = sorted(max(0.0, seconds - decode_step_s) / n_tokens for n_tokens, seconds in self._mixed)
        return recent[max(0, len(recent) - 2)] if recent else 0.0

    @property
    def bound_s(self) -> float | None:
        """What a step may take while somebody is continued; None: off, or not known yet."""
        if self._multiple is None:
            return self._seconds
        if self._continued:
            return self._multiple * self.decode_step_s
        return None if self._least_mixed_s is None else self._multiple * self._least_mixed_s

    def prompt_tokens(self, budget: int, load: Load | None) -> int:
        """Most prompt tokens of the next step, of ``budget``; ``load`` None: nobody waits for his next token.

        0 for a step that is to show what continuing costs.
        """
        self.limit_tokens = None
        if load is None or (self._seconds is None and self._multiple is None):
            return budget
        self._load = load
        if self._probe():
            self.limit_tokens = 0
            return 0
        bound_s = self.bound_s
        most = 2 * max((n_tokens for n_tokens, _ in self._mixed), default=0)
        if bound_s is None:
            most = 0
        elif self.chunk_token_s > 0:
            most = min(most, int((bound_s - self.decode_step_s) / self.chunk_token_s))
        self.limit_tokens = max(FLOOR_TOKENS, most)
        return min(budget, self.limit_tokens)

    def learn(self, load: Load, *, chunk_tokens: int, seconds: float) -> None:
        """A step continued ``load``, computed so many tokens besides, and took ``seconds``."""
        if not load.sequences or seconds < 0:
            return
        self._load = load
        if not chunk_tokens:
            self._continued.append((load, seconds))
            self._mixed_in_a_row = 0
            return
        least = self._least_mixed_s
        self._least_mixed_s = seconds if least is None else min(least, seconds)
        self._mixed.append((chunk_tokens, seconds))
        self._mixed_in_a_row += 1

    def _at_this_load(self) -> list[float]:
        return [seconds for load, seconds in self._continued if load.like(self._load)]

    def _probe(self) -> bool:
        """Whether the next step is one to learn from. However the load jumps, most steps are not."""
        gap = PROBE_EVERY if len(self._at_this_load()) >= PROBES else PROBE_GAP
        if not self._probes and self._mixed_in_a_row >= gap:
            self._probes = PROBES
            self._mixed_in_a_row = 0
        if not self._probes:
            return False
        self._probes -= 1
        return True
