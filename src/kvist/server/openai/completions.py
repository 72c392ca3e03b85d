"""``POST /v1/completions``: plain text goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from kvist.errors import BadValue, KvistError
from kvist.server.chat import Chats
from kvist.server.desk import Desk
from kvist.server.job import Job
from kvist.server.openai.answers import Answers, submit_all
from kvist.server.openai.choices import Choice, make_choices
from kvist.server.openai.constrain import grammar_of
from kvist.server.openai.prompts import Prompt, prompts_of
from kvist.server.openai.sampling import job_of
from kvist.server.openai.schema import CompletionRequest
from kvist.server.openai.unknown import ignored
from kvist.server.openai.write import PROBLEMS, Frame, head, kvist_fields, usage
from kvist.server.refuse import refusal_of
from kvist.server.served import Served
from kvist.server.shapes import error_body
from kvist.server.stream import EventStream, Json, event, unless_gone

PATH: Final = "/v1/completions"
DEFAULT_MAX_TOKENS: Final = 16


def router(desk: Desk) -> APIRouter:
    """The endpoint."""
    routes = APIRouter()

    @routes.post(PATH, responses=PROBLEMS)
    async def completions(request: Request, ask: CompletionRequest) -> Response:
        headers = ignored(ask)
        model = desk.check_model(ask.model)
        served = desk.service.served
        job = await _job(ask, request, served, desk.chats)
        prompts = await prompts_of(ask, served)
        answers = Answers(submit_all(desk.service, [_with_prompt(job, p, i, ask) for i, p in enumerate(prompts)]))
        reply = _Reply(ask, model, served, prompts, answers)
        if ask.stream:
            timeout_s = desk.config.write_timeout_s
            return EventStream(reply.events(), answers.close, write_timeout_s=timeout_s, headers=headers)
        return Json(await unless_gone(request.receive, reply.whole(), answers.close), headers=headers)

    return routes


async def _job(ask: CompletionRequest, request: Request, served: Served, chats: Chats) -> Job:
    """The job without its prompt. A prompt that is only to be scored or cached draws one token that nobody sees."""
    if (ask.best_of or 1) > (ask.n or 1):
        raise BadValue("best_of", ask.best_of, f"at most n={ask.n or 1}", remedy="ask for n samples and choose")
    most = DEFAULT_MAX_TOKENS if ask.max_tokens is None else ask.max_tokens
    job = job_of(ask, request, max_tokens=max(1, most), logprobs=ask.logprobs, kind="completion")
    scores = ask.prompt_logprobs
    if ask.echo and ask.logprobs is not None:
        scores = max(ask.logprobs, scores or 0)
    grammar = await grammar_of(ask, served)
    if grammar is not None:
        await chats.check_grammar(job.tenant, grammar)
    sampling = replace(job.sampling, grammar=grammar)
    return replace(job, sampling=sampling, prompt_logprobs=scores)


def _with_prompt(job: Job, prompt: Prompt, index: int, ask: CompletionRequest) -> Job:
    """The job of one prompt. Without a seed every prompt draws on its own: equal ones are a way to ask for samples."""
    seed = job.sampling.seed if ask.seed is not None else job.sampling.seed + index * job.n
    return replace(job, prompt=prompt.ids, sampling=replace(job.sampling, seed=seed))


class _Reply:
    """One answer on its way."""

    def __init__(
        self, ask: CompletionRequest, model: str, served: Served, prompts: list[Prompt], answers: Answers
    ) -> None:
        self._options = ask.stream_options
        self._hidden = ask.max_tokens == 0
        self._answers = answers
        self._n = ask.n or 1
        self._truncated_tokens = sum(p.truncated_tokens for p in prompts)
        self._head = head("text_completion", "cmpl", model, served)
        self._kvist = {"kvist": kvist_fields(answers.lives)}
        jobs = [live.job for live in answers.lives]
        self._choices: list[Choice] = make_choices(ask, served.tokenizer, prompts, jobs)

    async def whole(self) -> dict[str, Any]:
        """The response. Raises what the engine says."""
        while news := await self._answers.batch():
            for prompt, delta in news:
                self._choices[prompt * self._n + delta.sample].take(delta)
        choices = [choice.whole() for choice in self._choices]
        return {**self._head, "choices": choices, "usage": self._usage(), **self._kvist}

    def _usage(self) -> dict[str, Any]:
        return usage(self._answers.bills(), truncated_tokens=self._truncated_tokens, hidden=self._hidden)

    async def events(self) -> AsyncIterator[bytes]:
        """The chunks."""
        lives = self._answers.lives
        frame = Frame(self._head, self._options, sum(len(live.job.prompt) for live in lives))
        extra = self._kvist
        try:
            while news := await self._answers.batch():
                chunks = []
                for prompt, delta in news:
                    frame.add(0 if self._hidden else len(delta.token_ids))
                    for piece in self._choices[prompt * self._n + delta.sample].pieces(delta):
                        chunks.append(frame.opening([piece], extra) if extra else frame.chunk(piece))
                        extra = {}
                if chunks:
                    yield b"".join(chunks)
            yield frame.closing(self._usage(), self._kvist)
        except KvistError as error:
            yield event(error_body(refusal_of(error), PATH))
