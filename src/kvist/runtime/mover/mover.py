"""The mover: carries blocks' bytes between the pool and tiers while steps are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kvist.engine.ports import Clock
from kvist.errors import BadValue, StateError
from kvist.runtime.mover.checking import UNCHECKED, Checking
from kvist.runtime.mover.desk import Answers, Desk
from kvist.runtime.mover.lane import lanes_of
from kvist.runtime.mover.looking import Looking
from kvist.runtime.mover.reading import Reading
from kvist.runtime.mover.writing import Writing
from kvist.runtime.store import Store
from kvist.tier.base import Tier, Usage
from kvist.transfer import Drop, Find, Load, Save, Touch

ORIGIN_BYTES: Final = 16
STAGING_BYTES: Final = 256 << 20
TICK_S: Final = 0.05
"""How often a wait looks for calls that hang."""


class Mover:
    """Methods are for one thread, the engine's (``flush``, ``counters``, ``usages``: any thread); only ``wait``,
    ``flush`` and ``close`` wait for tiers.

    ``tiers``: fastest first; they stay the caller's to close. ``origin``: fingerprint of model and layout (16 bytes);
    what a tier has under another one is never used. ``staging_bytes``: for blocks on their way to tiers, touched as
    needed. ``timeout_s``: for what one tier brings of one load from when it begins, and for each call that writes.
    ``find_timeout_s``: for a find in all. ``linger_s``: how long a few blocks may wait to be written together with
    more (a flush, a drop, a longer save end that). ``promote``: what a slower tier brought goes to the faster ones too.
    ``checking``: whether what is stored is compared with what is computed (None: never).
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        store: Store,
        *,
        origin: bytes,
        clock: Clock,
        staging_bytes: int = STAGING_BYTES,
        timeout_s: float = 10.0,
        find_timeout_s: float = 2.0,
        linger_s: float = 0.25,
        promote: bool = True,
        checking: Checking | None = None,
    ) -> None:
        """Raises ``BadValue``, or ``CapacityError`` where the system has no memory."""
        if len(origin) != ORIGIN_BYTES:
            raise BadValue("origin", origin.hex(), f"{ORIGIN_BYTES} bytes")
        for name, seconds in (("timeout_s", timeout_s), ("find_timeout_s", find_timeout_s)):
            if not 0 < seconds < float("inf"):
                raise BadValue(name, seconds, "a number of seconds above 0")
        if not 0 <= linger_s < float("inf"):
            raise BadValue("linger_s", linger_s, "a number of seconds from 0 on")
        self._lanes = lanes_of(tiers)
        self._desk = desk = Desk(self._lanes, store, clock, origin, timeout_s)
        self._writing = Writing(desk, staging_bytes, promote=promote, linger_s=linger_s, checking=checking or UNCHECKED)
        self._reading = Reading(desk, self._writing.give_on)
        self._looking = Looking(desk, find_timeout_s, self._reading.hung)
        self._closed = False

    def cancel(self, ids: Sequence[int]) -> None:
        """Nobody waits for these finds and loads. Unknown ids have been answered.

        A find, and a load that no thread can write for, is answered at once; another load when the read that runs ends.
        """
        desk = self._desk
        with desk.lock:
            for id in ids:
                if (find := desk.finds.get(id)) is not None:
                    desk.end_find(find)
                if (load := desk.loads.get(id)) is not None:
                    self._reading.cancel(load)

    def save(self, ask: Save) -> None:
        """Take the blocks' bytes now; tiers get them later."""
        self._refuse_closed()
        self._writing.save(ask)

    def touch(self, ask: Touch) -> None:
        """Tell the tiers that these are in use; one that is too busy is not told."""
        if not self._closed:
            with self._desk.lock:
                self._writing.touch(ask)

    def drop(self, ask: Drop) -> None:
        """Remove from every tier; saves of that tenant that wait are discarded (``dropped``)."""
        self._refuse_closed()
        with self._desk.lock:
            self._writing.drop(ask)

    def find(self, ask: Find) -> None:
        """Begin to ask tiers for records."""
        self._refuse_closed()
        with self._desk.lock:
            self._looking.begin(ask)

    def load(self, ask: Load) -> None:
        """Begin to fill blocks. They are the mover's until ``Loaded``."""
        self._refuse_closed()
        self._desk.store.void(ask.blocks)
        with self._desk.lock:
            self._reading.begin(ask)

    def begin(self, ask: Save | Drop | Find | Load) -> None:
        """Any of them."""
        match ask:
            case Save():
                self.save(ask)
            case Drop():
                self.drop(ask)
            case Find():
                self.find(ask)
            case Load():
                self.load(ask)

    def refuse(self, asks: Sequence[Save | Drop | Find | Load]) -> None:
        """Answer what could not be begun (the one at which it failed may have been: it is answered as always)."""
        with self._desk.lock:
            for ask in asks:
                self._desk.refuse(ask)

    def answers(self) -> Answers:
        """Found, loaded, kept and dropped: all that ended since the last call."""
        with self._desk.lock:
            self._expire()
        return self._desk.take()

    def wait(self, seconds: float) -> None:
        """Until there is an answer, for ``seconds`` at most; not at all when none is to come."""
        desk = self._desk
        end = desk.clock.now() + seconds
        with desk.lock:
            while desk.any_open and not desk.any_ended and (left := end - desk.clock.now()) > 0:
                desk.changed.wait(min(left, TICK_S))
                self._expire()

    def flush(self, timeout_s: float) -> bool:
        """Wait for the saves, promotions and drops so far; False when they take longer than ``timeout_s``."""
        desk = self._desk
        end = desk.clock.now() + timeout_s
        with desk.lock:
            so_far = self._writing.under_way()
            self._writing.hurry(1)
            while not (done := so_far.isdisjoint(self._writing.under_way())) and (left := end - desk.clock.now()) > 0:
                desk.changed.wait(min(left, TICK_S))
                self._expire()
            self._writing.hurry(-1)
        return done

    def close(self, timeout_s: float = 10.0) -> bool:
        """End everything: finds and loads are cancelled, saves that wait are lost (``flush`` first to keep them).

        True when no thread is left in a tier's call. While one is, the pool's memory must not go to another store.
        """
        desk = self._desk
        workers = [*self._looking.workers, *self._reading.workers, *self._writing.workers]
        with desk.lock:
            if not self._closed:
                self._closed = True
                self._writing.close()
            asked = [*desk.finds, *desk.loads]
        self.cancel(asked)
        with desk.lock:
            for worker in workers:
                worker.close()
        end = desk.clock.now() + timeout_s
        gone = [worker.join(end - desk.clock.now()) for worker in workers]
        with desk.lock:
            self._expire()
        return all(gone)

    @property
    def counters(self) -> Mapping[str, int]:
        """Totals and gauges (``queued_*``), as ``<tier>_<name>``."""
        block_bytes = self._desk.block_bytes
        out: dict[str, int] = {}
        with self._desk.lock:
            for lane in self._lanes:
                out |= {f"{lane.name}_{name}": value for name, value in lane.numbers.totals.items()}
                out[f"{lane.name}_queued_read_bytes"] = lane.queued_records * block_bytes
                out[f"{lane.name}_queued_write_bytes"] = lane.held_slots * block_bytes
                out[f"{lane.name}_queued_finds"] = len(self._looking.workers[lane.index].queue)
        return out

    def usages(self) -> tuple[Usage, ...]:
        """How each tier is."""
        return tuple(lane.usage() for lane in self._lanes)

    def _expire(self) -> None:
        now = self._desk.clock.now()
        self._looking.expire(now)
        self._reading.expire(now)
        self._writing.expire(now)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StateError("this mover was closed", remedy="make another one over the same tiers")
