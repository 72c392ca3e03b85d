"""How long the work of each tenant will take: its tokens still to compute, at its share of the speed of late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvist.errors import KvistError
from kvist.server.job import Delta

WINDOW_S: Final = 5.0
"""Speed is judged over windows of this length; half of what was known is kept from one to the next."""
FIRST_GUESS_TOKENS: Final = 256
"""Length of an answer while none has ended."""


@dataclass(slots=True)
class _Load:
    """Tokens still to come for one request, all samples together."""

    tenant: str
    prompt_tokens: int
    output_tokens: int
    n: int
    drawn_tokens: int = 0


class Pressure:
    """Counts tokens in and out. A prompt counts until its first token came, an output token until it was drawn.

    Prompts and outputs run at different speeds; one number for both is coarse, but it follows the mix of the moment,
    and it only has to tell seconds from minutes. Cached tokens are no work, so they make nobody faster. Nothing is
    refused before a speed is known.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        """``weights`` of tenants; 1 for those not named."""
        self._weights = weights
        self._loads: dict[int, _Load] = {}
        self._waiting: dict[str, int] = {}
        self._inside: Counter[str] = Counter()
        self._rate = 0.0
        self._done = 0
        self._since: float | None = None
        self._usual_tokens = float(FIRST_GUESS_TOKENS)

    @property
    def tokens_per_s(self) -> float:
        """Tokens computed a second, of late and while there was work."""
        return self._rate

    def waiting_tokens(self, tenant: str) -> int:
        """What a tenant still has to get; an answer counts as twice the usual length, or as what it may use."""
        return self._waiting.get(tenant, 0)

    def wait_s(self, tenant: str) -> float:
        """Seconds until what a tenant has inside is done, at its share among those who have something inside."""
        if not self._rate or tenant not in self._waiting:
            return 0.0
        everyone = sum(self._weight(name) for name in self._waiting)
        return self._waiting[tenant] * everyone / (self._rate * self._weight(tenant))

    def enter(self, ticket: int, tenant: str, prompt_tokens: int, output_tokens: int, n: int) -> None:
        """A request came in; each of its ``n`` answers may draw ``output_tokens``."""
        output_tokens = n * min(output_tokens, round(2 * self._usual_tokens))
        self._loads[ticket] = _Load(tenant, prompt_tokens, output_tokens, n)
        self._waiting[tenant] = self._waiting.get(tenant, 0) + prompt_tokens + output_tokens
        self._inside[tenant] += 1

    def note(self, ticket: int, parcel: Delta | KvistError, now_s: float) -> None:
        """Something was done for it."""
        load = self._loads.get(ticket)
        if load is None or isinstance(parcel, KvistError):
            return
        drawn = len(parcel.token_ids)
        load.drawn_tokens += drawn
        counted = min(drawn, load.output_tokens)
        self._waiting[load.tenant] -= load.prompt_tokens + counted
        self._done += max(0, load.prompt_tokens - (parcel.cached_tokens or 0)) + drawn
        load.prompt_tokens = 0
        load.output_tokens -= counted
        if self._since is None:
            self._since = now_s
        elif now_s - self._since >= WINDOW_S:
            rate = self._done / (now_s - self._since)
            self._rate = rate if not self._rate else (self._rate + rate) / 2
            self._done, self._since = 0, now_s

    def leave(self, ticket: int) -> None:
        """It ended, for whatever reason."""
        load = self._loads.pop(ticket)
        self._waiting[load.tenant] -= load.prompt_tokens + load.output_tokens
        if load.drawn_tokens:
            self._usual_tokens += (load.drawn_tokens / load.n - self._usual_tokens) / 16
        self._inside[load.tenant] -= 1
        if not self._inside[load.tenant]:
            del self._inside[load.tenant], self._waiting[load.tenant]
        if not self._loads:
            self._done, self._since = 0, None

    def _weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)
