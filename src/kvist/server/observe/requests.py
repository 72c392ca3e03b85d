"""``GET /v1/requests`` and ``/v1/requests/{id}``: what became of a request; each tenant sees its own."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from starlette.requests import Request

from kvist.errors import KvistError
from kvist.server.desk import Desk, tenant_of
from kvist.server.observe.misses import Misses
from kvist.server.observe.story import ended_story, live_story, stages
from kvist.server.records import Record
from kvist.server.refuse import Refusal
from kvist.server.service import Service
from kvist.server.stream import Json

WAIT_S: Final = 0.5
MOST: Final = 1000


def router(desk: Desk) -> APIRouter:
    """Requests, live and ended."""
    routes = APIRouter()
    service = desk.service
    misses = Misses(service)
    service.observers.append(misses)
    stands = _Stages(service)

    async def told(records: list[Record]) -> list[dict[str, Any]]:
        live = {r.id for r in service.records.live()}
        where = await stands.ask() if any(r.id in live for r in records) else {}
        return [
            live_story(r, None if where is None else where.get(r.id, []))
            if r.id in live
            else ended_story(r, misses.of(r))
            for r in records
        ]

    @routes.get("/v1/requests")
    async def listed(request: Request, limit: Annotated[int, Query(ge=1, le=MOST)] = 20) -> Json:
        mine = _visible(service, request)[:limit]
        return Json({"object": "list", "data": await told(mine)})

    @routes.get("/v1/requests/{asked:path}")
    async def one(request: Request, asked: str) -> Json:
        found = next((r for r in _visible(service, request) if asked in (r.id, r.name)), None)
        if found is None:
            what = f"no request of yours is called {asked[:200]!r}"
            remedy = f"the last {desk.config.history} that ended are remembered; see X-Request-Id"
            raise Refusal(404, "request_not_found", what, remedy=remedy)
        return Json((await told([found]))[0])

    return routes


def _visible(service: Service, request: Request) -> list[Record]:
    """The newest first: all of them for an admin, else the tenant's own."""
    tenant = tenant_of(request)
    everyone = [*reversed(service.records.live()), *reversed(service.records.ended())]
    return [r for r in everyone if tenant.admin or r.tenant == tenant.name]


class _Stages:
    """Asks the engine where the live ones stand. However many want to know, one question is out at a time."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._asking: asyncio.Task[dict[str, list[dict[str, Any]]] | None] | None = None

    async def ask(self) -> dict[str, list[dict[str, Any]]] | None:
        """By record id; None when the engine does not answer soon (a long step) or is gone."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._ask())
        done, _ = await asyncio.wait({self._asking}, timeout=WAIT_S)
        return next(iter(done)).result() if done else None

    async def _ask(self) -> dict[str, list[dict[str, Any]]] | None:
        try:
            return await self._service.call(stages)
        except KvistError:
            return None
