"""A hit made longer by what tiers have: room for it, and what of it counts afterwards.

A sequence is admitted with what the tree has, ``begin`` gives its tables blocks for what is to be loaded, and ``end``
turns what was loaded into computed tokens: from then on the blocks are like those that it computed itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kvist.cache.bulk import Bulk, packed
from kvist.cache.groups import GroupRule
from kvist.cache.keys import space_of
from kvist.cache.ledger import Ledger
from kvist.cache.offload import Offload
from kvist.cache.probe import Probe, needed, probe, reach
from kvist.cache.tenancy import Tenancy
from kvist.ids import NULL_BLOCK, BlockId, RecordId, SeqId


@dataclass(frozen=True, slots=True)
class Wanted:
    """Records to load and the blocks that they go to; ``places`` are (group, entry of its table)."""

    end_tokens: int
    records: tuple[RecordId, ...]
    blocks: tuple[BlockId, ...]
    places: tuple[tuple[int, int], ...]


class Restorer:
    """The part of the cache that loads. Owner: ``Cache``, whose sequences and ``commit`` it uses."""

    def __init__(
        self,
        rules: tuple[GroupRule, ...],
        span_tokens: int,
        ledger: Ledger,
        seqs: Mapping[SeqId, Tenancy],
        commit: Callable[[SeqId, Sequence[int], int], None],
        *,
        bulk: Bulk,
        fingerprint: bytes,
        offload: Offload | None,
    ) -> None:
        self._rules = rules
        self._span = span_tokens
        self._ledger = ledger
        self._seqs = seqs
        self._commit = commit
        self._bulk = bulk
        self._fingerprint = fingerprint
        self._offload = offload

    def probe(
        self, tokens: Sequence[int], base: int, end: int, *, salt: bytes = b"", extras: tuple[bytes, ...] = ()
    ) -> Probe:
        """Names of the records of ``tokens[base:end]``, cut as ``Probe`` says."""
        data = packed(self._bulk, tokens)
        return probe(self._rules, self._span, space_of(salt, extras), data, base, end, self._fingerprint)

    def reach(self, asked: Probe, tiers: Sequence[int], most: int) -> int:
        """How far a hit would reach if everything that some tier has were loaded, ``most`` tokens at most.

        ``tiers`` answers ``asked.records`` (``transfer.Found``); ``asked.base`` when nothing helps.
        """
        there = [[tier >= 0 for tier in group] for group in asked.of_groups(tiers)]
        return reach(self._rules, self._span, asked, there, most)

    def needed(self, asked: Probe, base: int, end: int) -> list[RecordId]:
        """What a load from ``base`` to ``end`` reads."""
        return [record for *_, record in needed(self._rules, asked, base, end)]

    def begin(self, seq: SeqId, asked: Probe, end: int) -> Wanted:
        """Give the tables of an admitted sequence blocks up to ``end``, and say what is to be loaded into them.

        The sequence stands at a whole span. Windows let go at once of what a continuation at ``end`` does not read.
        Raises ``PoolFull`` and changes nothing.
        """
        tenancy = self._seqs[seq]
        base = tenancy.computed
        assert base % self._span == 0 and asked.base <= base < end <= asked.end, "a load begins at a whole span"
        wanted = needed(self._rules, asked, base, end)
        fresh = self._ledger.allocate(len(wanted), tenancy.share)
        blocks = {(group, entry): block for (group, entry, _), block in zip(wanted, fresh, strict=True)}
        for rule, table in zip(self._rules, tenancy.tables, strict=True):
            entries = range(len(table.ids), rule.end_block(end))
            table.append([blocks.get((rule.id, entry), NULL_BLOCK) for entry in entries])
            if rule.bounded and rule.first_block(end) > table.null_to:
                gone = table.null(rule.first_block(end))
                self._ledger.release(table, [b for b in gone if b != NULL_BLOCK])
        tenancy.loading = end
        tenancy.settle()
        self._ledger.changed(tenancy)
        return Wanted(end, tuple(r for *_, r in wanted), tuple(fresh), tuple((g, e) for g, e, _ in wanted))

    def end(self, seq: SeqId, tokens: Sequence[int], wanted: Wanted, good: Sequence[bool]) -> int | None:
        """The load is over: what it brought is computed and matchable. Gives how far the sequence is now.

        All of it; or without windows the whole spans before the first bad block; with windows, which need all, None:
        the sequence can only be released.
        """
        tenancy = self._seqs[seq]
        tenancy.loading = 0
        bad = [place for place, ok in zip(wanted.places, good, strict=True) if not ok]
        end = wanted.end_tokens
        if bad:
            if any(rule.bounded for rule in self._rules):
                return None
            width: dict[int, int] = {rule.id: rule.tokens for rule in self._rules}
            end = tenancy.base(min(entry * width[group] for group, entry in bad))
        if end > tenancy.computed:
            self._commit(seq, tokens, end)
        if self._offload is not None:
            treed = self._ledger.treed
            self._offload.came(b for b, ok in zip(wanted.blocks, good, strict=True) if ok and treed[b])
        return tenancy.computed
