"""The gate: may a sequence that waits start, and with how many tokens."""

from __future__ import annotations

from typing import Final

from kvist.cache.cache import Cache, Match
from kvist.errors import PoolFull
from kvist.sched.choice import Choice
from kvist.sched.counters import Counters
from kvist.sched.restores import Restores
from kvist.sched.roster import Roster
from kvist.sched.sequence import Sequence
from kvist.spec.layout import CacheLayout

RETRY_STEPS: Final = 8
"""Who did not fit is tried again when that may have changed, or after this many steps (each time twice as many)."""

MOST_DOUBLINGS: Final = 3


class Gate:
    """Admits sequences. A newcomer starts when its prompt fits beside the prompts of those that run.

    A sequence that was preempted starts again only when everything it may ever need is available, together with
    everything that those before it in order (and those preempted before) may ever need: it is not thrown out twice
    for the same reason. Nor by somebody who should have started before it: who goes before a preempted one that runs,
    unless by a higher priority in the same tenant, starts only when that still holds. And a newcomer that goes past one
    that waits starts only when everything it and all others may ever need is available. Where order does not last
    (``Roster.entangled``) everybody counts as going before. When nothing runs, the first candidate starts whatever the
    count says.
    """

    def __init__(
        self,
        cache: Cache,
        layout: CacheLayout,
        roster: Roster,
        counters: Counters,
        restores: Restores | None,
        *,
        chunk_tokens: int,
    ) -> None:
        self._cache = cache
        self._layout = layout
        self._roster = roster
        self._counters = counters
        self._restores = restores
        self._chunk_tokens = chunk_tokens
        self._step = 0
        self._spare: int | None = None

    def begin(self, step: int) -> None:
        """A new plan, or blocks changed hands."""
        self._step = step
        self._spare = None

    def refused_lately(self, seq: Sequence) -> bool:
        """True when ``seq`` was tried not long ago and nothing says that it would fit now."""
        turn = seq.turn
        pause = RETRY_STEPS << min(turn.tries - 1, MOST_DOUBLINGS) if turn.tries else 0
        if self._step - turn.tried_step >= pause or not self._roster.running:
            return False
        return self._room_for(seq) <= turn.tried_blocks or self.needs_luck(seq)

    def needs_luck(self, seq: Sequence) -> bool:
        """True when ``seq`` does not fit, unless it shares blocks with those that run."""
        return not seq.preemptions and self._room_for(seq) < self._peak(len(seq.tokens))

    def admit(self, seq: Sequence, most: int, *, alone: bool, careful: bool = False) -> int | None:
        """Start ``seq``; returns the tokens it computes now, ``most`` or fewer, 0 while it is being loaded.

        None: it must wait. ``alone``: nothing runs. ``careful``: it goes past one that was preempted.
        """
        most = min(most, self._chunk_tokens)
        choice: Choice | None = None
        n_tokens: int | None = None
        match: Match | None = None
        if self._restores is not None and self._restores.promising(seq):
            choice, match = self._load(seq, self._restores, alone=alone, careful=careful)
        if match is not None:
            n_tokens = 0
        elif alone or choice is None or choice.what == "recompute":
            n_tokens, match = self._start(seq, most, alone=alone, careful=careful, copies=True)
            if n_tokens is None and alone:
                n_tokens, match = self._start(seq, most, alone=True, careful=False, copies=False)
                self._counters.cut_hits += n_tokens is not None
            if choice is not None and choice.what != "recompute":
                choice = None
        if n_tokens is not None and match is not None:
            self._note_hit(seq, match)
            if self._restores is not None:
                self._restores.decided(seq, choice)
            self._roster.run(seq)
            self._spare = None
        else:
            self._counters.postponed_admissions += 1
            turn = seq.turn
            turn.tries, turn.tried_step, turn.tried_blocks = turn.tries + 1, self._step, self._room_for(seq)
        return n_tokens

    def _room_for(self, seq: Sequence) -> int:
        """Blocks there are for ``seq``; for one that was preempted, before those that others may ever need."""
        if seq.preemptions:
            return self._cache.available_blocks
        if self._spare is None:
            others = sum(self._still_needs(other, to_the_end=False) for other in self._roster.running)
            self._spare = self._cache.available_blocks - others
        return self._spare

    def _enter(self, seq: Sequence, *, copies: bool) -> Match:
        """Give ``seq`` what the cache has of it."""
        request = seq.request
        admission = self._cache.admit(
            seq.id,
            seq.tokens,
            limit=seq.hit_limit,
            salt=request.salt,
            extras=request.extras,
            reuse=request.reuse,
            copies=copies,
            tenant=request.tenant,
        )
        seq.computed = seq.entered = admission.cached_tokens
        return admission.match

    def _leave(self, seq: Sequence) -> None:
        """Take that back."""
        self._cache.release(seq.id, seq.tokens, seq.computed, publish=False)
        seq.computed = 0

    def _load(
        self, seq: Sequence, restores: Restores, *, alone: bool, careful: bool
    ) -> tuple[Choice | None, Match | None]:
        """What was decided for ``seq``; with what the cache had of it when its load has begun."""
        match = self._enter(seq, copies=False)
        choice = restores.offer(seq, seq.computed)
        if choice is not None and choice.what != "recompute":
            if (alone or self._covered(seq, careful=careful)) and restores.start(seq, choice):
                return choice, match
        self._leave(seq)
        return choice, None

    def _start(self, seq: Sequence, most: int, *, alone: bool, careful: bool, copies: bool) -> tuple[int | None, Match]:
        """Take hits, check the count, take room: all of it or nothing (None)."""
        match = self._enter(seq, copies=copies)
        n_tokens = min(most, seq.lacking)
        while n_tokens and (alone or self._covered(seq, careful=careful)):
            try:
                self._cache.extend(seq.id, seq.computed + n_tokens)
                return n_tokens, match
            except PoolFull:
                self._counters.shrunk_chunks += alone and n_tokens > 1
                n_tokens = n_tokens // 2 if alone else 0
        self._leave(seq)
        return None, match

    def _covered(self, seq: Sequence, *, careful: bool) -> bool:
        """Whether available blocks cover what ``seq`` (its hits already in its tables) and the others still need.

        What other tenants keep in the cache within their floors is not available, unless it has waited long enough.
        """
        entangled = self._roster.entangled(seq)
        last = seq if seq.preemptions else self._protected(seq, entangled=entangled)
        careful = careful or (entangled and last is not None)
        needed = self._still_needs(seq, to_the_end=careful or last is not None)
        for other in self._roster.running:
            firm = last is not None and (other.preemptions > 0 or self._roster.goes_before(other, last))
            if careful or firm:
                needed += self._still_needs(other, to_the_end=True)
            elif not seq.preemptions:
                needed += self._still_needs(other, to_the_end=False)
        blocks = self._cache.available_blocks
        if not seq.turn.urgent:
            blocks = min(blocks, self._cache.available_for(seq.request.tenant))
        return needed <= blocks

    def _protected(self, seq: Sequence, *, entangled: bool) -> Sequence | None:
        """The last of the running that was preempted before and would be thrown out for ``seq``, which it overtook."""
        for other in reversed(self._roster.running):
            if other.preemptions and not other.yields_to(seq):
                return other if entangled or self._roster.goes_before(seq, other) else None
        return None

    def _still_needs(self, seq: Sequence, *, to_the_end: bool) -> int:
        peak = self._peak(seq.limit_tokens - 1 if to_the_end else len(seq.tokens))
        rest = max(0, peak - self._cache.held_blocks(seq.id))
        return rest + peak * len(seq.siblings) if to_the_end else rest

    def _peak(self, n_tokens: int) -> int:
        return self._layout.peak_blocks_for(n_tokens, self._chunk_tokens)

    def _note_hit(self, seq: Sequence, match: Match) -> None:
        """Book what the cache gave: news, or what this sequence (or its siblings) had left there itself."""
        counters = self._counters
        hit = seq.computed
        news = max(0, min(hit, seq.prompt_tokens) - seq.seen_tokens)
        seq.cached_tokens += news
        counters.self_hit_tokens += min(hit, seq.seen_tokens)
        if seq.counts_lookup:
            counters.cached_tokens += news
        else:
            counters.sibling_hit_tokens += news
        if not seq.admitted:
            seq.match = match
            if seq.counts_lookup:
                counters.prompt_tokens += seq.prompt_tokens
                counter = f"miss_{match.reason}"
                setattr(counters, counter, getattr(counters, counter) + 1)
        if seq.turn.led_tokens is not None:
            seq.led = True
            counters.led_admissions += 1
            counters.led_tokens += max(0, hit - seq.turn.led_tokens)
        seq.admitted = True
        seq.seen_tokens = max(seq.seen_tokens, hit)
