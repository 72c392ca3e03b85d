"""Whether it lives, whether it takes work, what it is; and what its keepers may change."""

from __future__ import annotations

import logging
import time
from importlib.metadata import version
from typing import Any, Final

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import Response

from kvist.server.capacity import Capacity
from kvist.server.desk import Desk, check_admin, tenant_of
from kvist.server.observe.features import features
from kvist.server.observe.numbers import Numbers
from kvist.server.observe.tiers import tier_facts
from kvist.server.refuse import Refusal
from kvist.server.resets import Resets
from kvist.server.service import Service
from kvist.server.stream import Json

log = logging.getLogger("kvist.server")
LONGEST_PATH: Final = 4096


class ResetAsk(BaseModel):
    """Whose part of the cache to empty; None: the asker's own, or everybody's for an admin."""

    model_config = ConfigDict(extra="forbid", strict=True)
    tenant: str | None = None


class UpdateAsk(BaseModel):
    """Where the new weights are."""

    model_config = ConfigDict(extra="forbid", strict=True)
    path: str


def router(desk: Desk) -> APIRouter:
    """Health, facts, and the keepers' switches."""
    routes = APIRouter()
    _health(routes, desk.service)
    _facts(routes, desk)
    _switches(routes, desk)
    return routes


def _health(routes: APIRouter, service: Service) -> None:
    def state() -> tuple[str, int]:
        if service.dead is not None:
            return "dead", 503
        return ("draining", 503) if service.draining else ("ok", 200)

    @routes.head("/health", include_in_schema=False)
    @routes.get("/health")
    async def health() -> Response:
        """Alive: 503 while draining or dead (while loading the front says so)."""
        word, status = state()
        error = {} if service.dead is None else {"error": type(service.dead).__name__}
        return Json({"status": word, **error}, status_code=status)

    @routes.head("/ready", include_in_schema=False)
    @routes.get("/ready")
    async def ready() -> Response:
        """Takes work now: 503 also while other weights are being loaded."""
        word, status = state()
        if status == 200 and service.swapping:
            word, status = "loading", 503
        return Json({"status": word}, status_code=status)

    @routes.head("/ping", include_in_schema=False)
    @routes.get("/ping")
    async def ping() -> Response:
        """For those who only look at the status."""
        return Response(status_code=state()[1])


def _facts(routes: APIRouter, desk: Desk) -> None:
    service, started_s = desk.service, time.monotonic()
    numbers = Numbers(service, time.monotonic)

    @routes.get("/version")
    async def version_() -> Response:
        return Json({"version": version("kvist")})

    @routes.get("/server_info")
    async def server_info() -> Response:
        await numbers.refresh()
        served = service.served
        told = {f.name: f.told(numbers.latest) for f in features(served, desk.config)}
        return Json(
            {
                "version": version("kvist"),
                "model": {"names": list(desk.config.names), "path": served.path, "context": served.context_tokens},
                "cache": _cache_facts(desk),
                "engine": dict(served.facts),
                "features": told,
                "tiers": _tiers(desk, numbers),
                "limits": _limits(desk),
                "uptime_s": round(time.monotonic() - started_s, 3),
                "requests_open": service.open,
            }
        )


def _tiers(desk: Desk, numbers: Numbers) -> dict[str, Any] | None:
    facts, file = tier_facts(desk.service, numbers), desk.chats.memory.file
    if facts is not None and file is not None:
        facts["answers"] = {"condition": file.condition, "reason": file.reason or None, "kept": file.written}
    return facts


def _cache_facts(desk: Desk) -> dict[str, Any]:
    served = desk.service.served
    layout, capacity = served.layout, Capacity.of(served)
    return {
        "blocks": capacity.blocks,
        "block_bytes": layout.block_bytes,
        "block_tokens": layout.span_tokens,
        "groups": len(layout.groups),
        "pool_bytes": capacity.pool_bytes,
        "format": layout.format.name,
        "longest_request_tokens": capacity.request_tokens,
        "guaranteed": {
            "whole_requests": capacity.guaranteed_requests,
            "sequences": capacity.max_sequences,
            "tokens_each": capacity.guaranteed_tokens,
        },
        "in_words": capacity.sentence(),
    }


def _limits(desk: Desk) -> dict[str, Any]:
    config, sched = desk.config, desk.service.served.config.sched
    return {
        "max_queue": config.max_queue,
        "max_wait_s": config.max_wait_s,
        "max_body_bytes": config.max_body_bytes,
        "max_connections": config.max_connections,
        "max_output_tokens": config.max_output_tokens,
        "read_timeout_s": config.read_timeout_s,
        "write_timeout_s": config.write_timeout_s,
        "drain_s": config.drain_s,
        "history": config.history,
        "max_sequences": sched.max_sequences,
        "token_budget": sched.token_budget,
    }


def _switches(routes: APIRouter, desk: Desk) -> None:
    service, resets = desk.service, Resets(desk.service, desk.chats.memory)

    async def reset(request: Request, ask: ResetAsk | None = None) -> Response:
        if "tenant" in request.query_params:
            what = 'whose part goes is said in the body, as in {"tenant": "ann"}; in the address it would be overlooked'
            raise Refusal(400, "invalid_value", what, param="tenant")
        tenant = _whose(desk, request, ask.tenant if ask else None)
        done = await resets.reset(tenant)
        by = tenant_of(request).name
        fields = {"by": by, "tenant": tenant, "freed_blocks": done.freed_blocks, "reason": done.reason or None}
        log.log(logging.WARNING if done.reason else logging.INFO, "cache reset", extra={"fields": fields})
        return Json({"tenant": tenant, **done.told()}, status_code=503 if done.reason else 200)

    for path in ("/reset_prefix_cache", "/flush_cache"):
        routes.add_api_route(path, reset, methods=["POST"])

    @routes.post("/update_weights")
    async def update_weights(request: Request, ask: UpdateAsk) -> Response:
        check_admin(request)
        if not ask.path or len(ask.path) > LONGEST_PATH or "\0" in ask.path:
            raise Refusal(400, "invalid_value", f"path: a path of 1 to {LONGEST_PATH} characters", param="path")
        log.info("loading weights", extra={"fields": {"path": ask.path}})
        served = await service.swap(ask.path)
        log.info("serving other weights", extra={"fields": {"path": served.path}})
        return Json({"path": served.path, "context": served.context_tokens})


def _whose(desk: Desk, request: Request, asked: str | None) -> str | None:
    """The tenant whose blocks go; None: everybody's. Raises ``Refusal`` for what the asker may not touch."""
    me, tenants = tenant_of(request), desk.config.tenants
    if me.admin:
        if asked is not None and not tenants.open and asked not in {t.name for t in tenants.known}:
            raise Refusal(404, "tenant_not_found", f"no tenant is called {asked[:200]!r}", param="tenant")
        return asked
    if asked not in (None, me.name):
        raise Refusal(403, "not_admin", "the part of another tenant is the admin's to reset", param="tenant")
    if not tenants.isolate:
        what = "all tenants share one cache here (--no-isolate): only the admin may reset it"
        raise Refusal(403, "not_admin", what)
    return me.name
