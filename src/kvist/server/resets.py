"""Emptying the cache, everywhere: the pool, the tiers, and the answers that were kept."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from kvist.engine.engine import Engine
from kvist.server.memory import Memory
from kvist.server.service import Service
from kvist.transfer import Dropped

WAIT_S: Final = 10.0
"""How long the tiers have to say that they are empty."""

LOOK_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Reset:
    """What was emptied. ``tiers``: records removed from each; ``reason``: why something may still be there."""

    freed_blocks: int
    tiers: dict[str, int | None] = field(default_factory=dict)
    reason: str = ""

    def told(self) -> dict[str, Any]:
        """As JSON; None for a tier of which it is not known."""
        tiers = {name: {"records": records} for name, records in self.tiers.items()}
        found: dict[str, Any] = {"freed_blocks": self.freed_blocks, "success": not self.reason, "tiers": tiers}
        return found | ({"reason": self.reason} if self.reason else {})


class Resets:
    """Owner of resets whose end nobody waited for. One per server."""

    def __init__(self, service: Service, memory: Memory) -> None:
        self._service = service
        self._memory = memory
        self._late: list[int] = []

    async def reset(self, tenant: str | None, wait_s: float = WAIT_S) -> Reset:
        """Empty what there is of a tenant (None: of all); what runs keeps its blocks and goes on.

        Raises what ``Service.call`` raises.
        """
        places = self._service.served.places
        freed, id = await self._service.call(lambda engine: engine.scheduler.reset(tenant))
        forgotten = await asyncio.to_thread(self._memory.forget, tenant)
        reasons = [] if forgotten else ["answers that were kept on disk may still be there"]
        if id is None or places is None:
            return Reset(freed, {}, "; ".join(reasons))
        dropped = await self._dropped(id, wait_s)
        if dropped is None:
            reasons.insert(0, f"the tiers did not answer within {wait_s:g} s; they go on with it")
            return Reset(freed, dict.fromkeys(places.names), "; ".join(reasons))
        removed = dict(zip(places.names, dropped.records, strict=True))
        kept = [name for name, records in removed.items() if records < 0]
        if kept:
            reasons.insert(0, f"{', '.join(kept)} could not be emptied: {dropped.reason or 'no reason was given'}")
        return Reset(freed, {name: None if n < 0 else n for name, n in removed.items()}, "; ".join(reasons))

    async def _dropped(self, id: int, wait_s: float) -> Dropped | None:
        until_s = time.monotonic() + wait_s
        while time.monotonic() < until_s:
            answer = await self._service.call(partial(_fetch, id, self._late))
            if answer is not None:
                return answer
            await asyncio.sleep(LOOK_S)
        self._late.append(id)
        return None


def _fetch(id: int, late: list[int], engine: Engine) -> Dropped | None:
    """The answer, if it has come. Those that nobody waits for any more are taken on the way."""
    dropped = engine.scheduler.carry.dropped
    for n in [n for n in late if n in dropped]:
        late.remove(n)
        del dropped[n]
    return dropped.pop(id, None)
