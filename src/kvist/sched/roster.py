"""Who waits and who runs, each list in the policy's order. Owner: the scheduler."""

from __future__ import annotations

from bisect import insort
from itertools import chain

from kvist.ids import RequestId, SeqId
from kvist.sched.order.base import Order
from kvist.sched.sequence import Sequence, State, Turn
from kvist.sched.service import Service


class Roster:
    """Every sequence alive, filed under its key; those that wait in a queue per tenant.

    ``urgent`` are those of the waiting before whom nobody else is admitted.
    """

    def __init__(self, order: Order, service: Service) -> None:
        self.order = order
        self._key = order.key
        self._service = service
        self.queues: dict[str, list[Sequence]] = {}
        self.urgent: list[Sequence] = []
        self.running: list[Sequence] = []
        self.live: dict[SeqId, Sequence] = {}
        self.requests: dict[RequestId, list[Sequence]] = {}

    @property
    def waiting(self) -> list[Sequence]:
        """All queues as one, sorted by key. To look at: it is made anew."""
        return sorted(chain.from_iterable(self.queues.values()), key=self._key)

    def waiting_by_reason(self) -> dict[str, int]:
        """Counts of ``Turn.reason``."""
        counts = {"capacity": 0, "leader": 0, "queue": 0}
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

    def hurry(self, seq: Sequence) -> None:
        """Nobody else is admitted before waiting ``seq``."""
        if not seq.turn.urgent:
            seq.turn.urgent = True
            insort(self.urgent, seq, key=self._key)

    def run(self, seq: Sequence) -> None:
        """Put ``seq`` among the running."""
        self.leave(seq)
        seq.state = State.RUNNING
        insort(self.running, seq, key=self._key)

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
        """True when ``a`` has the smaller key."""
        return self._key(a) < self._key(b)

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
            self.running.remove(seq)
        seq.state = State.PENDING
