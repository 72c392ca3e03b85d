"""``POST /v1/chat/completions``: a conversation goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvist.errors import KvistError
from kvist.server.chat import Conversation, Ended
from kvist.server.desk import Desk
from kvist.server.openai.chat_schema import ChatRequest
from kvist.server.openai.constrain import grammar_of
from kvist.server.openai.sampling import job_of
from kvist.server.openai.spoken import MOST_CALLS, Shown, Spoken, opening
from kvist.server.openai.talk import ask_of, most_tokens, score_count, tool_choice
from kvist.server.openai.unknown import ignored
from kvist.server.openai.write import PROBLEMS, Frame, failed, head, kvist_fields, usage
from kvist.server.refuse import refusal_of
from kvist.server.served import Served
from kvist.server.shapes import error_body
from kvist.server.stream import EventStream, Json, event, unless_gone

PATH: Final = "/v1/chat/completions"


def router(desk: Desk) -> APIRouter:
    """The endpoint."""
    routes = APIRouter()

    @routes.post(PATH, responses=PROBLEMS)
    async def chat_completions(request: Request, ask: ChatRequest) -> Response:
        headers = ignored(ask, unsupported=("echo", "best_of", "truncate_prompt_tokens"))
        model = desk.check_model(ask.model)
        served = desk.service.served
        conversation = await _start(desk, ask, request, served)
        reply = _Reply(ask, model, served, conversation)
        if ask.stream:
            timeout_s = desk.config.write_timeout_s
            return EventStream(reply.events(), conversation.close, write_timeout_s=timeout_s, headers=headers)
        return Json(await unless_gone(request.receive, reply.whole(), conversation.close), headers=headers)

    return routes


async def _start(desk: Desk, ask: ChatRequest, request: Request, served: Served) -> Conversation:
    job = job_of(ask, request, max_tokens=most_tokens(ask), logprobs=score_count(ask), kind="chat")
    talk = ask_of(ask.messages, ask.tools, ask.chat_template_kwargs, ask.add_generation_prompt, job)
    choice = tool_choice(ask)
    grammar = await grammar_of(ask, served)
    parallel = ask.parallel_tool_calls is not False
    return await desk.chats.start(replace(talk, tool_choice=choice, parallel=parallel, grammar=grammar))


class _Reply:
    """One answer on its way."""

    def __init__(self, ask: ChatRequest, model: str, served: Served, conversation: Conversation) -> None:
        self._ask = ask
        self._conversation = conversation
        self._live = conversation.live
        self._model = model
        self._served = served
        self._kvist = {"kvist": kvist_fields([self._live])}
        job = self._live.job
        shown = Shown(
            scores=job.sampling.logprobs is not None,
            ids=bool(ask.return_token_ids),
            calls=MOST_CALLS if ask.parallel_tool_calls is not False else 1,
        )
        self._samples = [Spoken(i, shown, served.tokenizer, job) for i in range(job.n)]

    async def whole(self) -> dict[str, Any]:
        """The response. Raises what the engine says."""
        while events := await self._conversation.batch():
            for each in events:
                if isinstance(each, Ended) and each.finish.reason == "error":
                    raise failed(each.finish)
                self._samples[each.sample].take(each)
        return {
            **head("chat.completion", "chatcmpl", self._model, self._served),
            "choices": [sample.whole() for sample in self._samples],
            "usage": usage([self._live.bill()]),
            **self._prompt_ids(),
            **self._kvist,
        }

    def _prompt_ids(self) -> dict[str, Any]:
        return {"prompt_token_ids": list(self._live.job.prompt)} if self._ask.return_token_ids else {}

    async def events(self) -> AsyncIterator[bytes]:
        """The chunks."""
        start = head("chat.completion.chunk", "chatcmpl", self._model, self._served)
        frame = Frame(start, self._ask.stream_options, len(self._live.job.prompt))
        before = frame.opening([opening(s.index) for s in self._samples], {**self._prompt_ids(), **self._kvist})
        try:
            while events := await self._conversation.batch():
                chunks = [before]
                before = b""
                for each in events:
                    if isinstance(each, Ended) and each.finish.reason == "error":
                        raise failed(each.finish)
                    sample = self._samples[each.sample]
                    frame.add(sample.tokens(each))
                    piece = sample.piece(each)
                    if piece is not None:
                        chunks.append(frame.chunk(piece))
                if any(chunks):
                    yield b"".join(chunks)
            yield before + frame.closing(usage([self._live.bill()]), self._kvist)
        except KvistError as error:
            yield event(error_body(refusal_of(error), PATH))
