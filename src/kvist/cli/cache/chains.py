"""Records as chains: what a last record is the end of, what it shares with others, and what goes when it goes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kvist.errors import UsageError
from kvist.ids import RECORD_ID_BYTES, RecordId
from kvist.tier.base import Entry

KEY_BYTES: Final = RECORD_ID_BYTES - 2
"""The block's key in a record's id; group and shard come after it: records of one block differ there only."""

TOKEN_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Chain:
    """Last records of one block (one for each group and shard), summed up with all before them.

    ``tokens`` is the longest of its groups. ``whole``: it goes back to a first record. Chains share what they begin
    with, so their sums count that more than once.
    """

    last: tuple[Entry, ...]
    records: int
    tokens: int
    data_bytes: int
    stored_bytes: int
    whole: bool

    @property
    def id(self) -> RecordId:
        """Its name: the id of its last record."""
        return self.last[0].label.id

    @property
    def used(self) -> int:
        """Its last use, in the place's own order; 0 where that is not known."""
        return max(entry.used for entry in self.last)

    @property
    def hits(self) -> int:
        """How often its last record was read."""
        return max(entry.hits for entry in self.last)


class Book:
    """All records of a place, or those of a tenant or an origin."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.entries = {entry.label.id: entry for entry in entries}
        self._below: dict[RecordId, list[RecordId]] = {}
        for id in self.entries:
            above = self._above(id)
            if above is not None:
                self._below.setdefault(above, []).append(id)

    def _above(self, id: RecordId) -> RecordId | None:
        """The record before it, if it is here. Depths must agree, so that no damage makes a circle."""
        label = self.entries[id].label
        above = self.entries.get(label.parent)
        return label.parent if above is not None and above.label.depth + 1 == label.depth else None

    def path(self, id: RecordId) -> list[Entry]:
        """A record and all before it, the first one first."""
        found: list[Entry] = []
        at: RecordId | None = id
        while at is not None:
            found.append(self.entries[at])
            at = self._above(at)
        return found[::-1]

    def chains(self) -> list[Chain]:
        """One for each block that nothing comes after."""
        sums: dict[RecordId, tuple[int, int, int, int, bool]] = {}
        for entry in sorted(self.entries.values(), key=lambda e: e.label.depth):
            label, above = entry.label, self._above(entry.label.id)
            before = (0, 0, 0, 0, not label.parent) if above is None else sums[above]
            own = (1, len(label.tokens) // TOKEN_BYTES, entry.data_bytes, entry.stored_bytes)
            sums[label.id] = (*(a + b for a, b in zip(before[:4], own, strict=True)), before[4])  # type: ignore[assignment]
        ends: dict[bytes, list[Entry]] = {}
        for id, entry in self.entries.items():
            if id not in self._below:
                ends.setdefault(id[:KEY_BYTES], []).append(entry)
        return [_chain(last, [sums[e.label.id] for e in last]) for last in ends.values()]

    def find(self, text: str) -> list[Entry]:
        """The records of the block whose id begins with ``text``. Raises ``UsageError`` for none or several blocks."""
        wanted = text.strip().lower()
        if not wanted or set(wanted) - set("0123456789abcdef") or len(wanted) > 2 * RECORD_ID_BYTES:
            raise UsageError(
                f"{text!r} is no id", remedy=f"1 to {2 * RECORD_ID_BYTES} hex digits, as kvist cache ls has them"
            )
        found = [entry for id, entry in self.entries.items() if id.hex().startswith(wanted)]
        if not found:
            raise UsageError(f"there is no record {text} in this place", remedy="kvist cache ls lists what there is")
        keys = sorted({entry.label.id[:KEY_BYTES] for entry in found})
        if len(keys) > 1:
            some = ", ".join(key.hex()[: len(wanted) + 6] for key in keys[:3])
            raise UsageError(f"{len(keys)} blocks have ids that begin with {text}", remedy=f"say more of it: {some}...")
        return sorted(found, key=lambda entry: entry.label.id)

    def whole_path(self, last: Sequence[Entry]) -> list[Entry]:
        """All records up to ``last``, ancestors first. Raises ``UsageError`` where the beginning is not there."""
        paths = [self.path(entry.label.id) for entry in last]
        for path in paths:
            if path[0].label.parent:
                raise UsageError(
                    f"the chain of {path[-1].label.id.hex()} has no beginning: its first {path[0].label.depth}"
                    " records are not there",
                    remedy="ask the conversation once more, so that they are computed and stored anew",
                )
        together = {entry.label.id: entry for path in paths for entry in path}
        return sorted(together.values(), key=lambda entry: entry.label.depth)

    def branch(self, ids: Iterable[RecordId]) -> set[RecordId]:
        """What goes when ``ids`` go: what comes after them, and what before them no other chain has."""
        gone: set[RecordId] = set()
        waiting = list(ids)
        while waiting:
            id = waiting.pop()
            if id not in gone:
                gone.add(id)
                waiting += self._below.get(id, ())
        for id in sorted(gone, key=lambda id: self.entries[id].label.depth):
            above = self._above(id)
            while above is not None and above not in gone and gone.issuperset(self._below[above]):
                gone.add(above)
                above = self._above(above)
        return gone


def _chain(last: list[Entry], sums: list[tuple[int, int, int, int, bool]]) -> Chain:
    records, tokens, data_bytes, stored_bytes, whole = zip(*sums, strict=True)
    return Chain(
        tuple(sorted(last, key=lambda entry: entry.label.id)),
        sum(records),
        max(tokens),
        sum(data_bytes),
        sum(stored_bytes),
        all(whole),
    )
