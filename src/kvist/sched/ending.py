"""How sequences end: the last event with its bill, the blocks given back, the executor told to forget."""

from __future__ import annotations

from dataclasses import replace

from kvist.cache.cache import Cache
from kvist.ids import SeqId
from kvist.sched.counters import Counters
from kvist.sched.request import Event, FinishReason
from kvist.sched.roster import Roster
from kvist.sched.sequence import Sequence, State


class Endings:
    """Ends sequences in two moves: ``end`` (or ``bill``) marks and reports, ``close`` gives back."""

    def __init__(self, cache: Cache, roster: Roster, counters: Counters) -> None:
        self._cache = cache
        self._roster = roster
        self._counters = counters
        self._forget: list[SeqId] = []

    def end(self, seq: Sequence, reason: FinishReason, error: str = "", *, of_request: bool = False) -> Event:
        """Mark the end of ``seq`` without a token, and say so."""
        seq.finish_reason = reason
        index = seq.output_tokens if seq.kept_tokens is None else seq.kept_tokens
        event = Event(
            seq.request.id, seq.id, seq.sample, index, finish_reason=reason, error=error, of_request=of_request
        )
        return self.bill(event, seq)

    def bill(self, event: Event, seq: Sequence) -> Event:
        """Add the usage to the last event of ``seq``; other events pass unchanged."""
        if event.finish_reason is None:
            return event
        if seq.state is State.RUNNING:
            seq.held_blocks = self._cache.held_blocks(seq.id)
        counter = f"finished_{event.finish_reason}"
        setattr(self._counters, counter, getattr(self._counters, counter) + 1)
        return replace(event, usage=seq.usage())

    def close(self, seq: Sequence, *, publish: bool = True) -> None:
        """Give back what ended ``seq`` holds. Samples that waited for its prompt get the next of them to wait for."""
        if seq.state is State.RUNNING:
            self._cache.release(seq.id, seq.tokens, seq.computed, publish=publish and seq.has_news)
        elif seq.state is State.PENDING:
            for other in self._roster.requests[seq.request.id]:
                if seq in other.siblings:
                    other.siblings.remove(seq)
        self._roster.drop(seq)
        if seq.kept_tokens is not None:
            del seq.tokens[seq.prompt_tokens + seq.kept_tokens :]
        if seq.known:
            self._forget.append(seq.id)
        heirs = [s for s in seq.siblings if s.finish_reason is None]
        if heirs:
            heirs[0].wake()
            heirs[0].siblings = heirs[1:]
            heirs[0].counts_lookup = seq.counts_lookup and not seq.admitted
            self._roster.wait(heirs[0])

    def take_forgotten(self) -> tuple[SeqId, ...]:
        """Ids the executor has not been told to forget yet."""
        forgotten, self._forget = tuple(self._forget), []
        return forgotten

    def forget_again(self, seqs: tuple[SeqId, ...]) -> None:
        """The plan that carried these ids was not done."""
        self._forget[:0] = seqs
