"""Who waits and who runs, each list in the policy's order. Owner: the scheduler."""

from __future__ import annotations

from bisect import insort
from itertools import chain

from kvist.ids import RequestId, SeqId
from kvist.sched.order.base import Order
from kvist.sched.sequence import Sequence, State, Turn
from kvist.sched.service import Service


class Roster:
    """Every sequence alive; those that wait in a queue per tenant, by key.

    A key holds the priority that the client gave, so keys are compared within a tenant only. Between tenants the
    running stand by age: each has as many places as it has sequences, where their arrivals say, and its own keys say
    who of it takes which. So a priority moves a sequence past others of its tenant and past nobody else. ``urgent`` are
    those of the waiting before whom nobody else of their tenant is admitted.
    """

    def __init__(self, order: Order, service: Service) -> None:
        self.order = order
        self._key = order.key
        self._service = service
        self.queues: dict[str, list[Sequence]] = {}
        self.urgent: list[Sequence] = []
        self._by_age: list[Sequence] = []
        self._line: list[Sequence] | None = []
        self._places: dict[SeqId, Sequence] = {}
        self.live: dict[SeqId, Sequence] = {}
        self.requests: dict[RequestId, list[Sequence]] = {}

    @property
    def running(self) -> list[Sequence]:
        """The running, in order: the first is served first, the last is preempted first. Not to be changed."""
        if self._line is None:
            mine: dict[str, list[Sequence]] = {}
            for seq in self._by_age:
                mine.setdefault(seq.request.tenant, []).append(seq)
            turns = {tenant: iter(sorted(seqs, key=self._key)) for tenant, seqs in mine.items()}
            self._line = [next(turns[seq.request.tenant]) for seq in self._by_age]
            self._places = {seq.id: place for seq, place in zip(self._line, self._by_age, strict=True)}
        return self._line

    @property
    def waiting(self) -> list[Sequence]:
        """All queues as one, sorted by key. To look at: it is made anew."""
        return sorted(chain.from_iterable(self.queues.values()), key=self._key)

    def waiting_by_reason(self) -> dict[str, int]:
        """Counts of ``Turn.reason``."""
        counts = {"capacity": 0, "leader": 0, "queue": 0, "tier": 0}
        for seq in chain.from_iterable(self.queues.values()):
            counts[seq.turn.reason] += 1
        return counts

    def enter(self, family: list[Sequence]) -> None:
        """The sequences of a new request. The first waits, the others wait for the first."""
        self.requests[family[0].request.id] = list(family)
        for seq in family:
            self.live[seq.id] = seq
            self._service.join(seq.request.tenant)
        self.wait(family[0])

    def wait(self, seq: Sequence) -> None:
        """Put ``seq`` in its tenant's queue, where its key says."""
        self.leave(seq)
        seq.state = State.WAITING
        seq.turn = Turn()
        insort(self.queues.setdefault(seq.request.tenant, []), seq, key=self._key)
        self._service.moved.add(seq.request.tenant)
        if not self.order.rank(seq)[0]:
            self.hurry(seq)

    def wait_again(self, seq: Sequence) -> None:
        """Put back ``seq``, which came to nothing: those who passed it count as before."""
        overtaken, urgent = seq.turn.overtaken, seq.turn.urgent
        self.wait(seq)
        seq.turn.overtaken = overtaken
        if urgent:
            self.hurry(seq)

    def hurry(self, seq: Sequence) -> None:
        """Nobody else of its tenant is admitted before waiting ``seq``, and nobody at all in its tenant's turn."""
        if not seq.turn.urgent:
            seq.turn.urgent = True
            insort(self.urgent, seq, key=self._key)

    def run(self, seq: Sequence) -> None:
        """Put ``seq`` among the running."""
        self.leave(seq)
        seq.state = State.RUNNING
        insort(self._by_age, seq, key=self._age)
        self._line = None

    def drop(self, seq: Sequence) -> None:
        """``seq`` is over."""
        self.leave(seq)
        seq.state = State.FINISHED
        del self.live[seq.id]
        self._service.part(seq.request.tenant)
        family = self.requests[seq.request.id]
        family.remove(seq)
        if not family:
            del self.requests[seq.request.id]

    def goes_before(self, a: Sequence, b: Sequence) -> bool:
        """True when ``a`` stands before ``b`` among the running, as long as these are not ``entangled``."""
        if a.request.tenant == b.request.tenant:
            return self._key(a) < self._key(b)
        return self._age(a) < self._age(b)

    def less_important(self, seq: Sequence, other: Sequence) -> bool:
        """True when running ``seq`` stands behind ``other`` for its priority: in its tenant, or moved back by it."""
        if seq.request.tenant == other.request.tenant:
            return seq.yields_to(other)
        return bool(self.running) and self._age(self._places[seq.id]) > max(self._age(seq), self._age(other))

    def entangled(self, seq: Sequence) -> bool:
        """True when, with ``seq`` among the running, both tenants and priorities differ.

        Then places change hands when somebody starts or ends, and who stands before whom does not last.
        """
        others = self._by_age
        return any(other.request.tenant != seq.request.tenant for other in others) and any(
            other.request.priority != seq.request.priority for other in others
        )

    def _age(self, seq: Sequence) -> tuple[int, int, int]:
        return self.order.rank(seq)[0], seq.arrival, seq.sample

    def leave(self, seq: Sequence) -> None:
        """Take ``seq`` off its list (before its key changes)."""
        if seq.state is State.WAITING:
            queue = self.queues[seq.request.tenant]
            queue.remove(seq)
            self._service.moved.add(seq.request.tenant)
            if not queue:
                del self.queues[seq.request.tenant]
            if seq.turn.urgent:
                self.urgent.remove(seq)
        elif seq.state is State.RUNNING:
            self._by_age.remove(seq)
            self._line = None
        seq.state = State.PENDING
