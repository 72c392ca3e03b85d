"""The web application: doors, desks and one shape for every error."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from kvist.errors import KvistError
from kvist.server.door import Door, Unfit
from kvist.server.refuse import Refusal, refusal_of
from kvist.server.shapes import refuse
from kvist.server.stream import Gone

log = logging.getLogger("kvist.server")


def make_app(routers: Sequence[APIRouter], door: Callable[[Any], Door], *, version: str) -> FastAPI:
    """One application over these routers. Every error leaves in the shape of the path's protocol."""
    app = FastAPI(title="kvist", version=version, docs_url=None, redoc_url=None)
    for router in routers:
        app.include_router(router)
    app.add_middleware(door)
    app.add_exception_handler(KvistError, _refused)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Gone, _nobody)
    app.add_exception_handler(Exception, _bug)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, KvistError)
    refusal = refusal_of(error)
    if refusal.status >= 500 and refusal.status != 503:
        log.error("request failed: %s", refusal, extra={"request_name": request.state.name})
    return refuse(refusal, request.url.path)


async def _malformed(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"] if part != "body")
    if first["type"] == "json_invalid":
        what, where = f"the body is no JSON: {first['ctx']['error']} (at character {where})", ""
    elif first["loc"] == ("body",):
        what = "a JSON object is needed as the body (Content-Type: application/json)"
    else:
        what = f"{where}: {first['msg']}"
    return refuse(Refusal(400, "invalid_request", what, param=where or None), request.url.path)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if isinstance(error, Unfit):
        return refuse(error.refusal, request.url.path)
    codes = {404: "not_found", 405: "method_not_allowed"}
    detail = str(error.detail)
    if error.status_code == 400 and "parsing the body" in detail:
        detail = "the body cannot be read: it must be JSON in UTF-8, nested no deeper than a few hundred levels"
    refusal = Refusal(error.status_code, codes.get(error.status_code, "invalid_request"), detail)
    refusal.headers.update(error.headers or {})
    return refuse(refusal, request.url.path)


async def _nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


async def _bug(request: Request, error: Exception) -> Response:
    log.error("a bug answered %s", request.url.path, exc_info=error)
    what = f"{type(error).__name__} while answering"
    return refuse(Refusal(500, "internal_error", what, remedy="report this: it is a bug"), request.url.path)
