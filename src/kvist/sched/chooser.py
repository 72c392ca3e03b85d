"""Who is admitted next: the urgent, then by priority, then the tenant served least, then as the tenant's order says."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final

from kvist.ids import SeqId
from kvist.sched.leaders import Leaders
from kvist.sched.lookup import Lookup
from kvist.sched.roster import Roster
from kvist.sched.sequence import Sequence, State
from kvist.sched.service import Service

LOOK_AHEAD: Final = 64
"""Sequences at the front of a tenant's queue that are looked at."""

LOOKS: Final = 256
"""Sequences of all tenants that are looked at for one admission."""

Head = tuple[tuple[int, int], float, int, int, str, int]
"""(rank, level, arrival, sample, tenant, index in the tenant's queue)."""


class Chooser:
    """Candidates in order. Those that wait for a leader are left out; those that do not fit may be passed.

    The age bound: a sequence that ``max_overtakes`` others were admitted past is urgent, and so is one that lost its
    patience by preemption. While an urgent one cannot be placed nobody else is admitted. *Past*: a sequence that
    arrived later, with the same or lower priority, of the same tenant, or of any tenant once this one had its turn and
    did not fit. (What other tenants get before that is their fair share.)
    """

    def __init__(
        self, roster: Roster, service: Service, lookup: Lookup, leaders: Leaders, *, max_overtakes: int
    ) -> None:
        self._roster = roster
        self._service = service
        self._lookup = lookup
        self._leaders = leaders
        self._max_overtakes = max_overtakes
        self._refused: dict[SeqId, Sequence] = {}
        self._heads: list[Head] = []
        self._head_of: dict[str, Head] = {}

    def begin(self) -> None:
        """A new plan, or somebody came back to the queue: file the tenants that moved anew."""
        for tenant in self._service.moved:
            old = self._head_of.pop(tenant, None)
            if old is not None:
                del self._heads[bisect_left(self._heads, old)]
            queue = self._roster.queues.get(tenant)
            if queue:
                head = self._head(tenant, self._service.level(tenant), queue, 0)
                self._head_of[tenant] = head
                insort(self._heads, head)
        self._service.moved.clear()

    def candidates(self) -> Iterator[Sequence]:
        """Who may be admitted, the first first. Ends with the next admission: ask again."""
        for seq in self._roster.urgent:
            if not self._held(seq):
                yield seq
                return
        for i, seq in enumerate(self._in_order()):
            if i == LOOKS:
                return
            if not self._held(seq):
                yield seq

    def refused(self, seq: Sequence) -> None:
        """``seq`` had its turn and did not fit: from now on everybody later who starts goes past it."""
        seq.turn.reason = "capacity"
        self._refused[seq.id] = seq

    def admitted(self, seq: Sequence) -> None:
        """``seq`` left the queue."""
        tenant = seq.request.tenant
        for other in self._roster.queues.get(tenant, ())[:LOOK_AHEAD]:
            self._overtake(other, seq)
        for other in list(self._refused.values()):
            if other.state is not State.WAITING:
                del self._refused[other.id]
            elif other.request.tenant != tenant:
                self._overtake(other, seq)
        self.begin()

    def _overtake(self, other: Sequence, seq: Sequence) -> None:
        turn = other.turn
        later = other.arrival < seq.arrival and other.request.priority >= seq.request.priority
        if later and turn.reason != "leader":
            turn.overtaken += 1
            if turn.overtaken >= self._max_overtakes:
                self._roster.hurry(other)

    def _held(self, seq: Sequence) -> bool:
        hold = self._leaders.hold(seq)
        turn = seq.turn
        if hold is None:
            if turn.reason == "leader":
                turn.reason = "queue"
            return False
        turn.reason = "leader"
        if turn.led_tokens is None:
            turn.led_tokens = hold.cached_tokens
        return True

    def _head(self, tenant: str, level: float, queue: list[Sequence], at: int) -> Head:
        seq = queue[at]
        return self._roster.order.rank(seq), level, seq.arrival, seq.sample, tenant, at

    def _in_order(self) -> Iterator[Sequence]:
        """By rank, then by level of the tenants, then as the tenant's order says."""
        heads, at = self._heads, 0
        lower: list[Head] = []  # what follows in the queues of tenants we have seen, at lower ranks
        rank_of = self._roster.order.rank
        while lower or at < len(heads):
            if lower and (at == len(heads) or lower[0] < heads[at]):
                head = heappop(lower)
            else:
                head = heads[at]
                at += 1
            rank, level, _, _, tenant, start = head
            queue = self._roster.queues[tenant]
            most = min(len(queue), LOOK_AHEAD)
            end = start
            if self._roster.order.cached_first:
                while end < most and rank_of(queue[end]) == rank:
                    end += 1
                equals = queue[start:end]
                self._lookup.refresh(equals)
                yield from sorted(equals, key=lambda seq: -seq.turn.cached_tokens)
            else:
                while end < most and rank_of(queue[end]) == rank:
                    yield queue[end]
                    end += 1
            if end < most:
                heappush(lower, self._head(tenant, level, queue, end))
