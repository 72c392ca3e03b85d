"""How long loading and computing take, learnt from results: what "load or recompute" is decided by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvist.transfer import Loaded

FIRST_BYTES_PER_S: Final = 2e8
"""What a tier is believed to do before it was seen to do anything."""

FIRST_BYTES: Final = 16e6
"""How many bytes that belief counts for."""

KEPT: Final = 0.9
"""What older observations count for beside a new one."""

LEAST_TOKENS: Final = 4
"""Chunks from which something is learnt of what computing takes."""


class Rates:
    """Per tier bytes a second; and seconds of computing tokens ``[start, end)`` of a prompt, as a line and a square:
    ``per_token * n + per_pair * n * (mean position)``, fitted with forgetting to the steps that computed prompts.
    """

    def __init__(self, n_tiers: int) -> None:
        self._bytes = [FIRST_BYTES] * n_tiers
        self._busy_s = [FIRST_BYTES / FIRST_BYTES_PER_S] * n_tiers
        self._nn = self._np = self._pp = self._ns = self._ps = 0.0

    def bytes_per_s(self, tier: int) -> float:
        """What a tier delivers."""
        return self._bytes[tier] / self._busy_s[tier]

    def load_s(self, bytes_by_tier: Sequence[int], queued_bytes: Sequence[int]) -> float:
        """Seconds until so many bytes of each tier are here, behind those that wait; tiers work side by side."""
        queued = [*queued_bytes, *[0] * len(bytes_by_tier)]
        return max(
            ((n + queued[t]) / self.bytes_per_s(t) for t, n in enumerate(bytes_by_tier) if n),
            default=0.0,
        )

    def compute_s(self, start: int, end: int) -> float | None:
        """Seconds to compute tokens ``[start, end)``; None before anything is known."""
        if end <= start:
            return 0.0
        if not self._nn:
            return None
        n = end - start
        per_token, per_pair = self._fit()
        return per_token * n + per_pair * n * (start + end) / 2

    def _fit(self) -> tuple[float, float]:
        """Least squares, neither factor below 0."""
        line = self._ns / self._nn
        det = self._nn * self._pp - self._np * self._np
        if det <= 1e-6 * self._nn * self._pp:
            return line, 0.0
        per_token = (self._ns * self._pp - self._ps * self._np) / det
        per_pair = (self._nn * self._ps - self._np * self._ns) / det
        if per_pair < 0:
            return line, 0.0
        return (0.0, self._ps / self._pp) if per_token < 0 else (per_token, per_pair)

    def computed(self, n_tokens: int, pairs: float, seconds: float) -> None:
        """A step computed ``n_tokens`` of prompts in ``seconds``; ``pairs``: the sum of their positions."""
        if n_tokens < LEAST_TOKENS or seconds <= 0:
            return
        weight = 1.0 / n_tokens  # so that a step counts by what it computed, not by its square
        for name, value in (
            ("_nn", n_tokens * n_tokens),
            ("_np", n_tokens * pairs),
            ("_pp", pairs * pairs),
            ("_ns", n_tokens * seconds),
            ("_ps", pairs * seconds),
        ):
            setattr(self, name, getattr(self, name) * KEPT + value * weight)

    def loaded(self, answer: Loaded) -> None:
        """A load has ended."""
        for tier, (n_bytes, busy_s) in enumerate(zip(answer.bytes, answer.busy_s, strict=False)):
            if n_bytes and busy_s > 0:
                self._bytes[tier] = self._bytes[tier] * KEPT + n_bytes
                self._busy_s[tier] = self._busy_s[tier] * KEPT + busy_s
