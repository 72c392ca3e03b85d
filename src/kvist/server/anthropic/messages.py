"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: what the official ``anthropic`` clients speak."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvist.server.anthropic.answer import Answer
from kvist.server.anthropic.conversation import asked
from kvist.server.anthropic.fields import CountBody, MessagesBody
from kvist.server.desk import Desk, name_of, tenant_of
from kvist.server.reading import Reader
from kvist.server.stream import EventStream, Json, unless_gone


def router(desk: Desk) -> APIRouter:
    """Messages."""
    routes = APIRouter()

    @routes.post("/v1/messages")
    async def messages(body: MessagesBody, request: Request) -> Response:
        model = desk.check_model(body.model)
        wanted = await asked(body, desk.service.served, tenant_of(request), name_of(request))
        headers = {"request-id": name_of(request), **wanted.ignored.header}
        conversation = await desk.chats.start(wanted.ask)
        reader = Reader(conversation, one_call=wanted.one_call)
        answer = Answer(reader, model, wanted.marks)
        if not body.stream:
            whole = await unless_gone(request.receive, answer.whole(), conversation.close)
            return Json(whole, headers=headers)
        first = await reader.first(request.receive)
        timeout_s = desk.config.write_timeout_s
        return EventStream(answer.told(first), conversation.close, write_timeout_s=timeout_s, headers=headers)

    @routes.post("/v1/messages/count_tokens")
    async def count_tokens(body: CountBody, request: Request) -> Response:
        desk.check_model(body.model)
        wanted = await asked(body, desk.service.served, tenant_of(request), name_of(request))
        encoded = await desk.chats.encode(wanted.ask)
        return Json({"input_tokens": len(encoded.ids)}, headers=wanted.ignored.header)

    return routes
