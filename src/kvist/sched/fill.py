"""The rows of the next step: who continues, who is admitted, and who gets what is left over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kvist.cache.cache import Cache
from kvist.errors import PoolFull
from kvist.sched.admission import Gate
from kvist.sched.budget import share
from kvist.sched.chooser import Chooser
from kvist.sched.counters import Counters
from kvist.sched.flight import Row, row_for
from kvist.sched.leaders import Leaders
from kvist.sched.lookup import Lookup
from kvist.sched.pace import Load, Pace
from kvist.sched.preempt import Room
from kvist.sched.restores import Restores
from kvist.sched.roster import Roster
from kvist.sched.sequence import Sequence, State
from kvist.sched.service import Service
from kvist.spec.layout import CacheLayout

NEWCOMERS: Final = 16
"""Candidates for which tokens are set aside in one step."""

TRIES: Final = 8
"""Admissions that may fail in one step: what a try costs, where one that needs luck costs ``LUCK``."""

LUCK: Final = 4


class Fill:
    """Makes rows. Running sequences come first, newcomers get what was set aside for them, then nothing is wasted."""

    def __init__(
        self,
        cache: Cache,
        layout: CacheLayout,
        roster: Roster,
        service: Service,
        counters: Counters,
        pace: Pace,
        lookup: Lookup,
        restores: Restores | None,
        *,
        budget: int,
        chunk_tokens: int,
        max_sequences: int,
        max_overtakes: int,
        give_up: Callable[[Sequence], None],
    ) -> None:
        """``give_up`` ends a sequence that the pool cannot hold even alone."""
        self._cache = cache
        self._roster = roster
        self._service = service
        self._counters = counters
        self._pace = pace
        self._restores = restores
        self._budget = budget
        self._chunk_tokens = chunk_tokens
        self._max_sequences = max_sequences
        self._give_up = give_up
        self._room = Room(cache, roster, counters)
        self._gate = Gate(cache, layout, roster, counters, restores, chunk_tokens=chunk_tokens)
        self._lookup = lookup
        self._leaders = Leaders(cache, roster, self._lookup, layout.span_tokens)
        self._chooser = Chooser(roster, service, lookup, self._leaders, restores, max_overtakes=max_overtakes)
        self.preempt = self._room.preempt

    def rows(self) -> list[Row]:
        """Chunks of the next step, their blocks taken."""
        running = [seq for seq in self._roster.running if seq.load is None]
        prompt_tokens = self._pace.prompt_tokens(self._budget, _load(running))
        self._look()
        newcomers = self._newcomers()
        lacking = [max(1, len(seq.tokens) - self._lookup.cached_tokens(seq)) for seq in newcomers]
        grants, asides = share(running, self._budget, self._chunk_tokens, lacking, prompt_tokens)
        preemptions = self._counters.preemptions
        rows = self._continue(running, grants)
        if self._counters.preemptions > preemptions:
            self._look()
        rest = self._rest(rows, prompt_tokens)
        rows += self._admit(rest, {seq.id: n for seq, n in zip(newcomers, asides, strict=True)})
        if self._roster.queues and not self._roster.running:
            first = next(self._chooser.candidates(), None)
            if first is not None:
                self._give_up(first)
        self._top_up(rows, self._rest(rows, prompt_tokens))
        return rows

    def _look(self) -> None:
        """Prepare to choose among those who wait."""
        self._gate.begin(self._counters.steps)
        if self._restores is not None:
            self._restores.begin()
        if self._roster.queues:
            self._lookup.begin(self._counters.steps)
            self._leaders.begin(self._counters.steps)
            self._chooser.begin()

    def _newcomers(self) -> list[Sequence]:
        """The first in order of those who could be admitted now."""
        found: list[Sequence] = []
        most = min(NEWCOMERS, self._max_sequences - len(self._roster.running))
        if most > 0 and self._roster.queues:
            for seq in self._chooser.candidates():
                if not self._gate.refused_lately(seq):
                    found.append(seq)
                    if len(found) == most:
                        break
        return found

    def _rest(self, rows: list[Row], prompt_tokens: int) -> int:
        """Tokens that newcomers and chunks may still take."""
        chunks = taken = 0
        for row in rows:
            chunks += row.chunk_tokens
            taken += row.n_tokens
        return min(self._budget - taken, prompt_tokens - chunks)

    def _continue(self, running: list[Sequence], grants: list[int]) -> list[Row]:
        rows: list[Row] = []
        line = list(running)
        for seq, granted in zip(running, grants, strict=True):
            if not granted or seq.state is not State.RUNNING:
                continue
            n_tokens = self._room.make(seq, granted, line)
            if n_tokens:
                rows.append(row_for(seq, n_tokens))
            elif seq.state is State.RUNNING and not self._loading:
                self._give_up(seq)
        return rows

    @property
    def _loading(self) -> bool:
        """True while blocks are being loaded: they come free, or can be taken, when that ends."""
        return self._restores is not None and self._restores.loading

    def _admit(self, rest: int, aside: dict[int, int]) -> list[Row]:
        """Newcomers, ``aside`` tokens for those named, the others from what is not set aside."""
        rows: list[Row] = []
        tries = TRIES
        while rest > 0 and tries > 0 and self._roster.queues and len(self._roster.running) < self._max_sequences:
            seq, n_tokens, tries = self._admit_one(rest, aside, tries)
            if seq is None:
                break
            if n_tokens:
                rows.append(row_for(seq, n_tokens))
                rest -= n_tokens
        return rows

    def _admit_one(self, rest: int, aside: dict[int, int], tries: int) -> tuple[Sequence | None, int, int]:
        """The first candidate that fits, what it computes (0: it is being loaded); and how many more may fail."""
        passed: list[Sequence] = []
        for seq in self._chooser.candidates():
            alone = not self._roster.running
            mine = aside.pop(seq.id, 0)
            most = rest if seq.turn.urgent else mine or rest - sum(aside.values())
            if most <= 0 and alone:
                most = 1
            if most <= 0:
                continue
            tried = alone or not self._gate.refused_lately(seq)
            price = LUCK if tried and self._gate.needs_luck(seq) else int(tried)
            careful = any(other.preemptions for other in passed)
            n_tokens = self._gate.admit(seq, min(most, rest), alone=alone, careful=careful) if tried else None
            if n_tokens is not None:
                self._service.pledge(seq.request.tenant, n_tokens)
                self._leaders.add(seq)
                self._chooser.admitted(seq)
                return seq, n_tokens, tries
            self._chooser.refused(seq)
            passed.append(seq)
            tries -= price
            if alone or tries <= 0:
                break
        return None, 0, tries

    def _top_up(self, rows: list[Row], rest: int) -> None:
        """What is left goes to those who run, in order, as far as there is room; nobody is preempted for it."""
        if rest <= 0:
            return
        places = {row.seq.id: i for i, row in enumerate(rows)}
        for seq in self._roster.running:
            if seq.load is not None:
                continue
            at = places.get(seq.id)
            if at is not None and rows[at].single and rows[at].n_tokens == 1 and not seq.drafts:
                continue
            got = 0 if at is None else rows[at].n_tokens
            n_tokens = got + min(rest, min(seq.lacking + len(seq.drafts), self._chunk_tokens) - got)
            if n_tokens <= got:
                continue
            try:
                self._cache.extend(seq.id, seq.computed + n_tokens)
            except PoolFull:
                continue
            rest -= n_tokens - got
            if at is None:
                rows.append(row_for(seq, n_tokens))
            else:
                rows[at] = row_for(seq, n_tokens)
            if not rest:
                return


def _load(running: list[Sequence]) -> Load | None:
    """What the next step continues; None when nobody waits for his next token."""
    singles = [seq for seq in running if seq.lacking == 1]
    if not any(seq.output_tokens for seq in singles):
        return None
    return Load(len(singles), sum(seq.computed for seq in singles))
