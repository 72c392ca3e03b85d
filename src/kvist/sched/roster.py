"""Who waits and who runs, each list in the policy's order. Owner: the scheduler."""

from __future__ import annotations

from bisect import insort

from kvist.ids import RequestId, SeqId
from kvist.sched.order.base import Order
from kvist.sched.sequence import Sequence, State


class Roster:
    """Every sequence alive, filed under its key."""

    def __init__(self, order: Order) -> None:
        self._key = order.key
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.live: dict[SeqId, Sequence] = {}
        self.requests: dict[RequestId, list[Sequence]] = {}

    def enter(self, family: list[Sequence]) -> None:
        """The sequences of a new request. The first waits, the others wait for the first."""
        self.requests[family[0].request.id] = list(family)
        for seq in family:
            self.live[seq.id] = seq
        self.wait(family[0])

    def wait(self, seq: Sequence) -> None:
        """Put ``seq`` in the queue, where its key says."""
        self.leave(seq)
        seq.state = State.WAITING
        insort(self.waiting, seq, key=self._key)

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
            self.waiting.remove(seq)
        elif seq.state is State.RUNNING:
            self.running.remove(seq)
        seq.state = State.PENDING
