"""One tier as the mover sees it: what it can do, how it behaved so far, and what it has to do."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from kvist.runtime.mover.numbers import Numbers
from kvist.runtime.mover.open import Part
from kvist.tier.base import Tier, Usage

log = logging.getLogger("kvist.tier")

LOOK_S = 10.0
"""How often a tier that has nothing is asked whether it has something of others."""

REMOTE_READERS = 2
"""Loads that a remote tier carries at once: one waits for the network while the other copies."""


class Lane:
    """Changed with the desk's lock held.

    A tier may say more of itself than the port asks: ``takes_saves`` (default True), ``remote`` (default False: its
    calls cross a network), ``view(tenant)`` (a tier for that tenant's records) and ``strange(origin)`` (it has records,
    and none of that origin).

    ``direct``: reads go straight into the pool. That ends for good with the first read that outlived its time, and is
    never so for a remote tier: only a read into memory of its own can be left behind when it hangs.
    """

    def __init__(self, index: int, tier: Tier, name: str) -> None:
        self.index = index
        self.tier = tier
        self.name = name
        self.takes_saves: bool = getattr(tier, "takes_saves", True)
        self.remote: bool = getattr(tier, "remote", False)
        self.has_views = hasattr(tier, "view")
        self.direct = not self.remote
        self.readers = REMOTE_READERS if self.remote else 1
        self.numbers = Numbers()
        self.parts: list[Part] = []
        self.quota = 0
        self.held_slots = 0
        self._faulty = False
        self._looked_s = -LOOK_S
        self._strange = False

    @property
    def room(self) -> bool:
        """Whether another block may wait to be written here."""
        return self.held_slots < self.quota

    @property
    def queued_records(self) -> int:
        """Records that wait to be read or are being read."""
        return sum(part.left for part in self.parts)

    def of(self, tenant: str) -> Tier:
        """The tier as this tenant sees it. May raise what the tier's ``view`` raises."""
        view: Tier = self.tier.view(tenant) if self.has_views else self.tier  # type: ignore[attr-defined]
        return view

    def is_strange(self, origin: bytes, now: float) -> bool:
        """Whether all that the tier has is of other models or settings; looked up now and then. Without the lock."""
        if not hasattr(self.tier, "strange") or self.numbers.has_records:
            return False
        if now - self._looked_s >= LOOK_S:
            before, self._looked_s = self._strange, now
            self._strange = bool(self.tier.strange(origin))
            if self._strange and not before:
                log.warning(
                    "tier %s has records, but none of this model with these settings: nothing of what it has is used "
                    "(kvist cache stat lists the origins)",
                    self.name,
                )
        return self._strange

    def distrust(self, seconds: float) -> None:
        """A read outlived its time."""
        if self.direct:
            self.direct = False
            log.warning(
                "tier %s: a read took more than %.1f s; from now on it reads into memory of its own", self.name, seconds
            )

    def blame(self, error: Exception) -> None:
        """A call raised, or gave no sense: a bug in the tier. Said once until a call goes well."""
        if not self._faulty:
            self._faulty = True
            log.error("tier %s: %s: %s", self.name, type(error).__name__, error, exc_info=error)

    def praise(self) -> None:
        """A call went well."""
        if self._faulty:
            self._faulty = False
            log.warning("tier %s: works again", self.name)

    def usage(self) -> Usage:
        """How the tier is; ``off`` when it cannot even say that."""
        try:
            return self.tier.usage()
        except Exception as error:
            return Usage(0, 0, None, "off", f"{type(error).__name__}: {error}")


def lanes_of(tiers: Sequence[Tier]) -> tuple[Lane, ...]:
    """One lane for each tier, with a name of its own."""
    names: list[str] = []
    for tier in tiers:
        names.append(tier.name if tier.name not in names else f"{tier.name}{len(names) + 1}")
    return tuple(Lane(i, tier, name) for i, (tier, name) in enumerate(zip(tiers, names, strict=True)))
