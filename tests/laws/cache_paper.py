"""A model of the cache's promises on paper: an executor that obeys drained letters and remembers what every slot holds,
and a driver that does random things to a ``Cache`` and checks every slot that a query may read."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field

from kvist.cache.cache import Cache, Drained
from kvist.cache.keys import space_of
from kvist.errors import PoolFull, StateError
from kvist.ids import NULL_BLOCK, GroupId, SeqId
from kvist.spec.format import KVFormat
from kvist.spec.layer import Retention
from kvist.spec.layout import CacheLayout, Group

FULL = Retention()


def layout_of(*groups: tuple[int, Retention]) -> CacheLayout:
    """A layout of bare groups: (tokens per block, retention)."""
    made = tuple(
        Group(GroupId(i), (i,), 1, retention, tokens, 1, (), 64, 8) for i, (tokens, retention) in enumerate(groups)
    )
    return CacheLayout(made, 1024, KVFormat())


def window(n: int, sinks: int = 0) -> Retention:
    return Retention(window_tokens=n, sinks=sinks)


LAYOUTS = {
    "full": layout_of((4, FULL)),
    "full+window": layout_of((4, FULL), (8, window(9))),
    "window+full": layout_of((4, window(6)), (8, FULL)),
    "windows": layout_of((4, window(7)), (4, window(7)), (8, window(12))),
    "sinks": layout_of((4, FULL), (4, window(5, sinks=3))),
    "all sinks": layout_of((4, window(6, sinks=5))),
    "chunked": layout_of((4, FULL), (8, Retention(chunk_tokens=16))),
    "all chunked": layout_of((4, Retention(chunk_tokens=16)), (8, Retention(chunk_tokens=16))),
    "odd chunks": layout_of((4, Retention(chunk_tokens=12)), (8, FULL), (4, window(3))),
    "two full": layout_of((4, FULL), (16, FULL)),
}


def histories(space: object, tokens: list[int]) -> list[int]:
    """One number per position that stands for everything up to it."""
    out, h = [], hash(space)
    for token in tokens:
        h = hash((h, token))
        out.append(h)
    return out


@dataclass
class Chunk:
    seq: SeqId
    start: int
    hist: list[int]
    """Of every position up to the chunk's end."""


@dataclass
class Flight:
    letter: Drained
    chunks: list[Chunk]


class Paper:
    """An executor without tensors: ``slots[block][slot] = (group, position, history)``."""

    def __init__(self, layout: CacheLayout) -> None:
        self.layout = layout
        self.slots: dict[int, dict[int, tuple[int, int, int]]] = {}
        self.tables: dict[tuple[int, int], list[int]] = {}
        self.writes = 0

    def forget(self, seq: SeqId) -> None:
        for key in [k for k in self.tables if k[0] == seq]:
            del self.tables[key]

    def apply(self, letter: Drained) -> None:
        for block in letter.fresh:
            self.slots[block] = {}
        for change in letter.tables:
            ids = self.tables.setdefault((change.seq, change.group), [])
            assert change.keep <= len(ids), "keeps entries that were never sent"
            del ids[change.keep :]
            ids.extend(change.append)
            for i in range(change.null_from, change.null_to):
                assert ids[i] != NULL_BLOCK or change.null_to == 0
                ids[i] = NULL_BLOCK
        for copy in letter.copies:
            self.slots[copy.dst] = dict(self.slots.get(copy.src, {}))

    def run(self, chunk: Chunk) -> None:
        self.check_reads(chunk.seq, chunk.start, chunk.hist, "before a chunk")
        for group in self.layout.groups:
            ids = self.tables[chunk.seq, group.id]
            for pos in range(chunk.start, len(chunk.hist)):
                block = ids[pos // group.tokens_per_block]
                assert block != NULL_BLOCK, "a write has no block"
                slot = pos % group.tokens_per_block
                self.slots.setdefault(block, {})[slot] = (group.id, pos, chunk.hist[pos])
                self.writes += 1

    def check_reads(self, seq: SeqId, n: int, hist: list[int], when: str) -> None:
        """Every slot that a query at position n may read holds this sequence's own history."""
        for group in self.layout.groups:
            ids = self.tables.get((seq, group.id), [])
            first, sinks = group.retention.first_needed(n), min(group.retention.sinks, n)
            for pos in [*range(sinks), *range(max(first, sinks), n)]:
                block = ids[pos // group.tokens_per_block]
                assert block != NULL_BLOCK, f"{when}: position {pos} of {seq} is null"
                held = self.slots.get(block, {}).get(pos % group.tokens_per_block)
                assert held == (group.id, pos, hist[pos]), f"{when}: position {pos} of {seq} in block {block}: {held}"


class Desk:
    """A cache with an executor on paper, one synchronous step at a time: for scenarios written out by hand."""

    def __init__(self, layout: CacheLayout, blocks: int, *, check: bool = True, **options) -> None:
        self.check = check
        self.cache = Cache(layout, blocks=blocks, **options)
        self.paper = Paper(layout)
        self.tokens: dict[SeqId, list[int]] = {}
        self.spaces: dict[SeqId, object] = {}
        self.ids = 0

    def start(self, tokens: list[int], **options) -> SeqId:
        seq = SeqId(self.ids)
        self.ids += 1
        self.admission = self.cache.admit(seq, tokens, **options)
        self.tokens[seq] = list(tokens)
        self.spaces[seq] = space_of(options.get("salt", b""), options.get("extras", ()))
        return seq

    def send(self) -> Drained:
        letter = self.cache.drain()
        self.paper.apply(letter)
        return letter

    def compute(self, seq: SeqId, end: int | None = None, *, commit: bool = True) -> int:
        """Write up to ``end`` (all tokens) and commit; gives the number of tokens computed."""
        tokens = self.tokens[seq]
        start, end = self.cache.computed(seq), len(tokens) if end is None else end
        self.cache.extend(seq, end)
        self.send()
        self.paper.run(Chunk(seq, start, histories(self.spaces[seq], tokens[:end])))
        if commit:
            self.cache.commit(seq, tokens, end)
        if self.check:
            self.cache.check()
        return end - start

    def fork(self, seq: SeqId) -> SeqId:
        child = SeqId(self.ids)
        self.ids += 1
        self.cache.fork(seq, child)
        self.tokens[child] = list(self.tokens[seq])
        self.spaces[child] = self.spaces[seq]
        return child

    def read(self, seq: SeqId) -> None:
        """The next query of ``seq`` finds its own history."""
        self.send()
        n = self.cache.computed(seq)
        self.paper.check_reads(seq, n, histories(self.spaces[seq], self.tokens[seq][:n]), "read")

    def finish(self, seq: SeqId, *, publish: bool = True) -> None:
        self.cache.release(seq, self.tokens[seq], self.cache.computed(seq), publish=publish)
        if self.check:
            self.cache.check()

    def serve(self, tokens: list[int], **options) -> int:
        """A whole request; gives its cached tokens."""
        seq = self.start(tokens, **options)
        cached = self.admission.cached_tokens
        self.compute(seq)
        self.finish(seq)
        return cached


@dataclass
class Live:
    seq: SeqId
    space: tuple[bytes, tuple[bytes, ...]]
    tokens: list[int]
    planned: int
    """End of what is in flight or committed."""
    given: int
    """The first tokens, that its admission named: no drafts."""
    reuse: bool = True
    era: int = 0
    hist: list[int] = field(default_factory=list)


class Driver:
    """Random admissions, steps with drafts, truncations, forks, releases and resets, up to two plans in flight."""

    def __init__(
        self, layout: CacheLayout, seed: int, *, blocks: int = 40, lifo: bool = False, reuse: bool = True
    ) -> None:
        self.rng = random.Random(seed)
        self.tenants = random.Random(seed + 1)
        self.layout = layout
        self.cache = Cache(layout, blocks=blocks, lifo=lifo, reuse=reuse, weights={"b": 3.0, "c": 0.5})
        self.paper = Paper(layout)
        self.live: dict[SeqId, Live] = {}
        self.flights: deque[tuple[Flight, list[tuple[Live, int, int]]]] = deque()
        self.ids = 0
        self.done: dict[str, int] = {}
        self.span = layout.span_tokens
        per_token = sum(1 / g.tokens_per_block for g in layout.groups)
        self.longest = min(int(blocks / per_token / 2), 6 * self.span + 5)
        self.documents = [[self.rng.randrange(3) for _ in range(self.longest)] for _ in range(3)]

    # What it does.

    def prompt(self) -> list[int]:
        """The start of a document, now and then with a few tokens of its own."""
        rng = self.rng
        document = rng.choice(self.documents)
        tokens = document[: rng.randint(1, len(document))]
        if rng.random() < 0.5:
            cut = rng.randint(0, len(tokens))
            tokens = tokens[:cut] + [rng.randrange(4) for _ in range(rng.randint(1, self.span * 2))]
        return tokens[: self.longest]

    def admit(self) -> None:
        rng, cache = self.rng, self.cache
        if len(self.live) >= 5:
            return
        tokens = self.prompt()
        salt = rng.choice([b"", b"", b"", b"tenant"])
        extras = rng.choice([(), (), (), (b"x" * 16,)])
        limit = rng.choice([None, None, None, rng.randint(0, len(tokens))])
        reuse = rng.random() < 0.9
        seq = SeqId(self.ids)
        self.ids += 1
        seen = cache.match(tokens, limit=limit, salt=salt, extras=extras)
        self.oracle(tokens, seen.cached_tokens, limit, salt, extras)
        copies, tenant = rng.random() < 0.9, self.tenants.choice("abcd")
        got = cache.admit(seq, tokens, limit=limit, salt=salt, extras=extras, reuse=reuse, copies=copies, tenant=tenant)
        assert got.cached_tokens <= (len(tokens) - 1 if limit is None else limit)
        assert got.cached_tokens == got.match.cached_tokens == cache.computed(seq)
        assert got.cached_tokens == seen.cached_tokens or got.match.reason in ("full", "limit", "off")
        reused = reuse and cache.reuse
        self.live[seq] = Live(seq, space_of(salt, extras), tokens, got.cached_tokens, len(tokens), reused)
        self.note("hit" if got.cached_tokens else "miss")
        if got.match.copied_blocks:
            self.note("partial hit")
        self.note(got.match.reason)

    def oracle(self, tokens: list[int], found: int, limit: int | None, salt: bytes, extras: tuple[bytes, ...]) -> None:
        """The match against a search over every path of the tree."""
        most = max(0, len(tokens) - 1) if limit is None else limit
        tree = self.cache._tree
        root = tree.roots.get(space_of(salt, extras))
        best = 0
        stack = [(child, [child]) for child in root.children.values()] if root and self.cache.reuse else []
        while stack:
            node, path = stack.pop()
            stack += [(child, [*path, child]) for child in node.children.values()]
            run = [t for n in path for t in memoryview(bytes(n.tokens)).cast("i")]
            same = 0
            while same < min(len(run), most) and run[same] == tokens[same]:
                same += 1
            flat = {r.id: [b for n in path for b in n.blocks[r.id]] for r in tree.rules}
            for n in range(same, best, -1):
                if all(self.present(r, flat[r.id], n) for r in tree.rules):
                    best = n
                    break
        assert found == best, f"match found {found}, {best} is there"

    @staticmethod
    def present(rule, ids, n: int) -> bool:
        need = set(range(rule.retention.first_needed(n) // rule.tokens, -(-n // rule.tokens)))
        need |= set(range(-(-min(rule.retention.sinks, n) // rule.tokens)))
        return all(ids[i] != NULL_BLOCK for i in need)

    def step(self) -> None:
        """Plan chunks for some sequences, send the letter, and perhaps run the oldest one."""
        rng, cache = self.rng, self.cache
        chunks, notes = [], []
        for live in list(self.live.values()):
            if rng.random() < 0.3:
                continue
            room = rng.randint(1, self.span * 2)
            if live.planned > cache.computed(live.seq) and live.planned >= len(live.tokens):
                continue
            while len(live.tokens) < live.planned + room and rng.random() < 0.9:
                live.tokens.append(rng.randrange(3))
            end = min(len(live.tokens), live.planned + room)
            if end > self.longest or end <= live.planned:
                continue
            if not self.extend(live.seq, end):
                continue
            chunks.append(Chunk(live.seq, live.planned, histories(live.space, live.tokens[:end])))
            notes.append((live, live.era, end))
            live.planned = end
        self.flights.append((Flight(cache.drain(), chunks), notes))
        cache.check()
        while len(self.flights) > rng.randint(0, 1):
            self.land()

    def extend(self, seq: SeqId, end: int) -> bool:
        cache = self.cache
        need, room = cache.blocks_needed(seq, end), cache.available_blocks
        before = self.books()
        try:
            cache.extend(seq, end)
        except PoolFull as full:
            assert need > room and full.needed_blocks == need and full.available_blocks == room
            assert self.books() == before, "PoolFull changed something"
            self.note("pool full")
            return False
        assert need <= room, "extended although there was no room"
        assert cache.available_blocks >= room - need
        return True

    def books(self) -> tuple:
        cache = self.cache
        tables = tuple(cache.table(s) for s in cache.sequences())
        return cache.free_blocks, cache.cached_blocks, cache.live_blocks, tables, tuple(cache._ledger._fresh)

    def land(self) -> None:
        """Run the oldest plan and commit it (some drafts are rejected)."""
        flight, notes = self.flights.popleft()
        self.paper.apply(flight.letter)
        for chunk in flight.chunks:
            self.paper.run(chunk)
        later = {id(live) for _, others in self.flights for live, _, _ in others}
        for live, era, end in notes:
            if live.era != era or live.seq not in self.live:
                continue
            computed = self.cache.computed(live.seq)
            if id(live) not in later and self.rng.random() < 0.3 and end - computed > 1:
                kept = max(self.rng.randint(computed + 1, end), live.given)
                if kept <= end:
                    live.tokens[kept:] = [(t + 1) % 3 for t in live.tokens[kept:]]
                    live.planned = end = kept
                    self.note("rejected drafts")
            self.cache.commit(live.seq, live.tokens, end)
        ledger = self.cache._ledger
        if not (self.flights or ledger._copies or ledger._changed):
            self.verify()

    def settle(self) -> None:
        while self.flights:
            self.land()
        self.flights.append((Flight(self.cache.drain(), []), []))
        self.land()

    def truncate(self) -> None:
        if not self.live:
            return
        live = self.rng.choice(list(self.live.values()))
        computed = self.cache.computed(live.seq)
        end = self.rng.choice([self.rng.randint(0, computed), max(0, computed - self.rng.randint(0, 6))])
        before = self.books()
        try:
            self.cache.truncate(live.seq, end)
        except StateError:
            assert self.books() == before
            self.note("truncate refused")
            return
        live.tokens = live.tokens[:end] + [self.rng.randrange(3)]
        live.planned, live.era, live.given = end, live.era + 1, min(live.given, end)
        self.note("truncate")

    def fork(self) -> None:
        if not self.live or len(self.live) >= 6:
            return
        live = self.rng.choice(list(self.live.values()))
        child = SeqId(self.ids)
        self.ids += 1
        computed, before = self.cache.computed(live.seq), self.books()
        try:
            self.cache.fork(live.seq, child)
        except PoolFull:
            assert self.books() == before
            return
        tokens = live.tokens[:computed] + [self.rng.randrange(3)]
        self.live[child] = Live(child, live.space, tokens, computed, computed, live.reuse)
        self.note("fork")

    def release(self) -> None:
        if not self.live:
            return
        live = self.rng.choice(list(self.live.values()))
        self.cache.release(live.seq, live.tokens, self.cache.computed(live.seq), publish=self.rng.random() < 0.85)
        live.era += 1
        del self.live[live.seq]
        self.note("release")

    def again(self) -> None:
        """Preempt and resume under the same id."""
        if not self.live:
            return
        live = self.rng.choice(list(self.live.values()))
        self.cache.release(live.seq, live.tokens, self.cache.computed(live.seq))
        live.era += 1
        salt, extras = live.space
        tenant = self.tenants.choice("abcd")
        got = self.cache.admit(live.seq, live.tokens, salt=salt, extras=extras, reuse=live.reuse, tenant=tenant)
        live.planned, live.given = got.cached_tokens, len(live.tokens)
        self.note("resumed")

    def gulp(self) -> None:
        """What is available can be had, to the last block, and not one more."""
        self.settle()
        cache, seq = self.cache, SeqId(self.ids)
        self.ids += 1
        cache.admit(seq, [9], limit=0)
        end = 0
        while cache.blocks_needed(seq, end + 1) <= cache.available_blocks:
            end += 1
        if end:
            assert self.extend(seq, end)
        assert not self.extend(seq, end + 1)
        cache.check()
        cache.release(seq, [], 0, publish=False)
        self.note("gulp")

    def reset(self) -> None:
        if self.tenants.random() < 0.5:
            pool, tenant = self.cache._pool, self.tenants.choice("abcd")
            theirs = sum(
                pool.refs[b] == pool.treed[b] == 1 and pool.payer[b].tenant == tenant for b in range(pool.total)
            )
            left = self.cache.cached_blocks - theirs
            assert self.cache.reset(tenant) == theirs and self.cache.cached_blocks == left
            self.note("reset of a tenant")
        cached = self.cache.cached_blocks
        assert self.cache.reset() == cached and self.cache.cached_blocks == 0
        self.note("reset")

    # What must hold.

    def verify(self) -> None:
        """Every live sequence reads its own history; every block of the tree holds what its path says."""
        for live in self.live.values():
            n = self.cache.computed(live.seq)
            self.paper.check_reads(live.seq, n, histories(live.space, live.tokens[:n]), "at rest")
            for group, ids in zip(self.layout.groups, self.cache.table(live.seq), strict=True):
                assert self.paper.tables.get((live.seq, group.id), []) == list(ids), "the executor has another table"
        for space, root in self.cache._tree.roots.items():
            stack = [(child, []) for child in root.children.values()]
            while stack:
                node, before = stack.pop()
                tokens = before + list(memoryview(bytes(node.tokens)).cast("i"))
                hist = histories(space, tokens)
                for group in self.layout.groups:
                    size = group.tokens_per_block
                    for i, block in enumerate(node.blocks[group.id]):
                        for pos in range(node.start + i * size, min(node.start + (i + 1) * size, node.end)):
                            if block != NULL_BLOCK:
                                held = self.paper.slots.get(block, {}).get(pos % size)
                                assert held == (group.id, pos, hist[pos]), f"tree block {block} holds {held}"
                stack += [(child, tokens) for child in node.children.values()]

    def note(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1

    def run(self, ops: int) -> dict[str, int]:
        weights = {
            self.admit: 6, self.step: 12, self.truncate: 2, self.fork: 2, self.release: 4, self.again: 1,
            self.gulp: 0.1, self.reset: 0.05, self.settle: 1,
        }  # fmt: skip
        for _ in range(ops):
            self.rng.choices(list(weights), list(weights.values()))[0]()
            self.cache.check()
        self.settle()
        self.finish()
        return self.done

    def finish(self) -> None:
        """At idle nothing is live, and everything cached can be dropped."""
        for live in list(self.live.values()):
            self.cache.release(live.seq, live.tokens, self.cache.computed(live.seq))
        self.live.clear()
        self.settle()
        self.cache.check()
        assert self.cache.live_blocks == 0
        self.reset()
        assert self.cache.free_blocks == self.cache.total_blocks
        self.cache.check()
        assert not self.cache._tree.roots and self.cache._tree.nodes == 0
        assert not self.cache._shares.by_tenant and all(not t.used_blocks for t in self.cache.tenants().values())
