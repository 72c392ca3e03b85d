"""Whether it lives, whether it takes work, what it is; and what its keepers may change."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvist.server.desk import Desk
from kvist.server.stream import Json


def router(desk: Desk) -> APIRouter:
    """Health."""
    routes = APIRouter()
    service = desk.service

    @routes.get("/health")
    async def health(request: Request) -> Response:
        if service.dead is not None:
            return Json({"status": "dead", "error": str(service.dead)}, status_code=503)
        if service.draining:
            return Json({"status": "draining"}, status_code=503)
        return Json({"status": "ok"})

    return routes
