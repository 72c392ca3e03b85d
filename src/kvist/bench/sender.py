"""Sends one request and writes down what happened, whatever happened."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from kvist.bench.client import Client, clock
from kvist.bench.drive import Gate
from kvist.bench.optimum import Known, optimum_tokens
from kvist.bench.probe import Target, tokenize
from kvist.bench.record import INTERRUPTED, Answer, Record, Timeline
from kvist.bench.tokens import Prompt, Writer
from kvist.bench.wire import Failure, body
from kvist.bench.workload.base import Ask


class Sender:
    """One stage of a run (calibration, warm-up or the measurement): its writer, its books, its records."""

    def __init__(
        self, client: Client, target: Target, seed: str, gate: Gate, *, temperature: float, keep_answers: bool
    ) -> None:
        self.records: list[Record] = []
        self.start_s = clock()
        self._client = client
        self._target = target
        self._writer: Writer = target.writer(seed)
        self._gate = gate
        self._temperature = temperature
        self._keep_answers = keep_answers
        self._known = Known()
        self._refused = 0
        self._in_flight: set[Timeline] = set()

    def now_s(self) -> float:
        """Seconds since the stage began."""
        return clock() - self.start_s

    async def __call__(self, ask: Ask, due_s: float | None) -> Answer | None:
        """Send it. None when it failed; the record says how."""
        prompt = self._writer.prompt(ask.parts)
        shared = self._known.sent(prompt.key)
        due_s = self.now_s() if due_s is None else due_s
        line = Timeline(clock())
        fields = body(self._target.model, prompt.fields, ask.output_tokens, self._temperature, self._target.extras)
        self._enter(line)
        try:
            await self._client.stream(self._target.path, fields, line)
            answer = await self._answer(line)
        except Failure as failure:
            self._note(ask, prompt, shared, due_s, line, failure.kind, failure.message)
            if failure.kind == "refused" or failure.kind.startswith("http_"):
                self._known.withdrawn(prompt.key)
            self._watch(failure)
            return None
        except asyncio.CancelledError:
            self._note(ask, prompt, shared, due_s, line, INTERRUPTED, "stopped before its end")
            raise
        finally:
            self._in_flight.remove(line)
        self._refused = 0
        self._note(ask, prompt, shared, due_s, line)
        self._known.answered(prompt.key, self._writer.whole(prompt, answer))
        return answer

    def _enter(self, line: Timeline) -> None:
        """Books a request in flight; those that still wait for their first token are alone no longer."""
        line.alone = not self._in_flight
        for other in self._in_flight:
            other.alone = other.alone and other.first_s is not None
        self._in_flight.add(line)

    async def _answer(self, line: Timeline) -> Answer:
        """What was said, with ids where prompts are ids and later ones will hold it."""
        answer = line.answer()
        if not self._keep_answers or self._target.form == "text" or answer.token_ids is not None:
            return answer
        ids = await tokenize(self._client, self._target.model, answer.text) if answer.text else ()
        return replace(answer, token_ids=ids)

    def _watch(self, failure: Failure) -> None:
        """A server that refuses everything is gone: stop instead of failing a thousand times."""
        self._refused = self._refused + 1 if failure.kind == "refused" else 0
        if self._refused >= max(10, 2 * len(self._in_flight)):
            self._gate.close(f"the server is gone: the last {self._refused} connections were refused")

    def _note(
        self, ask: Ask, prompt: Prompt, shared: int, due_s: float, line: Timeline, error: str = "", message: str = ""
    ) -> None:
        prompt_tokens = line.prompt_tokens if line.prompt_tokens is not None else prompt.exact_tokens or 0
        length, by_now = self._writer.key_units(prompt.key), self._known.shared_with_others(prompt.key)
        optimum, knowable = (
            optimum_tokens(self._writer.shared_units(known), length, prompt_tokens) for known in (shared, by_now)
        )
        self.records.append(
            Record(
                name=ask.name,
                turn=ask.turn,
                role=ask.role,
                due_s=due_s,
                sent_s=line.sent_s - self.start_s,
                ttft_s=line.ttft_s,
                tpot_s=line.tpot_s,
                e2e_s=(line.end_s if line.end_s is not None else clock()) - line.sent_s,
                itl_s=tuple(line.gaps_s),
                prompt_tokens=prompt_tokens,
                output_tokens=line.counted_output_tokens,
                cached_tokens=line.cached_tokens,
                asked_output_tokens=ask.output_tokens,
                optimum_tokens=optimum,
                knowable_tokens=knowable,
                alone=line.alone,
                events=line.events,
                usage_reported=line.prompt_tokens is not None and line.output_tokens is not None,
                finish_reason=line.finish_reason,
                error=error,
                message=message,
            )
        )
