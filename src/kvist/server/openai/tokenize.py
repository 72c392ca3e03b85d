"""``POST /tokenize`` and ``POST /detokenize``: exactly the ids that a request would have."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvist.errors import BadValue
from kvist.server.desk import Desk, tenant_of
from kvist.server.job import Job
from kvist.server.openai.chat_schema import TokenizeRequest
from kvist.server.openai.logprobs import token_name
from kvist.server.openai.prompts import LONG_CHARS, MOST_CUT_CHARS, encode_text
from kvist.server.openai.schema import DetokenizeRequest
from kvist.server.openai.talk import ask_of
from kvist.server.openai.unknown import ignored
from kvist.server.openai.write import PROBLEMS
from kvist.server.stream import Json


def router(desk: Desk) -> APIRouter:
    """Both endpoints."""
    routes = APIRouter()

    @routes.post("/tokenize", responses=PROBLEMS)
    async def tokenize(request: Request, ask: TokenizeRequest) -> Response:
        headers = ignored(ask)
        desk.check_model(ask.model)
        served = desk.service.served
        ids = await ids_of(desk, ask, Job((), tenant=tenant_of(request)))
        body: dict[str, Any] = {"count": len(ids), "max_model_len": served.context_tokens, "tokens": ids}
        if ask.return_token_strs:
            body["token_strs"] = [token_name(served.tokenizer, token) for token in ids]
        return Json(body, headers=headers)

    @routes.post("/detokenize", responses=PROBLEMS)
    async def detokenize(ask: DetokenizeRequest) -> Response:
        headers = ignored(ask)
        desk.check_model(ask.model)
        served = desk.service.served
        for token in ask.tokens:
            if token >= served.vocab:
                raise BadValue("tokens", token, f"token ids in [0, {served.vocab})")
        decode = served.tokenizer.decode
        text = await asyncio.to_thread(decode, ask.tokens, skip_special=False)
        return Json({"prompt": text}, headers=headers)

    return routes


async def ids_of(desk: Desk, ask: TokenizeRequest, job: Job) -> list[int]:
    """Ids of a text or of a conversation. Raises ``BadValue`` and what ``Chats.encode`` raises."""
    if (ask.prompt is None) == (ask.messages is None):
        raise BadValue("prompt", "...", "either prompt or messages")
    if ask.messages is not None:
        talk = ask_of(ask.messages, ask.tools, ask.chat_template_kwargs, ask.add_generation_prompt, job)
        return list((await desk.chats.encode(talk)).ids)
    assert ask.prompt is not None
    how = {"add_special": ask.add_special_tokens, "parse_special": ask.parse_special}
    if len(ask.prompt) > MOST_CUT_CHARS:
        raise BadValue("prompt", f"{len(ask.prompt)} characters", f"at most {MOST_CUT_CHARS} characters")
    tokenizer = desk.service.served.tokenizer
    if len(ask.prompt) > LONG_CHARS:
        return await asyncio.to_thread(encode_text, tokenizer.twin, ask.prompt, **how)
    return encode_text(tokenizer, ask.prompt, **how)
