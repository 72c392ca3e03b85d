"""The loop: plan, execute, commit. The same for a real model and for one on paper."""

from __future__ import annotations

from collections.abc import Iterator

from kvist.engine.event import Event, FinishReason, Timeline
from kvist.engine.metrics import Spent, snapshot
from kvist.engine.ports import Clock, Executor
from kvist.errors import StateError
from kvist.ids import RequestId, SeqId
from kvist.sched.request import Request
from kvist.sched.scheduler import Scheduler
from kvist.step import StepPlan


class Engine:
    """Takes requests, gives events. Owner of the timelines; not safe for use from two threads."""

    def __init__(self, scheduler: Scheduler, executor: Executor, clock: Clock, *, history: int = 1024) -> None:
        """``history``: timelines of ended sequences that are kept, the newest ones, and all since the last step."""
        self.scheduler = scheduler
        self.executor = executor
        self.spent = Spent()
        self._clock = clock
        self._history = history
        self._live: dict[SeqId, Timeline] = {}
        self._ended: dict[SeqId, Timeline] = {}

    @property
    def idle(self) -> bool:
        """True when nothing is left to do."""
        return self.scheduler.idle

    def add(self, request: Request) -> tuple[SeqId, ...]:
        """Queue a request; one id per sample. Raises what ``Scheduler.add`` raises."""
        self._forget_oldest()
        now = self._clock.now()
        seqs = self.scheduler.add(request)
        for seq in seqs:
            self._live[seq] = Timeline(request.id, seq, now, request.tenant, len(request.prompt))
        return seqs

    def step(self) -> list[Event]:
        """One step; the events it brought. When the executor raises, running sequences end with ``error``."""
        self._forget_oldest()
        start = self._clock.now()
        plan = self.scheduler.plan()
        planned = self._clock.now()
        self.spent.plan_s += planned - start
        if plan is None:
            return self._note(self.scheduler.take_events())
        self._note_admissions(plan, planned)
        for chunk in plan.chunks:
            self._note_match(self._live[chunk.seq])
        return self._note(self._carry_out(plan, planned))

    def _carry_out(self, plan: StepPlan, planned: float) -> list[Event]:
        try:
            result = self.executor.execute(plan)
            done = self._clock.now()
            events = self.scheduler.commit(result)
        except BaseException as error:
            if not self.scheduler.in_flight:
                raise  # the plan was done and answered: a bug of ours, not the executor's failure
            events = self.scheduler.fail(f"{type(error).__name__}: {error}")
            if isinstance(error, AssertionError) or not isinstance(error, Exception):
                self._note(events)
                raise  # a bug, or the user's interrupt: nobody may take it for an answer
            return events
        failed = {f.seq for f in result.failed}
        for chunk in plan.chunks:
            line = self._live.get(chunk.seq)  # None: ended from outside while the step ran
            whole = line is not None and chunk.end >= line.prompt_tokens and chunk.seq not in failed
            if line is not None and whole and line.computed_s is None:
                line.computed_s = done
        self.spent.execute_s += done - planned
        self.spent.commit_s += self._clock.now() - done
        return events

    def run(self) -> Iterator[Event]:
        """Events until idle. Raises ``StateError`` rather than spin when sequences are alive and none can move."""
        while not self.idle:
            steps = self.scheduler.counters.steps
            events = self.step()
            if not events and self.scheduler.counters.steps == steps and not self.idle:
                raise StateError("sequences are alive but no step can be planned", remedy="report this: it is a bug")
            yield from events

    def abort(self, target: RequestId | SeqId) -> list[Event]:
        """End a request or one sequence now; its last events. Nothing for what has ended already."""
        return self._note(self.scheduler.abort(target))

    def finish(self, seq: SeqId, reason: FinishReason, keep_tokens: int) -> list[Event]:
        """End a sequence that a stop string cut, keeping ``keep_tokens`` output tokens; its last event."""
        return self._note(self.scheduler.finish(seq, reason, keep_tokens))

    def timeline(self, seq: SeqId) -> Timeline:
        """The timeline of a live sequence or of one of the last that ended. Raises ``KeyError`` for others.

        Whatever a call of ``step``, ``abort`` or ``finish`` ended is there at least until the next ``step`` or ``add``.
        """
        return self._live[seq] if seq in self._live else self._ended[seq]

    def ended(self) -> tuple[Timeline, ...]:
        """Timelines of the last sequences that ended, in order of ending."""
        return tuple(self._ended.values())

    def metrics(self) -> dict[str, float]:
        """Every counter, gauge and second by name."""
        return snapshot(self.scheduler, self.spent, self.executor.counters)

    def _note_admissions(self, plan: StepPlan, planned: float) -> None:
        """A sample that draws from another's chunk was admitted with it: that prompt was computed for both."""
        rows = {sample.seq: plan.chunks[sample.chunk].seq for sample in plan.samples}
        for new in plan.new:
            parent = rows.get(new.seq, new.seq)
            self._live[new.seq].admitted_s = planned if parent == new.seq else self._live[parent].admitted_s

    def _note_match(self, line: Timeline) -> None:
        if line.matched is None:
            seq = self.scheduler.sequence(line.seq)
            if seq is not None:
                line.matched, line.led, line.choice = seq.match, seq.led, seq.choice

    def _note(self, events: list[Event]) -> list[Event]:
        if events:
            now = self._clock.now()
            for event in events:
                line = self._live[event.seq]
                if event.token is not None and line.first_token_s is None:
                    line.first_token_s = now
                    line.computed_s = now if line.computed_s is None else line.computed_s
                if event.finish_reason is not None:
                    self._end(line, event, now)
        return events

    def _end(self, line: Timeline, event: Event, now: float) -> None:
        layout = self.scheduler.layout
        line.done_s = now
        line.finish_reason = event.finish_reason
        line.usage = event.usage
        if event.usage is not None:
            line.recomputed = event.usage.recomputed_tokens
            line.held_bytes = event.usage.held_blocks * layout.block_bytes
            line.layout_bytes = layout.bytes_for(event.usage.computed_tokens) if event.usage.held_blocks else 0
        self._ended[line.seq] = self._live.pop(line.seq)

    def _forget_oldest(self) -> None:
        """Not when they end: whoever reads the events of one call asks for all their timelines after it."""
        while len(self._ended) > self._history:
            del self._ended[next(iter(self._ended))]
