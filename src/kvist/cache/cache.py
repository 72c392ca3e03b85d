"""The door of the KV cache: who holds which blocks, what of a prompt is known already, what goes when memory is short.

Life of a sequence: ``admit`` (take what matches) -> ``extend`` (room to write) -> ``drain`` (tell the executor) -> the
step runs -> ``commit`` (it is written: whole spans become matchable, windows let go) -> ... -> ``release``.
``truncate`` cuts the tail, ``fork`` makes a second sequence of the same tokens. The caller keeps the tokens.

Every change is prepared first: ``PoolFull`` and ``StateError`` leave all books as they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from kvist.cache.answers import Admission, Drained, Match, TenantShare
from kvist.cache.books import check_books
from kvist.cache.bulk import PLAIN, Bulk, packed
from kvist.cache.counters import Counters, count_query, new_tally, snapshot
from kvist.cache.evict.base import EvictPolicy
from kvist.cache.evict.lru import Lru
from kvist.cache.groups import rules_of
from kvist.cache.keys import space_of
from kvist.cache.ledger import Ledger
from kvist.cache.match import Hit
from kvist.cache.offload import Offload, Order, WriteRule
from kvist.cache.pool import Pool
from kvist.cache.probe import Probe, last_end
from kvist.cache.publish import publish as publish_run
from kvist.cache.queue import EvictQueue
from kvist.cache.reclaim import evict, evict_tenant
from kvist.cache.restore import Restorer, Wanted
from kvist.cache.share import Shares
from kvist.cache.take import Take, shorten, take_of
from kvist.cache.tenancy import Tenancy
from kvist.cache.tree import Tree
from kvist.errors import PoolFull, StateError
from kvist.ids import BlockId, SeqId
from kvist.spec.layout import CacheLayout
from kvist.transfer import Touch

__all__ = [
    "Admission", "Cache", "Counters", "Drained", "Match", "Order", "Probe", "TenantShare", "Wanted", "WriteRule",
    "last_end",
]  # fmt: skip

OFF: Final = Hit((), 0, 0, "off")


class Cache:
    """All books of one model's KV blocks. Owner: the scheduler. Not thread-safe.

    ``fingerprint`` roots the block keys (``keys.Fingerprint``). ``reuse=False`` matches and publishes nothing.
    ``weights`` say how much of a full pool a tenant may count on (``share.py``), 1 for those not named; ``BadValue``
    unless all are above 0. ``bulk`` works on many blocks at once (``bulk.py``). ``write`` says what goes to the tiers
    (``offload.py``), None: there are none; ``restorer`` makes hits longer by what they have.
    """

    def __init__(
        self,
        layout: CacheLayout,
        *,
        blocks: int,
        fingerprint: bytes = b"",
        policy: EvictPolicy | None = None,
        reuse: bool = True,
        lifo: bool = False,
        weights: Mapping[str, float] | None = None,
        bulk: Bulk = PLAIN,
        write: WriteRule | None = None,
    ) -> None:
        self._rules = rules_of(layout)
        self._span = layout.span_tokens
        self._tally = new_tally()
        self._pool = Pool(blocks, lifo=lifo, bulk=bulk)
        kinds = [r.bounded for r in self._rules]
        queue = EvictQueue(policy or Lru(), self._span, blocks, bounded=any(kinds), full=not all(kinds))
        self._shares = Shares(weights or {}, blocks)
        self._offload = None if write is None else Offload(write, self._rules, fingerprint, pool_blocks=blocks)
        self._tree = Tree(self._rules, self._pool, queue, self._shares, self._tally, self._offload)
        self._seqs: dict[SeqId, Tenancy] = {}
        self._ledger = Ledger(self._pool, self._tree, self._tally)
        self.reuse = reuse
        self.restorer = Restorer(
            self._rules,
            self._span,
            self._ledger,
            self._seqs,
            self.commit,
            bulk=bulk,
            fingerprint=fingerprint,
            offload=self._offload,
        )

    @property
    def total_blocks(self) -> int:
        """Blocks of the pool."""
        return self._pool.total

    @property
    def free_blocks(self) -> int:
        """Blocks that hold nothing of use."""
        return self._pool.free

    @property
    def cached_blocks(self) -> int:
        """Blocks that only the tree refers to; all of them can be evicted."""
        return self._pool.cached

    @property
    def available_blocks(self) -> int:
        """Exactly how many blocks can be had now: free and cached."""
        return self._pool.free + self._pool.cached

    def available_for(self, tenant: str) -> int:
        """How many of those a tenant can have without pushing another below its floor. O(tenants)."""
        return self._shares.available_blocks(tenant, self._pool.free, self._pool.cached)

    @property
    def live_blocks(self) -> int:
        """Blocks that sequences or pending copies refer to."""
        return self._pool.live

    @property
    def counters(self) -> Counters:
        """What happened so far."""
        return snapshot(self._tally)

    def sequences(self) -> tuple[SeqId, ...]:
        """Admitted and not released, oldest first."""
        return tuple(self._seqs)

    def computed(self, seq: SeqId) -> int:
        """Committed tokens of a sequence."""
        return self._of(seq).computed

    def table(self, seq: SeqId) -> tuple[tuple[BlockId, ...], ...]:
        """The block table of each group."""
        return tuple(tuple(t.ids) for t in self._of(seq).tables)

    def held_blocks(self, seq: SeqId) -> int:
        """Real blocks in the tables of a sequence, shared ones included."""
        return sum(t.held for t in self._of(seq).tables)

    def match(
        self, tokens: Sequence[int], *, limit: int | None = None, salt: bytes = b"", extras: tuple[bytes, ...] = ()
    ) -> Match:
        """What ``admit`` with the same arguments would find. Changes nothing, not even the order of eviction."""
        hit = OFF
        if self.reuse:
            hit = self._tree.match(space_of(salt, extras), packed(self._pool.bulk, tokens), _most(len(tokens), limit))
        return _answer(hit, take_of(hit, self._rules, self._span))

    def admit(
        self,
        seq: SeqId,
        tokens: Sequence[int],
        *,
        limit: int | None = None,
        salt: bytes = b"",
        extras: tuple[bytes, ...] = (),
        reuse: bool = True,
        copies: bool = True,
        tenant: str = "",
    ) -> Admission:
        """Start a sequence with as much of ``tokens`` as is cached: at most ``limit``, by default all but the last.

        Whole spans are shared, the rest of a matching run is copied. A hit whose copies cannot be had is cut to its
        whole spans, so this never raises ``PoolFull``; ``copies=False`` asks for that from the start (a copy keeps its
        source until ``drain``: for so long the sequence costs more blocks than it holds). ``reuse=False``: neither
        match nor publish. Its blocks are ``tenant``'s, and so is a namespace that has been empty.
        Raises ``StateError`` if ``seq`` is known, ``BadValue`` for extras shorter than 128 bits.
        """
        self._check_new(seq)
        reuse = reuse and self.reuse
        space, data, hit = space_of(salt, extras), b"", OFF
        if reuse:
            data = packed(self._pool.bulk, tokens)
            hit = self._tree.match(space, data, _most(len(tokens), limit))
        take = take_of(hit, self._rules, self._span)
        if take.copied_blocks and not (copies and take.fits(self._pool)):
            hit = shorten(hit, self._span, self._tree.bounded, "full" if copies else "limit")
            take = take_of(hit, self._rules, self._span)
        tenancy = Tenancy(seq, space, self._shares.join(tenant), self._rules, self._span, reuse=reuse)
        base = tenancy.base(hit.tokens)
        tenancy.stand(next((n for n in reversed(hit.nodes) if n.start < base), None), base)
        self._tree.hit(hit.nodes, hit.tokens, hit.ghost)
        tenancy.ghost, tenancy.packed = hit.ghost, data
        self._ledger.seat(tenancy, take)
        self._seqs[tenancy.seq] = tenancy
        match = _answer(hit, take)
        count_query(self._tally, len(tokens), match)
        return Admission(hit.tokens, match)

    def blocks_needed(self, seq: SeqId, end_tokens: int) -> int:
        """Blocks that ``extend(seq, end_tokens)`` would allocate."""
        tenancy = self._of(seq)
        return len(tenancy.to_copy(end_tokens, self._pool)) + sum(tenancy.growth(end_tokens))

    def extend(self, seq: SeqId, end_tokens: int) -> None:
        """Make room to write ``[computed, end_tokens)``: all tables cover it and no one else refers to those blocks.

        Evicts as needed. Raises ``PoolFull`` and changes nothing when there are not enough blocks.
        """
        tenancy = self._of(seq)
        if end_tokens <= tenancy.covered and tenancy.private_from <= tenancy.computed:
            return
        to_copy = tenancy.to_copy(end_tokens, self._pool)
        growth = tenancy.growth(end_tokens)
        fresh = iter(self._ledger.allocate(len(to_copy) + sum(growth), tenancy.share))
        for table, index in to_copy:
            self._ledger.replace(table, index, next(fresh))
        for table, count in zip(tenancy.tables, growth, strict=True):
            table.append(islice(fresh, count))
        if end_tokens > tenancy.computed:
            tenancy.private_from = min(tenancy.private_from, tenancy.base(tenancy.computed))
        tenancy.settle()
        self._ledger.changed(tenancy)

    def commit(self, seq: SeqId, tokens: Sequence[int], computed: int) -> None:
        """Positions ``[0, computed)`` of ``seq`` are written and accepted, with these ``tokens`` (drafts excluded).

        They begin with those of ``admit`` as ``truncate`` left them. Whole spans become matchable, windows let go.
        """
        tenancy = self._of(seq)
        tenancy.accept(len(tokens), computed)
        if computed < tenancy.next_event:
            return
        if tenancy.reuse:
            publish_run(self._tree, tenancy, tokens)
        for rule, table in zip(self._rules, tenancy.tables, strict=True):
            if rule.bounded and rule.first_block(computed) > table.null_to:
                self._ledger.release(table, table.null(rule.first_block(computed)))
                self._ledger.changed(tenancy)
        tenancy.settle()

    def truncate(self, seq: SeqId, end_tokens: int) -> None:
        """Cut a sequence to ``end_tokens``; what it published stays cached. Costs O(tail).

        A shared block that becomes partial is copied at the next ``extend``. Raises ``StateError`` where a window
        group no longer holds what a query at ``end_tokens`` reads.
        """
        tenancy = self._of(seq)
        tenancy.check_cut(end_tokens)
        tenancy.cut(end_tokens)
        for rule, table in zip(self._rules, tenancy.tables, strict=True):
            self._ledger.release(table, table.truncate(rule.end_block(end_tokens)))
        tenancy.settle()
        self._ledger.changed(tenancy)

    def fork(self, parent: SeqId, child: SeqId) -> None:
        """A second sequence of the parent's committed tokens: whole spans shared, the open one copied.

        Raises ``PoolFull`` and changes nothing when the copies cannot be had.
        """
        old = self._of(parent)
        self._check_new(child)
        base = old.base(old.computed)
        pairs = list(zip(self._rules, old.tables, strict=True))
        shared = tuple(t.ids[: base // r.tokens] for r, t in pairs)
        sources = tuple(t.ids[base // r.tokens : r.end_block(old.computed)] for r, t in pairs)
        take = Take(old.computed, shared, sources)
        if take.copied_blocks > self.available_blocks:
            raise PoolFull(needed_blocks=take.copied_blocks, available_blocks=self.available_blocks)
        share = self._shares.join(old.share.tenant)
        tenancy = Tenancy(child, old.space, share, self._rules, self._span, reuse=old.reuse)
        tenancy.stand_beside(old)
        self._ledger.seat(tenancy, take)
        self._seqs[tenancy.seq] = tenancy
        old.private_from = max(old.private_from, base)

    def release(self, seq: SeqId, tokens: Sequence[int], computed: int, *, publish: bool = True) -> None:
        """End a sequence: what is committed stays cached (a partly filled span as an open tail), the rest is freed."""
        tenancy = self._of(seq)
        if publish and tenancy.reuse:
            tenancy.accept(len(tokens), computed)
            publish_run(self._tree, tenancy, tokens, tail=True)
        del self._seqs[seq]
        self._ledger.forget(seq)
        for table in tenancy.tables:
            self._ledger.release(table, table.truncate(0))
        self._shares.quit(tenancy.share)

    def drain(self) -> Drained:
        """What changed since the last call, for the executor. Sources of copies are unprotected from here on."""
        return self._ledger.drain()

    def orders(self, *, quiet: bool = False) -> list[Order]:
        """Blocks whose bytes the tiers are to get with this plan; ``quiet``: it computes nothing."""
        return [] if self._offload is None else self._offload.take(quiet=quiet)

    def unkept(self, blocks: Sequence[BlockId]) -> None:
        """No tier took these: they are offered again when a hit uses them."""
        if self._offload is not None and blocks:
            self._offload.lost(blocks)

    def touches(self) -> tuple[Touch, ...]:
        """What hits used since the last call, for the tiers."""
        return () if self._offload is None else self._offload.take_touches()

    @property
    def unsent(self) -> bool:
        """True when the next call of ``orders`` with ``quiet`` may give some."""
        return self._offload is not None and self._offload.unsent

    def reset(self, tenant: str | None = None) -> int:
        """Evict every cached block (of one tenant's namespaces); sequences keep theirs. Says how many there were.

        Nothing of it goes to the tiers.
        """
        share = None if tenant is None else self._shares.by_tenant.get(tenant)
        if tenant is not None and share is None:
            return 0
        if self._offload is not None:
            self._offload.forget(tenant)
        freed = evict(self._tree, self._pool.cached) if share is None else evict_tenant(self._tree, share)
        if self._offload is not None:
            self._offload.forget(tenant)
            left = dict.fromkeys(node for node in self._tree.owner if node is not None)
            self._offload.again(node for node in left if tenant in (None, node.share.tenant))
        return freed

    def tenants(self) -> dict[str, TenantShare]:
        """Who has how much, and lost how much so far (the totals of many tenants that left are remembered too)."""
        return self._shares.report()

    def check(self) -> None:
        """Pool, tree, tables and queue agree, or ``AssertionError``. Walks everything: for tests."""
        check_books(self._pool, self._tree, self._seqs)

    def _of(self, seq: SeqId) -> Tenancy:
        tenancy = self._seqs.get(seq)
        if tenancy is None:
            raise StateError(f"sequence {seq} is not admitted")
        return tenancy

    def _check_new(self, seq: SeqId) -> None:
        if seq in self._seqs:
            raise StateError(f"sequence {seq} is admitted already", remedy="release it first")


def _most(n_tokens: int, limit: int | None) -> int:
    """Tokens that may be taken of a prompt of ``n_tokens``: by default all but the last."""
    return max(0, n_tokens - 1 if limit is None else min(limit, n_tokens))


def _answer(hit: Hit, take: Take) -> Match:
    return Match(hit.tokens, take.shared_blocks, take.copied_blocks, hit.reason, hit.run, hit.there)
