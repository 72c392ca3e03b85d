"""Where questions become answers: the mover's one lock, what is open, and what ended since somebody asked."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kvist.engine.ports import Clock
from kvist.runtime.mover.lane import Lane
from kvist.runtime.mover.open import OpenDrop, OpenFind, OpenLoad, OpenSave
from kvist.runtime.store import Store
from kvist.transfer import Drop, Dropped, Find, Found, Kept, Load, Loaded, Save

Answers = tuple[tuple[Found, ...], tuple[Loaded, ...], tuple[Kept, ...], tuple[Dropped, ...]]


@dataclass(slots=True)
class _Ended:
    """Answers that nobody has fetched yet."""

    found: list[Found] = field(default_factory=list)
    loaded: list[Loaded] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.found or self.loaded or self.kept or self.dropped)


class Desk:
    """Every method but ``take`` and ``row`` is called with ``lock`` held. A question leaves by its ``end`` only."""

    def __init__(self, lanes: Sequence[Lane], store: Store, clock: Clock, origin: bytes, timeout_s: float) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.lanes = lanes
        self.store = store
        self.clock = clock
        self.origin = origin
        self.timeout_s = timeout_s
        self.block_bytes = store.layout.block_bytes
        self.finds: dict[int, OpenFind] = {}
        self.loads: dict[int, OpenLoad] = {}
        self.saves: dict[int, OpenSave] = {}
        self.drops: dict[int, OpenDrop] = {}
        self._pool: npt.NDArray[np.uint8] = store.pool.numpy()
        self._ended = _Ended()

    @property
    def any_ended(self) -> bool:
        """Whether there is an answer to fetch."""
        return bool(self._ended)

    @property
    def any_open(self) -> bool:
        """Whether an answer is still to come."""
        return bool(self.finds or self.loads or self.saves or self.drops)

    def row(self, block: int) -> npt.NDArray[np.uint8]:
        """A block's bytes in the pool."""
        row: npt.NDArray[np.uint8] = self._pool[block]
        return row

    def take(self) -> Answers:
        """All that ended since the last call."""
        with self.lock:
            ended, self._ended = self._ended, _Ended()
        return tuple(ended.found), tuple(ended.loaded), tuple(ended.kept), tuple(ended.dropped)

    def refuse(self, ask: Save | Drop | Find | Load) -> None:
        """Answer a question that was never begun."""
        open_ids = (self.finds, self.loads, self.saves, self.drops)
        if any(ask.id in ids for ids in open_ids):
            return
        match ask:
            case Find():
                self._ended.found.append(Found(ask.id, (-1,) * len(ask.records)))
            case Load():
                self._ended.loaded.append(Loaded(ask.id, (False,) * len(ask.records), "error"))
            case Save():
                self._ended.kept.append(Kept(ask.id, 0, 0, len(ask.blocks), "error"))
            case Drop():
                self._ended.dropped.append(Dropped(ask.id, (-1,) * len(self.lanes), "it could not be begun"))

    def end_find(self, find: OpenFind) -> None:
        """Answer with what is known."""
        if not find.over:
            find.over = True
            del self.finds[find.ask.id]
            queued = tuple(lane.queued_records * self.block_bytes for lane in self.lanes)
            self._ended.found.append(find.answer(queued))
            self.changed.notify_all()

    def end_load(self, load: OpenLoad) -> None:
        """Answer if nothing of it goes on and no thread can write to its blocks."""
        if load.over or load.parts or load.writers:
            return
        load.over = True
        del self.loads[load.ask.id]
        self.store.void(tuple(b for b, good in zip(load.ask.blocks, load.good, strict=True) if not good))
        self._ended.loaded.append(load.answer(self.clock.now()))
        self.changed.notify_all()

    def end_save(self, save: OpenSave) -> None:
        """Answer if no tier has anything of it left to do."""
        if not save.pending and self.saves.pop(save.ask.id, None) is not None:
            self._ended.kept.append(save.answer())
            self.changed.notify_all()

    def end_drop(self, drop: OpenDrop) -> None:
        """Answer if every tier has."""
        if None not in drop.records and self.drops.pop(drop.ask.id, None) is not None:
            self._ended.dropped.append(drop.answer())
            self.changed.notify_all()
