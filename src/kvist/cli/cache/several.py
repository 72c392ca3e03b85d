"""Several open places read as one: what a record's first place cannot give, the next one that has it may."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from kvist.cli.cache.chains import Book
from kvist.cli.cache.opening import looked_into, unsealed
from kvist.cli.cache.place import Place
from kvist.errors import KvistError
from kvist.ids import RecordId
from kvist.tier.base import Entry, Got, Label, Tier
from kvist.tier.bundle import Source
from kvist.tier.seal import Sealed


@dataclass(frozen=True, slots=True)
class Several:
    """Sources, the one to ask first first."""

    sources: Sequence[Source]

    @property
    def name(self) -> str:
        """All of them."""
        return ", ".join(source.name for source in self.sources)

    def get_many_into(
        self, ids: Sequence[RecordId], buffers: Sequence[memoryview], *, timeout_s: float
    ) -> list[tuple[Got, Label | None]]:
        """Each record from the first that has it whole; otherwise what the last one that was asked said."""
        end = time.monotonic() + timeout_s
        got: list[tuple[Got, Label | None]] = [("missing", None)] * len(ids)
        for source in self.sources:
            rest = [n for n, (how, _) in enumerate(got) if how != "hit"]
            if not rest:
                break
            left_s = max(0.0, end - time.monotonic())
            asked = source.get_many_into([ids[n] for n in rest], [buffers[n] for n in rest], timeout_s=left_s)
            for n, answer in zip(rest, asked, strict=True):
                if answer[0] != "missing" or got[n][0] == "missing":
                    got[n] = answer
        return got


@dataclass(frozen=True, slots=True)
class Shelf:
    """Open places, and all records that they list."""

    tiers: Sequence[Tier | Sealed]
    book: Book

    def view(self, tenant: str) -> Several:
        """What a tenant has in them."""
        return Several([tier.view(tenant) if isinstance(tier, Sealed) else tier for tier in self.tiers])


@contextmanager
def all_looked_into(places: Sequence[Place]) -> Iterator[Shelf]:
    """The places, to read only. Only the first one must be there: others are left out, with a line that says so.

    Raises ``KvistError``.
    """
    with ExitStack() as stack:
        tiers: list[Tier | Sealed] = []
        for n, place in enumerate(places):
            try:
                tier = stack.enter_context(looked_into(place))
                tiers.append(unsealed(tier, place) if place.sealed else tier)
            except KvistError as error:
                if not n:
                    raise
                print(f"note: {place.shown} is left out: {error.what}", file=sys.stderr)
        entries: dict[RecordId, Entry] = {}
        for tier in reversed(tiers):
            entries |= {entry.label.id: entry for entry in tier.list()}
        yield Shelf(tiers, Book(entries.values()))
