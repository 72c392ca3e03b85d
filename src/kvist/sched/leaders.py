"""One leader per uncached prefix: who would compute the same as somebody who runs waits until it can be shared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvist.cache.cache import Cache
from kvist.cache.keys import space_of
from kvist.sched.lookup import Lookup
from kvist.sched.roster import Roster
from kvist.sched.sequence import Sequence, State, Stem, Turn

LEADER_PLANS: Final = 32
"""Plans in which a leader must get on by a span, or its follower waits no longer."""

LOADING_PLANS: Final = 1024
"""The same while the leader is being loaded: plans that only wait take 5 ms."""

COMMON_KEPT: Final = 64
"""Pairs whose common length a waiting sequence remembers."""


@dataclass(frozen=True, slots=True)
class Hold:
    """``leader`` will compute tokens ``[cached_tokens, common_tokens)`` of a waiting sequence."""

    leader: Sequence
    cached_tokens: int
    common_tokens: int


class Leaders:
    """The running sequences with something to compute that others could share, by namespace and first span.

    A hold ends when the leader has computed the common part, ends or is preempted: it is asked for anew in every plan
    and only ever names a sequence that runs. So no two wait for each other. Nobody waits for one that stands
    behind him for its priority, and a leader that does not get on (others get the budget) is given up: waiting is
    bounded by ``LEADER_PLANS`` for each span. Namespaces never meet: how long a request waits says nothing about
    another tenant's salt.
    """

    def __init__(self, cache: Cache, roster: Roster, lookup: Lookup, span_tokens: int) -> None:
        self._cache = cache
        self._roster = roster
        self._lookup = lookup
        self._span = span_tokens
        self._stems: dict[Stem, list[Sequence]] = {}
        self._step = 0

    def begin(self, step: int) -> None:
        """A new plan."""
        self._step = step
        self._stems.clear()
        for seq in self._roster.running:
            self.add(seq)

    def add(self, seq: Sequence) -> None:
        """``seq`` runs: whoever shares a span of what it lacks may follow it."""
        whole = len(seq.tokens) - len(seq.tokens) % self._span
        if self._cache.reuse and seq.request.reuse and seq.finish_reason is None and seq.computed < whole:
            self._stems.setdefault(self._stem(seq), []).append(seq)

    def hold(self, seq: Sequence) -> Hold | None:
        """The leader that waiting ``seq`` should wait for; None when there is none.

        It gains a span at least: whole spans of the common tokens become matchable as the leader computes them.
        """
        if not self._stems or not seq.request.reuse or seq.turn.goes_alone or len(seq.tokens) < self._span:
            return None
        best: Hold | None = None
        for leader in self._stems.get(self._stem(seq), ()):
            if leader.state is not State.RUNNING or self._roster.less_important(leader, seq):
                continue
            common = self._common(seq, leader)
            common = min(common - common % self._span, seq.hit_limit)
            if common - leader.computed <= 0 or (best is not None and common <= best.common_tokens):
                continue
            cached = max(self._lookup.cached_tokens(seq), min(common, leader.computed - leader.computed % self._span))
            if common - cached >= min(self._span, seq.hit_limit):
                best = Hold(leader, cached, common)
        return None if best is None or self._stuck(seq.turn, best.leader) else best

    def _stuck(self, turn: Turn, leader: Sequence) -> bool:
        """Whether ``leader`` did not get on for long; notes how far it is."""
        if turn.leader != leader.id or leader.computed - turn.leader_computed >= self._span:
            turn.leader, turn.leader_computed, turn.leader_step = leader.id, leader.computed, self._step
        patience = LEADER_PLANS if leader.load is None else LOADING_PLANS
        turn.goes_alone = self._step - turn.leader_step >= patience
        return turn.goes_alone

    def _stem(self, seq: Sequence) -> Stem:
        if seq.stem is None:
            request = seq.request
            seq.stem = (space_of(request.salt, request.extras), tuple(seq.tokens[: self._span]))
        return seq.stem

    def _common(self, seq: Sequence, leader: Sequence) -> int:
        """Tokens in common, remembered: both begin with prompts that do not change."""
        known = seq.turn.common
        if leader.id not in known:
            if len(known) >= COMMON_KEPT:
                known.clear()
            known[leader.id] = common_prefix(seq.tokens, leader.tokens)
        return known[leader.id]


def common_prefix(a: list[int], b: list[int]) -> int:
    """Length of the common prefix of two lists; gallops, then bisects."""
    size = min(len(a), len(b))
    low, step = 0, 64
    while low < size:
        high = min(low + step, size)
        if a[low:high] != b[low:high]:
            break
        low, step = high, step * 2
    else:
        return size
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
