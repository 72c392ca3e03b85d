"""What each tenant was served, and whose turn it is: the virtual token counter of "Fairness in Serving Large Language
Models" (OSDI 2024, arXiv 2401.00588).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Final

from kvist.errors import BadValue

IDLE_TENANTS: Final = 1024
"""Tenants without a live sequence that are remembered, the last ones to leave."""


class Service:
    """Tokens per tenant: prompt tokens computed and output tokens drawn, as they are; cached ones cost nothing.

    ``level`` is that divided by the tenant's weight (1 unless given): the lowest goes first. A tenant that becomes
    active is lifted to the lowest level of the active ones (when there is none: to that of the last to leave), so idle
    time is not saved up. What a plan that is out will compute is pledged, so that one plan does not serve one tenant
    only.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        """Raises ``BadValue`` for a weight that is not a number > 0."""
        for tenant, weight in weights.items():
            if not (isfinite(weight) and weight > 0):
                raise BadValue("weights", {tenant: weight}, "a number > 0 for each tenant")
        self._weights = dict(weights)
        self._levels: dict[str, float] = {}
        self._tokens: dict[str, int] = {}
        self._live: dict[str, int] = {}
        self._idle: dict[str, None] = {}
        self._pledged: dict[str, int] = {}
        self._last_level = 0.0
        self.moved: set[str] = set()
        """Tenants whose level or queue changed since somebody looked. Whoever looks clears it."""

    def join(self, tenant: str) -> None:
        """A sequence of ``tenant`` came alive."""
        live = self._live
        if tenant not in live:
            least = min((self._levels[t] for t in live), default=self._last_level)
            self._levels[tenant] = max(self._levels.get(tenant, 0.0), least)
            self._tokens.setdefault(tenant, 0)
            self._idle.pop(tenant, None)
            self.moved.add(tenant)
        live[tenant] = live.get(tenant, 0) + 1

    def part(self, tenant: str) -> None:
        """A sequence of ``tenant`` ended."""
        self._live[tenant] -= 1
        if not self._live[tenant]:
            del self._live[tenant]
            self._last_level = self._levels[tenant]
            self._idle[tenant] = None
            if len(self._idle) > IDLE_TENANTS:
                oldest = next(iter(self._idle))
                for book in (self._idle, self._levels, self._tokens):
                    del book[oldest]

    def level(self, tenant: str) -> float:
        """Tokens per weight, pledged ones included. The tenant has a live sequence."""
        pledged = self._pledged.get(tenant)
        level = self._levels[tenant]
        return level if pledged is None else level + pledged / self._weights.get(tenant, 1.0)

    def pledge(self, tenant: str, n_tokens: int) -> None:
        """A newcomer of ``tenant`` will compute these in the plan being made."""
        self._pledged[tenant] = self._pledged.get(tenant, 0) + n_tokens
        self.moved.add(tenant)

    def settle(self) -> None:
        """The plan is over: only what was computed counts."""
        self.moved.update(self._pledged)
        self._pledged.clear()

    def charge(self, tenant: str, n_tokens: int) -> None:
        """``tenant`` was served."""
        self._tokens[tenant] += n_tokens
        self.moved.add(tenant)
        self._levels[tenant] += n_tokens / self._weights.get(tenant, 1.0)

    def totals(self) -> dict[str, int]:
        """Tokens of every tenant that is remembered."""
        return dict(self._tokens)
