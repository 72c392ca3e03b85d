"""What a result does to the sequences: tokens appended, ``computed`` moved, prompts shared among samples."""

from __future__ import annotations

from kvist.cache.cache import Cache
from kvist.errors import PoolFull, StateError
from kvist.ids import SeqId
from kvist.sched.counters import Counters
from kvist.sched.flight import Flight, Row
from kvist.sched.request import Event, FinishReason
from kvist.sched.roster import Roster
from kvist.sched.sequence import Sequence
from kvist.sched.service import Service
from kvist.step import Sampled, StepResult

Drawn = dict[SeqId, list[Sampled]]


def drawn_by_sequence(flight: Flight, result: StepResult) -> Drawn:
    """The drawn tokens of each sequence, in order of index. Raises ``StateError`` unless they answer the plan.

    Sequences that failed have none.
    """
    plan = flight.plan
    if (result.step, result.epoch) != (plan.step, plan.epoch):
        raise StateError(
            f"result of step {result.step} (epoch {result.epoch}) while step {plan.step} (epoch {plan.epoch}) is out",
            remedy="commit results in order, each once",
        )
    failed = [f.seq for f in result.failed]
    strangers = set(failed) - {c.seq for c in plan.chunks} - {s.seq for s in plan.samples}
    if strangers or len(set(failed)) < len(failed):
        raise StateError(f"step {plan.step} was not to compute all of {failed[:8]}, which failed, or they failed twice")
    asked = [(s.seq, s.index) for s in plan.samples if s.seq not in failed]
    given = [(s.seq, s.index) for s in result.sampled]
    if asked != given:
        raise StateError(f"step {plan.step} asked for samples {asked[:8]}, the result has {given[:8]}")
    scored = [c.seq for c in plan.chunks if c.prompt_logprobs is not None and c.seq not in failed]
    if scored != [p.seq for p in result.prompt_logprobs]:
        raise StateError(f"step {plan.step} asked for prompt log-probabilities of {scored}, the result has others")
    drawn: Drawn = {}
    for sampled in result.sampled:
        drawn.setdefault(sampled.seq, []).append(sampled)
    return drawn


def reason_to_end(seq: Sequence) -> FinishReason | None:
    """Why ``seq`` ends with the token it has just drawn, if it does."""
    request = seq.request
    if seq.tokens[-1] in request.ending_ids and seq.output_tokens > seq.sampling.min_tokens:
        return "stop"
    return "length" if len(seq.tokens) >= seq.limit_tokens else None


def take_token(seq: Sequence, sampled: Sampled) -> Event:
    """Append one drawn token; the event has no ``usage`` yet."""
    index = seq.output_tokens
    assert sampled.index == index
    seq.tokens.append(sampled.token)
    if sampled.logprob is not None:
        seq.logprobs.append(sampled.logprob)
    seq.finish_reason = reason_to_end(seq)
    wanted = index == 0 and seq.request.prompt_logprobs is not None
    return Event(
        request=seq.request.id,
        seq=seq.id,
        sample=seq.sample,
        index=index,
        token=sampled.token,
        logprob=sampled.logprob,
        prompt_logprobs=tuple(seq.prompt_logprobs) if wanted else None,
        finish_reason=seq.finish_reason,
    )


class Commit:
    """Applies results to the sequences and the cache."""

    def __init__(
        self, cache: Cache, roster: Roster, counters: Counters, service: Service, *, max_sequences: int
    ) -> None:
        self._cache = cache
        self._roster = roster
        self._counters = counters
        self._service = service
        self._max_sequences = max_sequences

    def advance(self, row: Row, drawn: Drawn) -> list[Event]:
        """Move the row's sequence. Of drafted positions only those whose guesses were drawn are kept."""
        seq = row.seq
        events: list[Event] = []
        if seq.finish_reason is None:
            for i, sampled in enumerate(drawn.get(seq.id, ())):
                events.append(take_token(seq, sampled))
                agreed = i < len(row.drafts) and sampled.token == row.drafts[i]
                if seq.finish_reason is not None or not agreed:
                    break
        accepted = max(0, len(events) - 1)
        computed = row.end + accepted
        if seq.drafts:
            seq.drafts.clear()
        self._count(seq, row, computed, accepted, len(events))
        seq.computed = computed
        if computed > seq.seen_tokens:
            seq.seen_tokens = computed
        if computed < row.start + row.n_tokens:
            self._cache.truncate(seq.id, computed)
        self._cache.commit(seq.id, seq.tokens, computed)
        return events

    def _count(self, seq: Sequence, row: Row, computed: int, accepted: int, drawn: int) -> None:
        again = new_prompt = 0
        if row.start < seq.seen_tokens or row.start < seq.prompt_tokens:
            again = max(0, min(computed, seq.seen_tokens) - row.start)
            new_prompt = max(0, min(computed, seq.prompt_tokens) - max(row.start, seq.seen_tokens))
        self._service.charge(seq.request.tenant, new_prompt + drawn)
        seq.recomputed_tokens += again
        counters = self._counters
        counters.recomputed_tokens += again
        counters.computed_tokens += row.n_tokens
        counters.sampled_tokens += drawn
        counters.drafted_tokens += len(row.drafts)
        counters.accepted_drafts += accepted

    def spawn(self, parent: Sequence, child: Sequence, drawn: Drawn) -> Event | None:
        """``child`` draws its first token from ``parent``'s row, then forks its blocks, or queues when it cannot.

        It queues too when the parent has failed: what the parent computed is not to be shared.
        """
        parent.siblings.remove(child)
        if child.finish_reason is not None:
            return None
        child.wake()
        child.prompt_logprobs = list(parent.prompt_logprobs)
        event = take_token(child, drawn[child.id][0])
        self._counters.sampled_tokens += 1
        self._service.charge(child.request.tenant, 1)
        if child.finish_reason is not None:
            child.cached_tokens = child.prompt_tokens
            return event
        whole = parent.finish_reason != "error"
        if whole and len(self._roster.running) < self._max_sequences and self._fork(parent, child):
            self._roster.run(child)
        else:
            self._counters.late_forks += 1
            self._roster.wait(child)
        return event

    def _fork(self, parent: Sequence, child: Sequence) -> bool:
        try:
            self._cache.fork(parent.id, child.id)
        except PoolFull:
            return False
        child.computed = child.entered = child.seen_tokens = parent.computed
        child.cached_tokens = child.prompt_tokens
        child.admitted = True
        self._counters.forks += 1
        return True
