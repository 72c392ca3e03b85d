"""``/v1/sessions``: save the cache of a conversation to a file, read it back, list, delete."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from kvist.errors import BadValue
from kvist.server.desk import Desk, tenant_of
from kvist.server.job import Job
from kvist.server.openai.chat_schema import TokenizeRequest
from kvist.server.openai.fields import Salt, TokenId
from kvist.server.openai.tokenize import ids_of
from kvist.server.openai.unknown import ignored
from kvist.server.openai.write import PROBLEMS
from kvist.server.stream import Json


class SaveRequest(TokenizeRequest):
    """A conversation, a text, or token ids: what the session has said so far, answers included."""

    token_ids: list[TokenId] | None = Field(None, min_length=1, max_length=1_000_000)
    cache_salt: Salt | None = Field(None, description="As in the requests of the session.")


def router(desk: Desk) -> APIRouter:
    """All four."""
    routes = APIRouter()
    sessions = desk.sessions

    @routes.get("/v1/sessions", responses=PROBLEMS)
    async def listed(request: Request) -> Response:
        return Json({"object": "list", "data": await sessions.listed(tenant_of(request))})

    @routes.post("/v1/sessions/{name:path}/save", responses=PROBLEMS)
    async def save(request: Request, name: str, ask: SaveRequest) -> Response:
        headers = ignored(ask)
        desk.check_model(ask.model)
        tenant, salt = tenant_of(request), ask.cache_salt or ""
        ids = await _ids(desk, ask, Job((), tenant=tenant, salt=salt))
        return Json(await sessions.save(tenant, name, ids, salt), headers=headers)

    @routes.post("/v1/sessions/{name:path}/restore", responses=PROBLEMS)
    async def restore(request: Request, name: str) -> Response:
        good, told = await sessions.restore(tenant_of(request), name)
        return Json(told, status_code=200 if good else 503)

    @routes.delete("/v1/sessions/{name:path}", responses=PROBLEMS)
    async def delete(request: Request, name: str) -> Response:
        await sessions.delete(tenant_of(request), name)
        return Json({"object": "session", "name": name, "deleted": True})

    return routes


async def _ids(desk: Desk, ask: SaveRequest, job: Job) -> list[int]:
    if ask.token_ids is None and ask.prompt is None and ask.messages is None:
        raise BadValue("token_ids", None, "token_ids, prompt or messages: what the session has said so far")
    if ask.token_ids is None:
        return await ids_of(desk, ask, job)
    if ask.prompt is not None or ask.messages is not None:
        raise BadValue("token_ids", "...", "one of token_ids, prompt and messages")
    vocab = desk.service.served.vocab
    for token in ask.token_ids:
        if token >= vocab:
            raise BadValue("token_ids", token, f"token ids in [0, {vocab})")
    return ask.token_ids
