"""The engine's own thread: orders come in by a queue, what each step wrote goes out in one call.

Text is settled here, so that a stop string ends its sequence in the very step that completed it, and usage counts what
was kept. The thread sleeps while there is nothing to do. Nobody else touches the engine: whoever wants to look at it
sends a function (``call``).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from kvist.engine.engine import Engine
from kvist.engine.event import Event
from kvist.engine.writing import Writing
from kvist.errors import KvistError, StateError
from kvist.ids import SeqId
from kvist.sched.request import Request
from kvist.server.job import Delta, Finish
from kvist.server.refuse import busy
from kvist.server.served import Served

T = TypeVar("T")
Parcel = tuple[int, Delta | KvistError]
"""(ticket, what it gained, or why it was refused)."""


@dataclass(frozen=True, slots=True)
class Work:
    """A request, the ticket under which its answer goes out, and how its text is cut.

    ``served`` is what its prompt was made for.
    """

    ticket: int
    request: Request
    served: Served
    stop: tuple[str, ...] = ()
    show_special: bool = False


@dataclass(frozen=True, slots=True)
class _Abort:
    ticket: int


@dataclass(frozen=True, slots=True)
class _Call:
    run: Callable[[], Any]
    answer: Future[Any]
    when_idle: bool = False


@dataclass(frozen=True, slots=True)
class _Stop:
    pass


@dataclass(slots=True)
class _Open:
    """A ticket being served."""

    seqs: dict[SeqId, Writing] = field(default_factory=dict)


STOP: Final = _Stop()


class EngineLoop:
    """Owner of the engine while the server runs. ``deliver`` is called from this thread, once a step."""

    def __init__(
        self, served: Served, deliver: Callable[[list[Parcel]], None], on_death: Callable[[BaseException], None]
    ) -> None:
        self._served = served
        self._deliver = deliver
        self._on_death = on_death
        self._orders: queue.SimpleQueue[Work | _Abort | _Call | _Stop] = queue.SimpleQueue()
        self._open: dict[int, _Open] = {}
        self._tickets: dict[SeqId, int] = {}
        self._out: list[Parcel] = []
        self._stopping = False
        self._swap: _Call | None = None
        self._held: list[Work] = []
        self._thread = threading.Thread(target=self._run, name="kvist-engine", daemon=True)

    @property
    def served(self) -> Served:
        """What runs now."""
        return self._served

    @property
    def alive(self) -> bool:
        """False once the thread has ended, for whatever reason."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def submit(self, work: Work) -> None:
        """Queue a request."""
        self._orders.put(work)

    def abort(self, ticket: int) -> None:
        """End a request now; its samples end with ``abort``. Nothing for one that has ended."""
        self._orders.put(_Abort(ticket))

    def call(self, run: Callable[[Engine], T]) -> Future[T]:
        """Run a function on the engine between two steps."""
        answer: Future[T] = Future()
        self._orders.put(_Call(lambda: run(self._served.engine), answer))
        return answer

    def swap(self, load: Callable[[], Served]) -> Future[Served]:
        """Serve something else. What runs ends first, on what it began with; what comes later waits for ``load``.

        Meanwhile requests can be aborted and looked at as always. A second swap before the first was done replaces it.
        """
        answer: Future[Served] = Future()
        self._orders.put(_Call(lambda: self._replace(load()), answer, when_idle=True))
        return answer

    def stop(self) -> None:
        """End the thread; whatever is open ends with ``abort``."""
        self._orders.put(STOP)

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end."""
        self._thread.join(timeout_s)

    # --- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._obey()
                if not self._served.engine.idle:
                    self._step()
                elif self._swap is not None and not self._stopping:
                    self._change(self._swap)
                self._send()
        except BaseException as error:  # a bug of ours: nobody may wait for ever because of it
            self._on_death(error)
        finally:
            self._turn_away()

    def _obey(self) -> None:
        """Carry out the orders that came; wait for one when there is nothing to do."""
        while True:
            busy = self._out or self._swap is not None or not self._served.engine.idle
            try:
                order = self._orders.get(block=not busy)
            except queue.Empty:
                return
            if isinstance(order, Work):
                self._held.append(order) if self._swap is not None else self._add(order)
            elif isinstance(order, _Abort):
                self._abort(order.ticket)
            elif isinstance(order, _Call) and order.when_idle:
                self._swap = order
            elif isinstance(order, _Call):
                _answer(order)
            elif isinstance(order, _Stop):
                self._stopping = True
                for ticket in [*self._open, *(work.ticket for work in self._held)]:
                    self._abort(ticket)
                return

    def _turn_away(self) -> None:
        """Nobody works any more: what is still in the queue must not wait for ever."""
        if self._swap is not None:
            self._orders.put(self._swap)
        while not self._orders.empty():
            order = self._orders.get()
            if isinstance(order, Work):
                self._out.append((order.ticket, _stopped()))
            elif isinstance(order, _Call) and order.answer.set_running_or_notify_cancel():
                order.answer.set_exception(_stopped())
        self._send()

    def _change(self, order: _Call) -> None:
        """Serve something else, then those who waited for it."""
        self._swap = None
        _answer(order)
        held, self._held = self._held, []
        for work in held:
            self._add(work)

    def _add(self, work: Work) -> None:
        engine, request = self._served.engine, work.request
        try:
            if not self._served.reads_like(work.served):
                what = "the weights were changed while the request waited, and its prompt was made for the old ones"
                raise busy(what, retry_after_s=1, status=503, code="weights_changed")
            seqs = engine.add(request)
        except KvistError as error:
            self._out.append((work.ticket, error))
            return
        tokenizer, special = self._served.tokenizer, not work.show_special
        self._open[work.ticket] = _Open(
            {
                seq: Writing.start(tokenizer, request.prompt, work.stop, prompt=0, sample=i, skip_special=special)
                for i, seq in enumerate(seqs)
            }
        )
        self._tickets |= dict.fromkeys(seqs, work.ticket)

    def _abort(self, ticket: int) -> None:
        if ticket in self._open:
            for seq in list(self._open[ticket].seqs):
                for event in self._served.engine.abort(seq):
                    self._write(event)
        elif any(work.ticket == ticket for work in self._held):
            self._held = [work for work in self._held if work.ticket != ticket]
            self._out.append((ticket, _stopped()))

    def _replace(self, served: Served) -> Served:
        self._served = served
        return served

    def _step(self) -> None:
        engine = self._served.engine
        steps = engine.scheduler.counters.steps
        events = engine.step()
        if not events and engine.scheduler.counters.steps == steps:
            raise StateError("sequences are alive but no step can be planned", remedy="report this: it is a bug")
        for event in events:
            self._write(event)

    def _send(self) -> None:
        if self._out:
            out, self._out = self._out, []
            self._deliver(out)

    def _write(self, event: Event) -> None:
        ticket = self._tickets.get(event.seq)
        if ticket is None:
            return
        writing = self._open[ticket].seqs[event.seq]
        text, stopped = self._text(event, writing)
        if stopped and event.finish_reason is None:
            ended = self._served.engine.finish(event.seq, "stop", len(writing.token_ids))
            final = ended[0] if ended else event
        else:
            final = event
        finish = None
        if final.finish_reason is not None:
            text += writing.flush()
            finish = self._finish(final, writing, stopped=stopped)
            del self._open[ticket].seqs[event.seq], self._tickets[event.seq]
            if not self._open[ticket].seqs:
                del self._open[ticket]
        tokens = () if event.token is None else (event.token,)
        scores = () if event.logprob is None else (event.logprob,)
        cached = self._cached(event, finish) if tokens and len(writing.token_ids) == 1 else None
        self._out.append((ticket, Delta(event.sample, text, tokens, scores, event.prompt_logprobs, cached, finish)))

    def _text(self, event: Event, writing: Writing) -> tuple[str, bool]:
        if event.token is None:
            return "", False
        if event.finish_reason == "stop":
            writing.end_with(event.token)
            return "", False
        return writing.push(event.token)

    def _cached(self, event: Event, finish: Finish | None) -> int:
        """What of the prompt of a sequence that just drew its first token was in the cache."""
        if finish is not None:
            return finish.usage.cached_tokens
        seq = self._served.engine.scheduler.sequence(event.seq)
        assert seq is not None
        return seq.cached_tokens

    def _finish(self, event: Event, writing: Writing, *, stopped: bool) -> Finish:
        assert event.finish_reason is not None and event.usage is not None
        stop: str | int | None = writing.stops.matched
        if stop is None and event.finish_reason == "stop" and writing.token_ids:
            stop = writing.token_ids[-1]
        timeline = self._served.engine.timeline(event.seq)
        reason = "stop" if stopped else event.finish_reason
        return Finish(reason, event.usage, timeline, stop, event.error, event.of_request)


def _answer(order: _Call) -> None:
    if not order.answer.set_running_or_notify_cancel():
        return  # nobody waits for it any more
    try:
        order.answer.set_result(order.run())
    except Exception as error:
        order.answer.set_exception(error)


def _stopped() -> KvistError:
    return busy("the engine has stopped", retry_after_s=5, status=503, code="not_ready")
