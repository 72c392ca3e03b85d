"""Which tokens are computed next. No phases: every step lets ``computed`` catch up with ``len(tokens)``.

The region of a sequence's tokens, half-open::

    [0, computed)                 in the cache
    [computed, computed + n)      the chunk of this step, n from the budget
    [.., len(tokens))             later chunks
    [len(tokens), + drafts)       guesses, computed with the last chunk and kept as far as they are drawn

A chunk that reaches ``len(tokens)`` draws the next token. A new prompt, a prefix hit, the rest of a long prompt, one
more output token and a sequence that comes back from preemption differ in ``computed`` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvist.cache.cache import Cache
from kvist.errors import BadValue, StateError
from kvist.ids import RequestId, SeqId
from kvist.sched.answers import take_answers
from kvist.sched.carry import Carry, Tiers
from kvist.sched.commit import Commit, drawn_by_sequence
from kvist.sched.counters import Counters
from kvist.sched.ending import Endings
from kvist.sched.fill import Fill
from kvist.sched.flight import Flight, Row, write_plan
from kvist.sched.landing import Landing
from kvist.sched.limits import Limits
from kvist.sched.lookup import Lookup
from kvist.sched.order.base import Order
from kvist.sched.pace import Pace
from kvist.sched.request import Event, FinishReason, Request
from kvist.sched.restores import Restores
from kvist.sched.roster import Roster
from kvist.sched.sequence import Sequence, State
from kvist.sched.service import Service
from kvist.spec.layout import CacheLayout
from kvist.step import StepPlan, StepResult


class Scheduler:
    """Owner of all sequences. ``plan`` decides a step, ``commit`` learns from its result, ``fail`` that there is none.

    One plan is out at a time. Sequences may be aborted or finished at any moment; while a plan is out, their part of
    the result is ignored and their blocks return with it.
    """

    def __init__(
        self,
        cache: Cache,
        layout: CacheLayout,
        *,
        token_budget: int,
        max_sequences: int,
        context_tokens: int,
        policy: Order,
        chunk_tokens: int | None = None,
        itl_slo: str = "off",
        weights: Mapping[str, float] | None = None,
        max_overtakes: int = 32,
        tiers: Tiers | None = None,
    ) -> None:
        """``token_budget`` bounds the tokens of a step, ``chunk_tokens`` those of one sequence (None: the budget).

        ``itl_slo`` bounds a step that continues somebody (``pace.read_slo``), ``weights`` are the tenants' shares (1
        for those not named), ``max_overtakes`` the admissions that may go past a sequence that does not fit.
        ``tiers``: what hits may be loaded from (None: nothing). Raises ``BadValue``.
        """
        chunk_tokens = token_budget if chunk_tokens is None else chunk_tokens
        for name, value in (
            ("token_budget", token_budget),
            ("max_sequences", max_sequences),
            ("context_tokens", context_tokens),
            ("chunk_tokens", chunk_tokens),
            ("max_overtakes", max_overtakes),
        ):
            if value < 1:
                raise BadValue(name, value, "a count >= 1")
        self.cache = cache
        self.layout = layout
        self.counters = Counters()
        self.limits = Limits(layout, total_blocks=cache.total_blocks, context_tokens=context_tokens)
        self._budget = token_budget
        self.pace = Pace(itl_slo)
        self._service = Service(weights or {})
        self._roster = Roster(policy, self._service)
        self._commit = Commit(cache, self._roster, self.counters, self._service, max_sequences=max_sequences)
        self._endings = Endings(cache, self._roster, self.counters)
        self.carry = Carry()
        lookup = Lookup(cache)
        self.restores: Restores | None = None
        if tiers is not None:
            self.restores = Restores(
                cache,
                self._roster,
                self.counters,
                self._endings,
                lookup,
                self.carry,
                tiers,
                block_bytes=layout.block_bytes,
                span_tokens=layout.span_tokens,
                max_sequences=max_sequences,
            )
        self._fill = Fill(
            cache,
            layout,
            self._roster,
            self._service,
            self.counters,
            self.pace,
            lookup,
            self.restores,
            budget=token_budget,
            chunk_tokens=min(chunk_tokens, token_budget),
            max_sequences=max_sequences,
            max_overtakes=max_overtakes,
            give_up=self._give_up,
        )
        self._flight: Flight | None = None
        self._outbox: list[Event] = []
        self._step = 0
        self._next_seq = 0

    @property
    def idle(self) -> bool:
        """True when no sequence is alive, every event was taken, and the tiers were told everything and have obeyed."""
        carry, cache = self.carry, self.cache
        busy = self._roster.live or self._outbox or self._flight
        return not (busy or carry.unsent or carry.dropping or cache.unsent)

    @property
    def in_flight(self) -> bool:
        """True between ``plan`` and ``commit`` or ``fail``."""
        return self._flight is not None

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        """The queue, in order. To look at."""
        return tuple(self._roster.waiting)

    def waiting_by_reason(self) -> dict[str, int]:
        """How many wait for blocks, for somebody who computes their prefix, for their turn or budget."""
        return self._roster.waiting_by_reason()

    @property
    def running(self) -> tuple[Sequence, ...]:
        """The running, in order. To look at."""
        return tuple(self._roster.running)

    def service(self) -> dict[str, int]:
        """Prompt tokens computed and output tokens drawn for each tenant (those that left long ago are forgotten)."""
        return self._service.totals()

    def sequence(self, seq: SeqId) -> Sequence | None:
        """The live sequence of that id. To look at."""
        return self._roster.live.get(seq)

    def add(self, request: Request) -> tuple[SeqId, ...]:
        """Queue a request; one id per sample.

        Raises ``PromptTooLong``, ``PoolTooSmall`` or ``BadValue`` (an id that is alive), with nothing queued.
        """
        if request.id in self._roster.requests:
            raise BadValue("id", request.id, "a request id that is not alive", remedy="give each request its own id")
        limit = self.limits.limit_tokens(request)
        first = self._next_seq
        family = [
            Sequence(
                id=SeqId(first + i),
                request=request,
                sample=i,
                arrival=self.counters.requests,
                sampling=replace(request.sampling, seed=request.sampling.seed + i) if i else request.sampling,
                limit_tokens=limit,
                tokens=[],
            )
            for i in range(request.n)
        ]
        family[0].wake()
        self._next_seq += request.n
        family[0].siblings = family[1:]
        family[0].counts_lookup = True
        self._roster.enter(family)
        self.counters.requests += 1
        self.counters.sequences += request.n
        return tuple(seq.id for seq in family)

    # --- a step ---------------------------------------------------------------------------------------------------

    def plan(self) -> StepPlan | None:
        """The next step; None when there is nothing to compute. What it takes from the pool is taken."""
        if self._flight is not None:
            raise StateError(f"step {self._flight.plan.step} is still out", remedy="commit its result, or call fail()")
        rows = self._fill.rows()
        post = self.carry.post(self.cache, quiet=not rows)
        if not (rows or post.saves or post.drops or post.finds or post.loads or post.cancels or post.wait_s):
            return None
        plan = self._write(rows, post)
        self._flight = Flight(plan, rows)
        return plan

    def _write(self, rows: list[Row], post: StepPlan) -> StepPlan:
        self._step += 1
        counters = self.counters
        counters.steps += 1
        counters.chunks += len(rows)
        counters.mixed_steps += 0 < sum(row.continues for row in rows) < len(rows)
        return write_plan(self._step, rows, self.cache.drain(), self._endings.take_forgotten(), post)

    def commit(self, result: StepResult) -> list[Event]:
        """Apply the result of the plan that is out. Raises ``StateError``, nothing changed, when it is no answer."""
        if self._flight is None:
            raise StateError(f"no plan is out, yet a result of step {result.step} came")
        landing = Landing(self._commit, self._endings, drawn_by_sequence(self._flight, result), result.failed)
        flight, self._flight = self._flight, None
        for logprobs in result.prompt_logprobs:
            self._roster.live[logprobs.seq].note_prompt_logprobs(logprobs.start, logprobs.items)
        self._service.settle()
        self._learn(flight, result.seconds)
        if self.restores is not None:
            take_answers(result, self.restores, self.carry, self.counters, self.cache)
        events = self.take_events()
        for row in flight.rows:
            events += landing.land(row)
        return events

    def _learn(self, flight: Flight, seconds: float) -> None:
        chunk_tokens = sum(row.chunk_tokens for row in flight.rows)
        self.pace.learn(flight.load, chunk_tokens=chunk_tokens, seconds=seconds)
        if self.restores is not None and chunk_tokens:
            pairs = sum(row.chunk_tokens * (row.start + row.n_tokens / 2) for row in flight.rows if not row.single)
            beside_s = self.pace.decode_step_s if flight.load.sequences else 0.0
            self.restores.rates.computed(chunk_tokens, pairs, seconds - beside_s)
            for row in flight.rows:
                self.restores.computed(row.seq, row.start, row.end, seconds)

    def fail(self, error: str) -> list[Event]:
        """The plan that is out was not done: what runs ends with ``error``, its blocks return; what waits goes on."""
        if self._flight is None:
            raise StateError("no plan is out that could have failed")
        flight, self._flight = self._flight, None
        self._endings.forget_again(flight.plan.forget)
        self._service.settle()
        self.counters.failures += 1
        events = self.take_events()
        touched = [seq for row in flight.rows for seq in row.members]
        touched += [seq for seq in self._roster.running if seq not in touched and seq.load is None]
        events += [self._endings.end(seq, "error", error) for seq in touched if seq.finish_reason is None]
        for seq in touched:
            self._endings.close(seq, publish=False)
        return events

    def take_events(self) -> list[Event]:
        """Events that no result brought (a sequence that the pool could not hold)."""
        events, self._outbox = self._outbox, []
        return events

    # --- from outside ---------------------------------------------------------------------------------------------

    def abort(self, target: RequestId | SeqId) -> list[Event]:
        """End a request (all its samples) or one sequence. Unknown or ended ones give no event."""
        if isinstance(target, str):
            family = list(self._roster.requests.get(target, ()))
        else:
            found = self._roster.live.get(target)
            family = [found] if found else []
        return [self._stop(seq, "abort") for seq in family if seq.finish_reason is None]

    def finish(self, seq: SeqId, reason: FinishReason, keep_tokens: int) -> list[Event]:
        """End a sequence from above (a stop string was seen), keeping its first ``keep_tokens`` output tokens."""
        found = self._roster.live.get(seq)
        if found is None or found.finish_reason is not None:
            return []
        if not 0 <= keep_tokens <= found.output_tokens:
            raise BadValue("keep_tokens", keep_tokens, f"a count in [0, {found.output_tokens}]")
        found.kept_tokens = keep_tokens
        return [self._stop(found, reason)]

    def reset(self, tenant: str | None = None) -> tuple[int, int | None]:
        """Forget what is cached of a tenant (None: of all), in the tiers too; what runs keeps its blocks.

        Gives the blocks freed, and the number under which ``carry.dropped`` will say what became of the tiers' part
        (None: there are no tiers).
        """
        freed = self.cache.reset(tenant)
        if self.restores is None:
            return freed, None
        self.restores.void(tenant)
        return freed, self.carry.drop(tenant)

    def preempt(self, seq: SeqId) -> bool:
        """Send a running sequence back to the queue, between steps; False when it does not run."""
        found = self._roster.live.get(seq)
        if self._flight is not None or found is None or found.state is not State.RUNNING or found.load is not None:
            return False
        self._fill.preempt(found)
        return True

    def propose(self, seq: SeqId, drafts: tuple[int, ...]) -> bool:
        """Guess the tokens that follow. The executor must verify drafts; a guess is kept when that very token is drawn.

        False when the sequence does not run, or samples wait to fork from it. Raises ``StateError`` for layouts with
        recurrent state: what was computed for a wrong guess could not be taken back.
        """
        if self.layout.state_bytes:
            raise StateError("drafts need a cache that can roll back; this model keeps recurrent state")
        found = self._roster.live.get(seq)
        if self._flight is not None or found is None or found.state is not State.RUNNING or found.siblings:
            return False
        found.drafts = list(drafts[: max(0, found.limit_tokens - len(found.tokens) - 1)])
        return True

    # --- endings --------------------------------------------------------------------------------------------------

    def _stop(self, seq: Sequence, reason: FinishReason) -> Event:
        """End ``seq`` now; its blocks return now, or with the result when the plan that is out touches it."""
        event = self._endings.end(seq, reason)
        if self.restores is not None:
            self.restores.forget(seq)
            self.restores.abandon(seq)
            if seq.load is not None:
                return event
        if self._flight is None or not any(seq in row.members for row in self._flight.rows):
            self._endings.close(seq)
        return event

    def _give_up(self, seq: Sequence) -> None:
        """Even alone, the pool cannot hold one more token of ``seq``."""
        if self.restores is not None:
            self.restores.forget(seq)
        if seq.output_tokens:
            self._outbox.append(self._endings.end(seq, "length"))
        else:
            total = self.cache.total_blocks
            self._outbox.append(self._endings.end(seq, "error", f"the pool of {total} blocks cannot hold the prompt"))
        self._endings.close(seq)
