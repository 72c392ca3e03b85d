"""What the cache has of a waiting sequence, asked now and then."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kvist.cache.cache import Cache
from kvist.sched.sequence import Sequence

TOKENS_PER_STEP: Final = 16384
"""Tokens that are looked up in one step; beyond them old answers count."""


class Lookup:
    """Remembers matches on the sequences' turns. An answer is good until the tree changes."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._step = 0
        self._left = 0
        self._version = (0, 0)

    def begin(self, step: int) -> None:
        """A new plan."""
        counters = self._cache.counters
        self._step, self._left = step, TOKENS_PER_STEP
        self._version = (counters.inserted_blocks, counters.evicted_blocks + counters.detached_blocks)

    def refresh(self, seqs: Iterable[Sequence]) -> None:
        """Ask for those whose answer is old, the oldest first, as far as it goes in one step."""
        old = [seq for seq in seqs if self._old(seq)]
        for seq in sorted(old, key=lambda seq: seq.turn.asked_step):
            self.cached_tokens(seq)

    def cached_tokens(self, seq: Sequence) -> int:
        """Tokens a hit would give waiting ``seq``, as last asked (0: never)."""
        turn, request = seq.turn, seq.request
        if self._left > 0 and self._old(seq):
            self._left -= len(seq.tokens)
            match = self._cache.match(seq.tokens, limit=seq.hit_limit, salt=request.salt, extras=request.extras)
            turn.cached_tokens = match.cached_tokens
            turn.asked_step, turn.asked_version = self._step, self._version
        return turn.cached_tokens

    def _old(self, seq: Sequence) -> bool:
        turn = seq.turn
        return seq.request.reuse and (turn.asked_step < 0 or turn.asked_version != self._version)
