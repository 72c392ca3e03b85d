"""Who the blocks belong to, and how much of the pool a tenant may count on.

A block that is not free belongs to one tenant: at first to the one whose sequence asked for it, in the tree to the one
that its namespace belongs to (who published there first). A tenant's *floor* is its weight's part of the pool among the
tenants that have blocks now. Floors reserve nothing, an idle pool may be used wholly by one tenant; they say who gives
when memory is short (``reclaim.py``): those above theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, isfinite
from typing import Final

from kvist.cache.answers import TenantShare
from kvist.errors import BadValue

PAST_TENANTS: Final = 1024
"""So many tenants are remembered, for their totals, after their last sequence and namespace went."""


class Share:
    """What one tenant has. ``blocks`` (``cached`` of them) are counted by the pool, ``evicted`` by the reclaimer.

    ``holders`` are its sequences and namespaces; with the last of them the tenant is gone.
    """

    __slots__ = ("blocks", "cached", "evicted", "holders", "tenant", "weight")

    def __init__(self, tenant: str, weight: float = 1.0) -> None:
        self.tenant = tenant
        self.weight = weight
        self.blocks = self.cached = self.evicted = self.holders = 0

    def excess_blocks(self, unit_blocks: float) -> int:
        """Blocks to give until a tenant is at or below its floor, ``weight * unit_blocks``; not above 0 there."""
        return ceil(self.blocks - self.weight * unit_blocks)


class Shares:
    """The tenants that have a sequence or a namespace. Owner: ``Cache``.

    ``weights`` of those not named are 1. Raises ``BadValue`` for a weight that is not a positive number.
    """

    __slots__ = ("_past", "_weights", "by_tenant", "total_blocks")

    def __init__(self, weights: Mapping[str, float], total_blocks: int) -> None:
        for tenant, weight in weights.items():
            if not (isfinite(weight) and weight > 0):
                raise BadValue(f"weights[{tenant!r}]", weight, "a finite number above 0")
        self._weights = dict(weights)
        self._past: dict[str, Share] = {}
        self.total_blocks = total_blocks
        self.by_tenant: dict[str, Share] = {}

    def join(self, tenant: str) -> Share:
        """One more sequence or namespace of a tenant."""
        share = self.by_tenant.get(tenant)
        if share is None:
            share = self._past.pop(tenant, None) or Share(tenant, self._weights.get(tenant, 1.0))
            self.by_tenant[tenant] = share
        share.holders += 1
        return share

    def quit(self, share: Share) -> None:
        """One less."""
        share.holders -= 1
        if not share.holders:
            self._past[share.tenant] = self.by_tenant.pop(share.tenant)
            if len(self._past) > PAST_TENANTS:
                del self._past[next(iter(self._past))]

    def unit_blocks(self) -> float:
        """What a weight of 1 may count on: the pool divided by the weight of all tenants that have blocks.

        Summed anew each time: it does not drift as tenants come and go. The whole pool while nobody has any.
        """
        weight = sum(share.weight for share in self.by_tenant.values() if share.blocks)
        return self.total_blocks / (weight or 1.0)

    def available_blocks(self, tenant: str, free_blocks: int, cached_blocks: int) -> int:
        """Free and cached blocks, less what others have cached within their floors, as they are once it has blocks."""
        holding = {share.tenant: share for share in self.by_tenant.values() if share.blocks}
        weights = sum(share.weight for name, share in holding.items() if name != tenant)
        unit = self.total_blocks / (weights + self._weights.get(tenant, 1.0))
        spared = 0
        for name, share in holding.items():
            if name != tenant:
                spared += min(share.cached, max(0, ceil(share.weight * unit) - (share.blocks - share.cached)))
        return free_blocks + cached_blocks - spared

    def report(self) -> dict[str, TenantShare]:
        """By tenant, those first of whom no more is left than what they lost."""
        unit = self.unit_blocks()
        told = {tenant: TenantShare(0, 0.0, share.evicted) for tenant, share in self._past.items() if share.evicted}
        for tenant, share in self.by_tenant.items():
            told[tenant] = TenantShare(share.blocks, share.weight * unit if share.blocks else 0.0, share.evicted)
        return told
