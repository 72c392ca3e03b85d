"""The engine's own thread: orders come in by a queue, what each step wrote goes out in one call.

Text is settled here, so that a stop string ends its sequence in the very step that completed it, and usage counts what
was kept. The thread sleeps while there is nothing to do. Nobody else touches the engine: whoever wants to look at it
sends a function (``call``).
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from kvist.engine.engine import Engine
from kvist.engine.writing import Writing
from kvist.errors import KvistError, StateError
from kvist.ids import SeqId
from kvist.sched.request import Request
from kvist.server.earlier import Earlier
from kvist.server.refuse import busy
from kvist.server.scribe import Parcel as Parcel
from kvist.server.scribe import Scribe
from kvist.server.served import Served

log = logging.getLogger("kvist.server")
T = TypeVar("T")
LEAST_FLUSH_S: Final = 5.0
"""What is on its way to the tiers has so long to arrive when the engine ends, whatever was asked for."""


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
    flush_s: float


class EngineLoop:
    """Owner of the engine while the server runs. ``deliver`` is called from this thread, once a step."""

    def __init__(
        self, served: Served, deliver: Callable[[list[Parcel]], None], on_death: Callable[[BaseException], None]
    ) -> None:
        self._served = served
        self._deliver = deliver
        self._on_death = on_death
        self._orders: queue.SimpleQueue[Work | _Abort | _Call | _Stop] = queue.SimpleQueue()
        self._open: dict[int, dict[SeqId, Writing]] = {}
        self._tickets: dict[SeqId, int] = {}
        self._out: list[Parcel] = []
        self._scribe = Scribe(self._open, self._tickets, self._out)
        self._stopping = False
        self._flush_s = LEAST_FLUSH_S
        self._taking = True
        self.earlier = Earlier()
        self._swap: _Call | None = None
        self._held: list[Work] = []
        self._thread = threading.Thread(target=self._run, name="kvist-engine", daemon=True)

    @property
    def served(self) -> Served:
        """What runs now."""
        return self._served

    @property
    def alive(self) -> bool:
        """False once the thread has ended, for whatever reason, and the tiers have what they are to keep."""
        return self._thread.is_alive()

    @property
    def taking(self) -> bool:
        """True while orders are carried out."""
        return self._taking and self.alive

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

    def stop(self, flush_s: float = LEAST_FLUSH_S) -> None:
        """End the thread; whatever is open ends with ``abort``. Then the tiers have ``flush_s`` to write."""
        self._orders.put(_Stop(max(flush_s, LEAST_FLUSH_S)))

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
            self._taking = False
            self._turn_away()
            self._let_go()
            self._turn_away()

    def _let_go(self) -> None:
        """The engine has ended: what the tiers are to keep is written, in the time there is."""
        places, engine = self._served.places, self._served.engine
        if places is None:
            return
        end_s = time.monotonic() + self._flush_s
        try:
            while self._stopping and not engine.idle and time.monotonic() < end_s:
                engine.step()
        except Exception:
            log.exception("what was not sent to the tiers yet is lost")
        try:
            if not places.close(max(0.0, end_s - time.monotonic())):
                log.warning("the tiers did not take everything within %g s: the rest is lost", self._flush_s)
        except Exception:
            log.exception("the tiers could not be closed")

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
                self._stopping, self._flush_s = True, order.flush_s
                for ticket in [*self._open, *(work.ticket for work in self._held)]:
                    self._abort(ticket)
                return

    def _turn_away(self) -> None:
        """Nobody works any more: what is still in the queue must not wait for ever."""
        if self._swap is not None:
            self._orders.put(self._swap)
            self._swap = None
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
        special = not work.show_special
        self._scribe.begin(work.ticket, seqs, self._served.tokenizer, request.prompt, work.stop, skip_special=special)

    def _abort(self, ticket: int) -> None:
        engine = self._served.engine
        if ticket in self._open:
            for seq in list(self._open[ticket]):
                for event in engine.abort(seq):
                    self._scribe.write(engine, event)
        elif any(work.ticket == ticket for work in self._held):
            self._held = [work for work in self._held if work.ticket != ticket]
            self._out.append((ticket, _stopped()))

    def _replace(self, served: Served) -> Served:
        self.earlier.add(self._served.engine.metrics())
        self._served = served
        return served

    def _step(self) -> None:
        engine = self._served.engine
        steps = engine.scheduler.counters.steps
        events = engine.step()
        if not events and engine.scheduler.counters.steps == steps and not engine.idle:
            raise StateError("sequences are alive but no step can be planned", remedy="report this: it is a bug")
        for event in events:
            self._scribe.write(engine, event)

    def _send(self) -> None:
        if self._out:
            out = list(self._out)
            self._out.clear()
            self._deliver(out)


def _answer(order: _Call) -> None:
    if not order.answer.set_running_or_notify_cancel():
        return  # nobody waits for it any more
    try:
        order.answer.set_result(order.run())
    except Exception as error:
        order.answer.set_exception(error)


def _stopped() -> KvistError:
    return busy("the engine has stopped", retry_after_s=5, status=503, code="not_ready")
