"""``GET /v1/models``: what is served."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from fastapi import APIRouter

from kvist.server.desk import Desk


def router(desk: Desk) -> APIRouter:
    """Models by every name they are served under."""
    routes = APIRouter()

    def card(name: str) -> dict[str, Any]:
        served = desk.service.served
        return {
            "id": name,
            "object": "model",
            "created": served.created_unix_s,
            "owned_by": "kvist",
            "root": PurePath(served.path).name,
            "max_model_len": served.context_tokens,
        }

    @routes.get("/v1/models")
    async def listed() -> dict[str, Any]:
        return {"object": "list", "data": [card(name) for name in desk.config.names]}

    @routes.get("/v1/models/{model:path}")
    async def one(model: str) -> dict[str, Any]:
        return card(desk.check_model(model))

    return routes
