"""From the engine's events to what goes out: text cut at stop strings, tokens, scores, ends. On the engine's thread."""

from __future__ import annotations

from collections.abc import Sequence

from kvist.engine.engine import Engine
from kvist.engine.event import Event
from kvist.engine.writing import Writing
from kvist.errors import KvistError
from kvist.ids import SeqId
from kvist.server.job import Delta, Finish
from kvist.text.tokenizer import Tokenizer

Parcel = tuple[int, Delta | KvistError]
"""(ticket, what it gained, or why it was refused)."""


class Scribe:
    """Keeps the books of the engine's loop, which owns them.

    ``open``: what each ticket's sequences wrote so far; ``tickets``: whose a sequence is; ``out``: what was not sent.
    """

    def __init__(self, open: dict[int, dict[SeqId, Writing]], tickets: dict[SeqId, int], out: list[Parcel]) -> None:
        self._open = open
        self._tickets = tickets
        self._out = out

    def begin(
        self,
        ticket: int,
        seqs: Sequence[SeqId],
        tokenizer: Tokenizer,
        prompt: Sequence[int],
        stop: tuple[str, ...],
        *,
        skip_special: bool,
    ) -> None:
        """A request was queued: one sequence for each sample."""
        self._open[ticket] = {
            seq: Writing.start(tokenizer, prompt, stop, prompt=0, sample=i, skip_special=skip_special)
            for i, seq in enumerate(seqs)
        }
        self._tickets.update(dict.fromkeys(seqs, ticket))

    def write(self, engine: Engine, event: Event) -> None:
        """What an event brings goes out; a stop string ends its sequence. Events of nobody are passed over."""
        ticket = self._tickets.get(event.seq)
        if ticket is None:
            return
        writing = self._open[ticket][event.seq]
        text, stopped = _text(event, writing)
        if stopped and event.finish_reason is None:
            ended = engine.finish(event.seq, "stop", len(writing.token_ids))
            final = ended[0] if ended else event
        else:
            final = event
        finish = None
        if final.finish_reason is not None:
            text += writing.flush()
            finish = _finish(engine, final, writing, stopped=stopped)
            del self._open[ticket][event.seq], self._tickets[event.seq]
            if not self._open[ticket]:
                del self._open[ticket]
        tokens = () if event.token is None else (event.token,)
        scores = () if event.logprob is None else (event.logprob,)
        cached = _cached(engine, event, finish) if tokens and len(writing.token_ids) == 1 else None
        self._out.append((ticket, Delta(event.sample, text, tokens, scores, event.prompt_logprobs, cached, finish)))


def _text(event: Event, writing: Writing) -> tuple[str, bool]:
    if event.token is None:
        return "", False
    if event.finish_reason == "stop":
        writing.end_with(event.token)
        return "", False
    return writing.push(event.token)


def _cached(engine: Engine, event: Event, finish: Finish | None) -> int:
    """What of the prompt of a sequence that just drew its first token was in the cache."""
    if finish is not None:
        return finish.usage.cached_tokens
    seq = engine.scheduler.sequence(event.seq)
    assert seq is not None
    return seq.cached_tokens


def _finish(engine: Engine, event: Event, writing: Writing, *, stopped: bool) -> Finish:
    assert event.finish_reason is not None and event.usage is not None
    stop: str | int | None = writing.stops.matched
    if stop is None and event.finish_reason == "stop" and writing.token_ids:
        stop = writing.token_ids[-1]
    timeline = engine.timeline(event.seq)
    reason = "stop" if stopped else event.finish_reason
    return Finish(reason, event.usage, timeline, stop, event.error, event.of_request)
