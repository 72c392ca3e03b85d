"""Threads for what would hold up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from kvist.server.tenants import Tenant

T = TypeVar("T")


class Workers:
    """Two threads beside the event loop, or as many as are asked for. At most one job of a tenant is on them: a costly
    one holds up its own tenant, others for the rest of one job at most.
    """

    def __init__(self, name: str, threads: int = 2) -> None:
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._busy: dict[str, asyncio.Lock] = {}

    async def run(self, tenant: Tenant, work: Callable[..., T], *args: Any) -> T:
        """What ``work`` returns or raises."""
        async with self._busy.setdefault(tenant.name, asyncio.Lock()):
            return await asyncio.get_running_loop().run_in_executor(self.pool, work, *args)
