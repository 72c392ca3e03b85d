"""Tiers on paper: what a mover does, in virtual time, with cells for bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvist.sim.clock import Passing
from kvist.step import StepPlan
from kvist.transfer import Drop, Dropped, Find, Found, Kept, Load, Loaded, Save, SavedBlock

Cells = list[Any]
Fault = Callable[[Load, int], str]
"""Why record number i of a load does not come (a reason of ``Loaded``), or "" when it does."""


def no_fault(load: Load, index: int) -> str:
    """Everything works."""
    return ""


@dataclass(slots=True)
class PaperTier:
    """One place: what it has by record id (tenant, cells) and how fast it is. Shared by engines, like a disk."""

    name: str = "disk"
    bytes_per_s: float = 1e9
    latency_s: float = 1e-4
    most_records: int | None = None
    records: dict[bytes, tuple[str, Cells]] = field(default_factory=dict)
    labels: dict[bytes, tuple[bytes, int, bytes]] = field(default_factory=dict)
    """Parent, depth and tokens of every record that was ever sent here."""
    read_until_s: float = 0.0
    written_until_s: float = 0.0

    def keep(self, record: bytes, tenant: str, cells: Cells) -> bool:
        """Store one record; when full the oldest goes. False when it was there."""
        if record in self.records:
            return False
        self.records[record] = tenant, cells
        if self.most_records is not None and len(self.records) > self.most_records:
            del self.records[next(iter(self.records))]
        return True


@dataclass(frozen=True, slots=True)
class _Due:
    at_s: float
    act: Callable[[], None]


class PaperMover:
    """Carries out the tier part of plans. ``read`` and ``write`` are the cells of a block (None: no memory is kept)."""

    def __init__(
        self,
        tiers: Sequence[PaperTier],
        clock: Passing,
        *,
        block_bytes: int,
        read: Callable[[int], Cells],
        write: Callable[[int, Cells | None], None],
        fault: Fault = no_fault,
    ) -> None:
        self.tiers = tuple(tiers)
        self.fault = fault
        self._clock = clock
        self._block_bytes = block_bytes
        self._read = read
        self._write = write
        self._due: list[_Due] = []
        self._found: list[Found] = []
        self._loaded: list[Loaded] = []
        self._kept: list[Kept] = []
        self._dropped: list[Dropped] = []

    def first(self, plan: StepPlan) -> None:
        """What comes before anything else of a plan."""
        for drop in plan.drops:
            self._written(0, lambda drop=drop: self._drop(drop))  # type: ignore[misc]
        for save in plan.saves:
            self._save(save)
        for find in plan.finds:
            at_s = self._clock.now() + self.tiers[0].latency_s
            self._due.append(_Due(at_s, lambda find=find: self._find(find)))  # type: ignore[misc]

    def begin(self, loads: Sequence[Load]) -> None:
        """Start loads; their blocks were made fresh."""
        for load in loads:
            assert min(load.tiers) >= 0, "a load of what no tier has"
            at_s = max(self._read_at(tier, load.tiers.count(tier)) for tier in set(load.tiers))
            begun_s = self._clock.now()
            self._due.append(_Due(at_s, lambda load=load, begun_s=begun_s: self._load(load, begun_s)))  # type: ignore[misc]

    def wait(self, seconds: float) -> None:
        """Let time pass until something is due, at most so long."""
        now = self._clock.now()
        next_s = min((due.at_s for due in self._due), default=now + seconds)
        self._clock.advance(min(seconds, max(0.0, next_s - now)))

    def flush(self) -> None:
        """Let time pass until nothing is on its way any more."""
        while self._due:
            self.wait(float("inf"))
            self._settle()

    def answers(self) -> dict[str, Any]:
        """What has ended by now, for a ``StepResult``."""
        self._settle()
        out = {
            "found": tuple(self._found),
            "loaded": tuple(self._loaded),
            "kept": tuple(self._kept),
            "dropped": tuple(self._dropped),
        }
        for part in (self._found, self._loaded, self._kept, self._dropped):
            part.clear()
        return out

    def _settle(self) -> None:
        now = self._clock.now()
        for due in sorted((d for d in self._due if d.at_s <= now), key=lambda d: d.at_s):
            self._due.remove(due)
            due.act()

    def _read_at(self, tier: int, n_blocks: int) -> float:
        """When a tier will have read ``n_blocks`` more."""
        place = self.tiers[tier]
        begin_s = max(self._clock.now(), place.read_until_s)
        place.read_until_s = begin_s + place.latency_s + n_blocks * self._block_bytes / place.bytes_per_s
        return place.read_until_s

    def _written(self, n_blocks: int, act: Callable[[], None]) -> None:
        """``act`` once the first tier has written ``n_blocks`` more: saves and drops keep their order."""
        place = self.tiers[0]
        begin_s = max(self._clock.now(), place.written_until_s)
        place.written_until_s = begin_s + place.latency_s + n_blocks * self._block_bytes / place.bytes_per_s
        self._due.append(_Due(place.written_until_s, act))

    def _save(self, save: Save) -> None:
        for block in save.blocks:
            self._check(block)
        taken = [(b.record, self._read(b.block)) for b in save.blocks]

        def store() -> None:
            news = [sum(tier.keep(record, save.tenant, cells) for tier in self.tiers) > 0 for record, cells in taken]
            self._kept.append(Kept(save.id, sum(news), len(news) - sum(news), 0))

        self._written(len(taken), store)

    def _check(self, block: SavedBlock) -> None:
        """A record always has the same parent, depth and tokens, and lies one below its parent."""
        label, known = (block.parent, block.depth, block.tokens), self.tiers[0].labels
        assert known.setdefault(block.record, label) == label, "a record was given two labels"
        if block.depth and block.parent in known:
            assert known[block.parent][1] == block.depth - 1, "a record does not lie one below its parent"

    def _find(self, find: Find) -> None:
        where = [next((i for i, t in enumerate(self.tiers) if r in t.records), -1) for r in find.records]
        now = self._clock.now()
        queued = [max(0.0, t.read_until_s - now) * t.bytes_per_s for t in self.tiers]
        self._found.append(Found(find.id, tuple(where), tuple(int(q) for q in queued)))

    def _load(self, load: Load, begun_s: float) -> None:
        good, reason = [], ""
        for i, (record, block, tier) in enumerate(zip(load.records, load.blocks, load.tiers, strict=True)):
            held = self.tiers[tier].records.get(record)
            why = reason or self.fault(load, i) or ("" if held else "missing")
            good.append(not why)
            reason = reason or why
            self._write(block, held[1] if held and not why else None)
        moved = tuple(load.tiers.count(t) * self._block_bytes for t in range(len(self.tiers)))
        busy = tuple(n / t.bytes_per_s for n, t in zip(moved, self.tiers, strict=True))
        seconds = self._clock.now() - begun_s
        self._loaded.append(Loaded(load.id, tuple(good), reason, -1, seconds, moved, busy))

    def _drop(self, drop: Drop) -> None:
        gone = []
        for tier in self.tiers:
            mine = [r for r, (tenant, _) in tier.records.items() if drop.tenant in (None, tenant)]
            for record in mine:
                del tier.records[record]
            gone.append(len(mine))
        self._dropped.append(Dropped(drop.id, tuple(gone)))
