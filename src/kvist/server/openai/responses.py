"""``/v1/responses``: what the official ``openai`` clients speak, and the memory behind ``previous_response_id``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvist.server.chat import Called
from kvist.server.desk import Desk, name_of, tenant_of
from kvist.server.openai.responses_answer import Answer, Keep
from kvist.server.openai.responses_ask import Asked, asked
from kvist.server.openai.responses_fields import MAX_ID_CHARS, ResponsesBody
from kvist.server.openai.responses_store import Responses, Stored
from kvist.server.reading import Reader
from kvist.server.refuse import Refusal
from kvist.server.stream import EventStream, Json, dump, unless_gone


def router(desk: Desk) -> APIRouter:
    """Responses. What is stored lives as long as the server, within the bounds of ``Responses``."""
    routes = APIRouter()
    store = Responses()

    @routes.post("/v1/responses")
    async def create(body: ResponsesBody, request: Request) -> Response:
        model, tenant = desk.check_model(body.model), tenant_of(request)
        before = _before(store, tenant.name, body.previous_response_id)
        wanted = await asked(body, before, desk.service.served, tenant, name_of(request))
        conversation = await desk.chats.start(wanted.ask)
        reader = Reader(conversation, one_call=not wanted.ask.parallel)
        keep = _keeper(store, tenant.name, wanted, before)
        answer = Answer(reader, model, wanted.echo, keep)
        headers = wanted.ignored.header
        if not body.stream:
            whole = await unless_gone(request.receive, answer.whole(), conversation.close)
            return Json(whole, headers=headers)
        first = await reader.first(request.receive)
        timeout_s = desk.config.write_timeout_s
        return EventStream(answer.told(first), conversation.close, write_timeout_s=timeout_s, headers=headers)

    @routes.post("/v1/responses/input_tokens")
    async def input_tokens(body: ResponsesBody, request: Request) -> Response:
        desk.check_model(body.model)
        tenant = tenant_of(request)
        before = _before(store, tenant.name, body.previous_response_id)
        wanted = await asked(body, before, desk.service.served, tenant, name_of(request))
        encoded = await desk.chats.encode(wanted.ask)
        return Json({"object": "response.input_tokens", "input_tokens": len(encoded.ids)})

    _add_stored(routes, store)
    return routes


def _add_stored(routes: APIRouter, store: Responses) -> None:
    @routes.get("/v1/responses/{name}")
    async def retrieve(name: str, request: Request) -> Response:
        if request.query_params.get("stream", "false").lower() == "true":
            raise Refusal(400, "unsupported", "stored responses are not streamed again", param="stream")
        return Json(_known(store, request, name).response)

    @routes.delete("/v1/responses/{name}")
    async def delete(name: str, request: Request) -> Response:
        _known(store, request, name)
        store.drop(tenant_of(request).name, name)
        return Json({"id": name, "object": "response", "deleted": True})

    @routes.post("/v1/responses/{name}/cancel")
    async def cancel(name: str, request: Request) -> Response:
        _known(store, request, name)
        what = "only background responses can be cancelled, and this server has none"
        raise Refusal(400, "unsupported", what, remedy="close the connection: that ends a response")


def _known(store: Responses, request: Request, name: str) -> Stored:
    found = store.find(tenant_of(request).name, name)
    if found is None:
        what = f"there is no response {name[:MAX_ID_CHARS]!r}"
        raise Refusal(404, "response_not_found", what, remedy="it was deleted, not stored, or is too long ago")
    return found


def _before(store: Responses, tenant: str, name: str | None) -> Stored | None:
    if name is None:
        return None
    found = store.find(tenant, name)
    if found is None:
        what = f"there is no response {name[:MAX_ID_CHARS]!r} to go on from"
        remedy = "send the whole conversation as input"
        raise Refusal(404, "previous_response_not_found", what, remedy=remedy, param="previous_response_id")
    return found


def _keeper(store: Responses, tenant: str, wanted: Asked, before: Stored | None) -> Keep:
    def keep(response: dict[str, Any], calls: list[Called], text: str) -> None:
        if not response["store"]:
            return
        message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
        if calls:
            message["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls
            ]
        new = wanted.messages[len(wanted.messages) - wanted.new :]
        chars = len(dump([*new, message, response]))
        store.put(tenant, Stored(response, (*wanted.messages, message), (before.chars if before else 0) + chars))

    return keep
