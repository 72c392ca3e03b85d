"""Room for a running sequence, taken from the last in order when the pool is full."""

from __future__ import annotations

from kvist.cache.cache import Cache
from kvist.errors import PoolFull
from kvist.sched.counters import Counters
from kvist.sched.roster import Roster
from kvist.sched.sequence import Sequence, State


class Room:
    """Extends block tables, preempting where it must.

    Preemption is by recomputation: the victim gives its blocks back (full ones stay in the cache until someone needs
    them), keeps its tokens and returns to the queue. The victim is always the last in order, so the first in order
    always progresses, and a sequence is never thrown out for one that goes after it.
    """

    def __init__(self, cache: Cache, roster: Roster, counters: Counters) -> None:
        self._cache = cache
        self._roster = roster
        self._counters = counters

    def make(self, seq: Sequence, n_tokens: int, line: list[Sequence]) -> int:
        """Room for ``n_tokens`` more of running ``seq``; returns how many it got.

        0: it was preempted itself; or it waits for a load of another to end, whose blocks nobody can take before; or,
        when it runs alone and is still running, the pool can hold no more of it.
        Alone in a pool too small for its chunk it gets a smaller one. ``line`` are the running in the order in which
        this plan serves them, those that run no more are taken off its end: who has his room already is no victim,
        whatever place he has now. Those that are being loaded are not in it.
        """
        while n_tokens:
            try:
                self._cache.extend(seq.id, seq.computed + n_tokens)
                return n_tokens
            except PoolFull:
                while line[-1].state is not State.RUNNING:
                    line.pop()
                victim = line[-1]
                if victim is seq and any(other.load is not None for other in self._roster.running):
                    return 0
                if len(self._roster.running) > 1:
                    self.preempt(victim)
                    if victim is seq:
                        return 0
                else:
                    self._counters.shrunk_chunks += n_tokens > 1
                    n_tokens //= 2
        return 0

    def preempt(self, seq: Sequence) -> None:
        """Take running ``seq`` off the pool and put it back into the queue."""
        self._cache.release(seq.id, seq.tokens, seq.computed, publish=seq.has_news)
        seq.computed = 0
        seq.drafts.clear()
        self._counters.preemptions += 1
        self._roster.leave(seq)
        seq.preemptions += 1
        self._roster.wait(seq)
