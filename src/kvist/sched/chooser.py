"""Who is admitted next: of the tenant served least its urgent ones, then as its order says; then of the others."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import groupby
from typing import Final

from kvist.ids import SeqId
from kvist.sched.leaders import Leaders
from kvist.sched.lookup import Lookup
from kvist.sched.restores import Restores
from kvist.sched.roster import Roster
from kvist.sched.sequence import Sequence, State
from kvist.sched.service import Service

LOOK_AHEAD: Final = 64
"""Sequences at the front of a tenant's queue that are looked at."""

LOOKS: Final = 256
"""Sequences of all tenants that are looked at for one admission."""

Head = tuple[float, int, int, str]
"""(level, arrival, sample, tenant) of the first of a tenant's queue."""


class Chooser:
    """Candidates in order. Those that wait for a leader or for the tiers are left out, who does not fit may be passed.

    Tenants come first, by what they were served; a client's priority counts among its tenant's own.

    The age bound: a sequence that ``max_overtakes`` others were admitted past is urgent, and so is one that lost its
    patience by preemption. While an urgent one cannot be placed nobody else of its tenant is admitted, and nobody at
    all once its tenant is the one served least of those with somebody to offer. Until then others have what is theirs,
    and not for ever: each admission lifts the level of its tenant, while that of the urgent one grows only by those of
    it that run already. *Past*: a sequence that arrived later, of the same tenant with the same or lower priority, or
    of any tenant once this one had its turn and did not fit. (What other tenants get before that is their fair share.)
    """

    def __init__(
        self,
        roster: Roster,
        service: Service,
        lookup: Lookup,
        leaders: Leaders,
        restores: Restores | None,
        *,
        max_overtakes: int,
    ) -> None:
        self._roster = roster
        self._service = service
        self._lookup = lookup
        self._leaders = leaders
        self._restores = restores
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
                head = (self._service.level(tenant), queue[0].arrival, queue[0].sample, tenant)
                self._head_of[tenant] = head
                insort(self._heads, head)
        self._service.moved.clear()

    def candidates(self) -> Iterator[Sequence]:
        """Who may be admitted, the first first. Ends with the next admission: ask again."""
        urgent: dict[str, Sequence] = {}
        for seq in self._roster.urgent:
            if seq.request.tenant not in urgent and not self._held(seq):
                urgent[seq.request.tenant] = seq
        looks, offered = 0, False
        for *_, tenant in self._heads:
            if tenant in urgent:
                yield urgent[tenant]
                if not offered:
                    return
                continue
            for seq in self._in_order(self._roster.queues[tenant]):
                looks += 1
                if looks > LOOKS:
                    return
                if not self._held(seq):
                    offered = True
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
        if other.arrival < seq.arrival and not other.yields_to(seq) and turn.reason not in ("leader", "tier"):
            turn.overtaken += 1
            if turn.overtaken >= self._max_overtakes:
                self._roster.hurry(other)

    def _held(self, seq: Sequence) -> bool:
        hold = self._leaders.hold(seq)
        turn = seq.turn
        if hold is None:
            held = self._restores is not None and self._restores.holds(seq)
            if held:
                turn.reason = "tier"
            elif turn.reason in ("leader", "tier"):
                turn.reason = "queue"
            return held
        turn.reason = "leader"
        if turn.led_tokens is None:
            turn.led_tokens = hold.cached_tokens
        return True

    def _in_order(self, queue: list[Sequence]) -> Iterator[Sequence]:
        """The front of a tenant's queue, as its order says."""
        front = queue[:LOOK_AHEAD]
        if not self._roster.order.cached_first:
            yield from front
            return
        for _, group in groupby(front, key=self._roster.order.rank):
            equals = list(group)
            self._lookup.refresh(equals)
            yield from sorted(equals, key=lambda seq: -seq.turn.cached_tokens)
