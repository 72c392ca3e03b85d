"""What goes to the tiers with the next plan, and what has not come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvist.cache.cache import Cache, Order
from kvist.ids import BlockId, RecordId
from kvist.step import StepPlan
from kvist.transfer import Drop, Dropped, Find, Kept, Load, Save

SAVE_BLOCKS: Final = 64
"""Blocks of one ``Save`` at most."""

WAIT_S: Final = 0.005
"""How long a plan that computes nothing waits for an answer, when somebody needs one."""


@dataclass(frozen=True, slots=True)
class Tiers:
    """What the scheduler knows of the tiers, fastest first.

    ``load``: ``auto`` (when it is faster), ``always`` or ``never``; hits that would grow by fewer than ``min_tokens``
    are not asked for. ``check``: share of loads that end a span early, so that what was stored can be compared.
    """

    names: tuple[str, ...]
    load: str = "auto"
    min_tokens: int = 1
    check: float = 0.0


class Carry:
    """Orders by kind, and the open questions. Owner: the scheduler."""

    def __init__(self) -> None:
        self._next = 1
        self._finds: list[Find] = []
        self._loads: list[Load] = []
        self._drops: list[Drop] = []
        self._cancels: list[int] = []
        self._saving: dict[int, tuple[BlockId, ...]] = {}
        self.asked: set[int] = set()
        """Finds and loads that were not answered."""
        self.dropping: dict[int, str | None] = {}
        """Drops that were not answered, and whose records they remove."""
        self.dropped: dict[int, Dropped] = {}
        """Answers to drops that nobody has fetched."""

    @property
    def unsent(self) -> bool:
        """True when something waits for the next plan (besides what is to be saved)."""
        return bool(self._finds or self._loads or self._drops or self._cancels)

    @property
    def waiting(self) -> bool:
        """True when an answer is awaited."""
        return bool(self.asked or self.dropping)

    def forbids(self, tenant: str) -> bool:
        """Whether the tiers' records of a tenant are being removed: nothing of them is to be asked for or loaded."""
        return bool(self.dropping) and any(whose in (None, tenant) for whose in self.dropping.values())

    def find(self, records: Sequence[RecordId], tenant: str) -> int:
        """Ask which tiers have these."""
        id = self._id()
        self._finds.append(Find(id, tuple(records), tenant))
        self.asked.add(id)
        return id

    def load(
        self, records: tuple[RecordId, ...], blocks: tuple[BlockId, ...], tiers: tuple[int, ...], tenant: str
    ) -> int:
        """Have records loaded into blocks."""
        id = self._id()
        self._loads.append(Load(id, records, blocks, tiers, tenant))
        self.asked.add(id)
        return id

    def drop(self, tenant: str | None) -> int:
        """Have the tiers emptied of one tenant's records, or of all."""
        id = self._id()
        self._drops.append(Drop(id, tenant))
        self.dropping[id] = tenant
        return id

    def cancel(self, id: int) -> None:
        """Nobody needs this answer any more; it comes all the same."""
        if id in self.asked:
            self._cancels.append(id)

    def post(self, cache: Cache, *, quiet: bool) -> StepPlan:
        """A plan of step 0 with everything that is to go; ``quiet``: nothing is computed beside it."""
        saves = [save for order in cache.orders(quiet=quiet) for save in self._saves(order)]
        plan = StepPlan(
            step=0,
            cancels=tuple(self._cancels),
            saves=tuple(saves),
            touches=cache.touches(),
            drops=tuple(self._drops),
            finds=tuple(self._finds),
            loads=tuple(self._loads),
            wait_s=WAIT_S if quiet and self.waiting else 0.0,
        )
        for part in (self._finds, self._loads, self._drops, self._cancels):
            part.clear()
        return plan

    def _saves(self, order: Order) -> list[Save]:
        parts = range(0, len(order.blocks), SAVE_BLOCKS)
        saves = [Save(self._id(), order.tenant, order.blocks[i : i + SAVE_BLOCKS]) for i in parts]
        for save in saves:
            self._saving[save.id] = tuple(block.block for block in save.blocks)
        return saves

    def kept(self, answer: Kept) -> list[BlockId]:
        """A save has ended; the blocks that no tier has."""
        blocks = self._saving.pop(answer.id, ())
        return [blocks[i] for i in answer.lost_at if i < len(blocks)]

    def _id(self) -> int:
        self._next += 1
        return self._next - 1
