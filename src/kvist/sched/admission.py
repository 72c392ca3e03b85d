"""The gate: may the head of the queue start, and with how many tokens."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.cache.cache import Cache
from kvist.errors import PoolFull
from kvist.sched.counters import Counters
from kvist.sched.roster import Roster
from kvist.sched.sequence import Sequence
from kvist.spec.layout import CacheLayout

RETRY_STEPS = 8
"""A head that did not fit is tried again when blocks became available, or after this many steps."""


@dataclass(slots=True)
class _Refusal:
    seq: Sequence
    available_blocks: int
    steps: int


class Gate:
    """Admits sequences. A newcomer starts when its prompt fits beside the prompts of those that run.

    A sequence that was preempted starts again only when everything it may ever need is available, together with
    everything that those before it in order (and those preempted before) may ever need: it is not thrown out twice
    for the same reason. When nothing runs, the head starts whatever the count says.
    """

    def __init__(self, cache: Cache, layout: CacheLayout, roster: Roster, counters: Counters) -> None:
        self._cache = cache
        self._layout = layout
        self._roster = roster
        self._counters = counters
        self._refusal: _Refusal | None = None

    def admit_head(self, budget: int, chunk_tokens: int) -> int:
        """Start the head of the queue; returns the tokens it computes now, 0 when it must wait."""
        seq = self._roster.waiting[0]
        alone = not self._roster.running
        if not alone and self._refused_lately(seq):
            return 0
        most = min(budget, chunk_tokens)
        n_tokens = self._start(seq, most, chunk_tokens, alone=alone, copies=True)
        if not n_tokens and alone:
            n_tokens = self._start(seq, most, chunk_tokens, alone=True, copies=False)
            self._counters.cut_hits += n_tokens > 0
        if n_tokens:
            self._note_hit(seq)
            self._roster.run(seq)
            self._refusal = None
        else:
            self._counters.postponed_admissions += 1
            self._refusal = _Refusal(seq, self._cache.available_blocks, RETRY_STEPS)
        return n_tokens

    def _refused_lately(self, seq: Sequence) -> bool:
        last = self._refusal
        if last is None or last.seq is not seq or self._cache.available_blocks > last.available_blocks:
            return False
        last.steps -= 1
        return last.steps > 0

    def _start(self, seq: Sequence, most: int, chunk_tokens: int, *, alone: bool, copies: bool) -> int:
        """Take hits, check the count, take room: all of it or nothing."""
        request = seq.request
        admission = self._cache.admit(
            seq.id,
            seq.tokens,
            limit=seq.hit_limit,
            salt=request.salt,
            extras=request.extras,
            reuse=request.reuse,
            copies=copies,
        )
        seq.computed = seq.entered = admission.cached_tokens
        n_tokens = min(most, seq.lacking)
        while n_tokens and (alone or self._covered(seq, chunk_tokens)):
            try:
                self._cache.extend(seq.id, seq.computed + n_tokens)
                return n_tokens
            except PoolFull:
                self._counters.shrunk_chunks += alone and n_tokens > 1
                n_tokens = n_tokens // 2 if alone else 0
        self._cache.release(seq.id, seq.tokens, seq.computed, publish=False)
        seq.computed = 0
        return 0

    def _covered(self, seq: Sequence, chunk_tokens: int) -> bool:
        """Whether available blocks cover what ``seq`` (its hits already in its tables) and the others still need."""
        again = seq.preemptions > 0
        needed = self._still_needs(seq, chunk_tokens, to_the_end=again)
        for other in self._roster.running:
            if not again:
                needed += self._still_needs(other, chunk_tokens, to_the_end=False)
            elif other.preemptions or self._roster.goes_before(other, seq):
                needed += self._still_needs(other, chunk_tokens, to_the_end=True)
        return needed <= self._cache.available_blocks

    def _still_needs(self, seq: Sequence, chunk_tokens: int, *, to_the_end: bool) -> int:
        n_tokens = seq.limit_tokens - 1 if to_the_end else len(seq.tokens)
        peak = self._layout.peak_blocks_for(n_tokens, chunk_tokens)
        rest = max(0, peak - self._cache.held_blocks(seq.id))
        return rest + peak * len(seq.siblings) if to_the_end else rest

    def _note_hit(self, seq: Sequence) -> None:
        """Book what the cache gave: news, or what this sequence (or its siblings) had left there itself."""
        hit = seq.computed
        news = max(0, min(hit, seq.prompt_tokens) - seq.seen_tokens)
        seq.cached_tokens += news
        self._counters.self_hit_tokens += min(hit, seq.seen_tokens)
        if seq.counts_lookup:
            self._counters.cached_tokens += news
        else:
            self._counters.sibling_hit_tokens += news
        if not seq.admitted and seq.counts_lookup:
            self._counters.prompt_tokens += seq.prompt_tokens
        seq.admitted = True
        seq.seen_tokens = max(seq.seen_tokens, hit)
