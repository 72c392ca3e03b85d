"""How long loading and computing take, learnt from results: what "load or recompute" is decided by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvist.transfer import Loaded

FIRST_BYTES_PER_S: Final = 2e8
"""What a tier is believed to do before it was seen to do anything."""

FIRST_BYTES: Final = 16e6
"""How many bytes that belief counts for."""

FEW_BYTES: Final = 4e6
"""Loads of less count as much as these: one of a few bytes does not rule all others."""

KEPT: Final = 0.9
"""What older observations count for beside a new one."""

PROBE: Final = 20
"""A tier that is passed over as too slow is tried again once computing instead has taken so many times as long as that
may cost: one bad day does not last, and who is right loses a twentieth at most."""

PROBED: Final = 0.001
"""What older observations of a tier count for beside a trial: next to nothing."""

LEAST_TOKENS: Final = 4
"""Chunks from which something is learnt of what computing takes."""


class Fit:
    """``y = main * x + extra * z``: weighted least squares that forget, neither factor below 0."""

    def __init__(self) -> None:
        self._xx = self._xz = self._zz = self._xy = self._zy = 0.0

    @property
    def known(self) -> bool:
        """Whether anything was seen."""
        return self._xx > 0

    def see(self, x: float, z: float, y: float, weight: float) -> None:
        """One observation."""
        self._xx = self._xx * KEPT + x * x * weight
        self._xz = self._xz * KEPT + x * z * weight
        self._zz = self._zz * KEPT + z * z * weight
        self._xy = self._xy * KEPT + x * y * weight
        self._zy = self._zy * KEPT + z * y * weight

    def fade(self, share: float) -> None:
        """Let what was seen count for less beside what comes; the factors stay."""
        for name in ("_xx", "_xz", "_zz", "_xy", "_zy"):
            setattr(self, name, getattr(self, name) * share)

    def factors(self) -> tuple[float, float]:
        """``main`` and ``extra``; what cannot be told apart is put down to ``main``. Something must be known."""
        line = self._xy / self._xx
        det = self._xx * self._zz - self._xz * self._xz
        if det <= 1e-6 * self._xx * self._zz:
            return line, 0.0
        main = (self._xy * self._zz - self._zy * self._xz) / det
        extra = (self._xx * self._zy - self._xz * self._xy) / det
        if extra < 0:
            return line, 0.0
        return (0.0, self._zy / self._zz) if main < 0 else (main, extra)


class Rates:
    """Per tier the seconds of a load, ``per_byte * bytes + per_load``; and the seconds of computing tokens
    ``[start, end)`` of a prompt, ``per_token * n + per_pair * n * (mean position)``.
    """

    def __init__(self, n_tiers: int) -> None:
        self._loads = [Fit() for _ in range(n_tiers)]
        self._passed_s = [0.0] * n_tiers
        for fit in self._loads:
            fit.see(FIRST_BYTES, 1.0, FIRST_BYTES / FIRST_BYTES_PER_S, _weight(FIRST_BYTES))
        self._compute = Fit()

    def load_s(self, bytes_by_tier: Sequence[int], queued_bytes: Sequence[int] = ()) -> float:
        """Seconds until so many bytes of each tier are here, behind those that wait; tiers work side by side."""
        queued = [*queued_bytes, *[0] * len(bytes_by_tier)]
        return max((self._tier_s(t, n + queued[t]) for t, n in enumerate(bytes_by_tier) if n), default=0.0)

    def slowest(self, bytes_by_tier: Sequence[int]) -> int:
        """The tier that takes longest for its bytes, when nobody waits."""
        return max(range(len(bytes_by_tier)), key=lambda t: self._tier_s(t, n) if (n := bytes_by_tier[t]) else 0.0)

    def _tier_s(self, tier: int, n_bytes: int) -> float:
        per_byte, per_load = self._loads[tier].factors()
        return n_bytes * per_byte + per_load

    def compute_s(self, start: int, end: int) -> float | None:
        """Seconds to compute tokens ``[start, end)``; None before anything is known."""
        if end <= start:
            return 0.0
        if not self._compute.known:
            return None
        n = end - start
        per_token, per_pair = self._compute.factors()
        return per_token * n + per_pair * n * (start + end) / 2

    def computed(self, n_tokens: int, pairs: float, seconds: float) -> None:
        """A step computed ``n_tokens`` of prompts in ``seconds``; ``pairs``: the sum of their positions."""
        if n_tokens >= LEAST_TOKENS and seconds > 0:
            # the weight: so that a step counts by what it computed, not by its square
            self._compute.see(n_tokens, pairs, seconds, 1.0 / n_tokens)

    def is_due(self, tier: int, load_s: float, compute_s: float) -> bool:
        """Whether a tier that seems too slow is to be tried all the same."""
        return self._passed_s[tier] >= PROBE * (load_s - compute_s)

    def passed_over(self, tier: int, compute_s: float) -> None:
        """It seemed too slow, and what it has is computed in so many seconds."""
        self._passed_s[tier] += compute_s

    def tried(self, tier: int) -> None:
        """It is loaded from although it seems too slow: what it takes now is what it takes."""
        self._passed_s[tier] = 0.0
        self._loads[tier].fade(PROBED)

    def loaded(self, answer: Loaded) -> None:
        """A load has ended."""
        for tier, (n_bytes, busy_s) in enumerate(zip(answer.bytes, answer.busy_s, strict=False)):
            if n_bytes and busy_s > 0:
                self._loads[tier].see(n_bytes, 1.0, busy_s, _weight(n_bytes))


def _weight(n_bytes: float) -> float:
    """So that a load counts by what it brought, not by its square."""
    return 1.0 / (n_bytes + FEW_BYTES)
