"""Laws of the cache: whatever is done to it, every slot that a query may read holds that query's own history, and all
books agree after every step. ``cache_paper.py`` has the model; the mutants below show that it sees."""

from __future__ import annotations

from collections import Counter

import cache_paper
import pytest
from cache_paper import LAYOUTS, Driver, histories

import kvist.cache.cache as door
from kvist.cache import ledger, match, publish, reclaim, take
from kvist.cache.groups import GroupRule
from kvist.cache.keys import space_of
from kvist.cache.node import Node
from kvist.cache.pool import Pool
from kvist.cache.share import Share, Shares
from kvist.cache.table import BlockTable
from kvist.cache.tenancy import Tenancy
from kvist.cache.tree import Tree
from kvist.errors import KvistError
from kvist.ids import BlockId
from kvist.step import TableChange

POOLS = (24, 48, 80)


def drive(name: str, seed: int, ops: int) -> Driver:
    driver = Driver(LAYOUTS[name], seed, blocks=POOLS[seed % 3], lifo=seed % 2 == 1)
    driver.run(ops)
    return driver


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_read_finds_its_own_history(name: str) -> None:
    """Thousands of random operations; a positive check that each of them really happened."""
    done: Counter[str] = Counter()
    tally: Counter[str] = Counter()
    for seed in range(6):
        driver = drive(name, seed, 220)
        done.update(driver.done)
        tally.update(driver.cache._tally)
    for what in ("hit", "partial hit", "fork", "truncate", "rejected drafts", "pool full", "resumed", "gulp"):
        assert done[what], f"{what} never happened"
    for what in ("evicted_blocks", "copied_blocks", "cow_blocks", "duplicate_blocks"):
        assert tally[what], f"no {what}"
    if driver.cache._tree.bounded:
        assert done["window"] and done["truncate refused"]
        assert tally["tombstoned_blocks"], "no tombstones"


def test_same_seed_same_letters() -> None:
    """Plans are a function of what was asked: byte for byte."""
    letters: list[list[str]] = []
    for _ in range(2):
        driver = Driver(LAYOUTS["full+window"], 7, blocks=48)
        said: list[str] = []
        land = driver.land

        def record(driver: Driver = driver, said: list[str] = said, land=land) -> None:
            said.append(repr(driver.flights[0][0].letter))
            land()

        driver.land = record  # type: ignore[method-assign]
        driver.run(150)
        letters.append(said)
    assert letters[0] == letters[1] and len(letters[0]) > 20


def test_reuse_off_shares_nothing() -> None:
    driver = Driver(LAYOUTS["full+window"], 3, blocks=48, reuse=False)
    done = driver.run(200)
    tally = driver.cache.counters
    assert tally.hits == tally.inserted_blocks == driver.cache.cached_blocks == 0
    assert done["fork"] and tally.stopped_off == tally.queries


class Umpire:
    """Watches every eviction: who gives, and was anybody above a floor spared? By a recount of the whole pool."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.seen: Counter[str] = Counter()
        self.plain = reclaim.take
        patch.setattr(ledger, "evict", lambda tree, need: self.watch(patch, tree, need))

    def watch(self, patch: pytest.MonkeyPatch, tree: Tree, need: int) -> int:
        with patch.context() as inside:
            inside.setattr(reclaim, "take", self.take)
            return reclaim.evict(tree, need)

    def take(self, tree: Tree, share: Share, need: int) -> int:
        shares, pool = list(tree.shares.by_tenant.values()), tree.pool
        weight = sum(s.weight for s in shares if s.blocks)
        above = {s for s in shares if s.blocks * weight > s.weight * pool.total * (1 + 1e-12)}
        can = {pool.payer[b] for b in range(pool.total) if pool.treed[b] and pool.refs[b] == 1}
        before, excess = share.blocks, share.blocks - share.weight / weight * pool.total
        freed = self.plain(tree, share, need)
        assert share.blocks == before - freed
        if freed and share not in above:
            assert not above & can, f"{share.tenant!r} lost {freed} blocks below its floor"
        self.seen["above" if share in above else "below"] += freed > 0
        self.seen["spared"] += bool(freed and share in above and can - above)
        self.seen["past the floor"] += freed > excess > 0
        return freed


@pytest.mark.parametrize("name", LAYOUTS)
def test_who_is_below_its_floor_gives_last(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    umpire = Umpire(monkeypatch)
    for seed in range(8):
        drive(name, seed, 220)
    assert umpire.seen["above"] and umpire.seen["spared"], umpire.seen


@pytest.mark.parametrize("wrong", ["nobody above", "everybody above", "weights ignored"])
def test_the_umpire_sees(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unit = {
        "nobody above": lambda self: 1e9,
        "everybody above": lambda self: 0.0,
        "weights ignored": lambda self: self.total_blocks / max(1, len(self.by_tenant)),
    }
    monkeypatch.setattr(Shares, "unit_blocks", unit[wrong])
    Umpire(monkeypatch)
    with pytest.raises(AssertionError, match="below its floor"):
        for seed in range(20):
            drive("full", seed, 220)


class Witness(Driver):
    """Remembers every run that left the tree, and checks what a miss says."""

    def run(self, ops: int) -> dict[str, int]:
        self.left: set[int] = set()
        trim, tree = self.cache._tree.trim, self.cache._tree

        def witnessed(node: Node, spans: int) -> int:
            self.left.update(self.path(node))
            return trim(node, spans)

        tree.trim = witnessed  # type: ignore[method-assign]
        return super().run(ops)

    def path(self, node: Node | None) -> list[int]:
        """Histories of a node's path."""
        tokens: list[int] = []
        while node is not None and node.parent is not None:
            tokens = list(memoryview(bytes(node.tokens)).cast("i")) + tokens
            node = node.parent
        assert node is not None
        return histories(node.space, tokens)

    def oracle(self, tokens: list[int], found: int, limit: int | None, salt: bytes, extras: tuple[bytes, ...]) -> None:
        got = self.cache.match(tokens, limit=limit, salt=salt, extras=extras)
        root = self.cache._tree.roots.get(space_of(salt, extras))
        run, on = 0, set[int]()
        stack = [(child, list[int]()) for child in root.children.values()] if root and self.cache.reuse else []
        while stack:
            node, before = stack.pop()
            line = before + list(memoryview(bytes(node.tokens)).cast("i"))
            stack += [(child, line) for child in node.children.values()]
            same = next((i for i, (a, b) in enumerate(zip(line, tokens, strict=False)) if a != b), None)
            same = min(len(line), len(tokens)) if same is None else same
            if same > run:
                run, on = same, set()
            if same == run < len(line):
                on.add(line[run])
        assert got.first_differing == run
        assert got.cached_there in on if on else got.cached_there is None
        if got.reason == "evicted":
            end = run - run % self.span + self.span
            assert histories(space_of(salt, extras), tokens)[end - 1] in self.left, "it was never cached"
            self.note("told evicted")


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_miss_tells_the_truth(name: str) -> None:
    done: Counter[str] = Counter()
    for seed in range(6):
        done.update(Witness(LAYOUTS[name], seed, blocks=POOLS[seed % 3]).run(220))
    assert done["told evicted"] and done["diverged"] and done["end"]


# Mutants: each breaks one promise; the driver must notice within a few seeds.


def no_pins(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Pool, "pin", lambda self, block: None)
    patch.setattr(Pool, "unpin", lambda self, block: [])


def no_copy_on_write(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tenancy, "to_copy", lambda self, end, pool: [])


def copies_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cache_paper.Paper, "apply", lambda self, letter, f=cache_paper.Paper.apply: f(
        self, door.Drained(letter.fresh, letter.tables, ())))  # fmt: skip


def tenants_meet(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(door, "space_of", lambda salt, extras: (b"", ()))


def published_before_written(patch: pytest.MonkeyPatch) -> None:
    def early(tree, tenancy, tokens, tail=False, f=publish.publish):
        computed, tenancy.computed = tenancy.computed, min(tenancy.covered, len(tokens))
        f(tree, tenancy, tokens, tail=tail)
        tenancy.computed = computed

    patch.setattr(door, "publish_run", early)


def window_lets_go_early(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockTable, "null", lambda self, upto, f=BlockTable.null: f(self, min(upto + 1, len(self.ids))))


def window_keeps_stale_rows(patch: pytest.MonkeyPatch) -> None:
    def diff(self, f=BlockTable.diff):
        change = f(self)
        return change and TableChange(change.seq, change.group, change.keep, change.append)

    patch.setattr(BlockTable, "diff", diff)


def tombstones_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(match, "usable", lambda path, bounded, n: n)
    patch.setattr(take, "usable", lambda path, bounded, n: n)


def matches_one_more(patch: pytest.MonkeyPatch) -> None:
    def more(root, data, limit, span, bounded, f=match.find):
        hit = f(root, data, limit, span, bounded)
        room = hit.nodes and hit.tokens < min(limit, hit.nodes[-1].end)
        return match.Hit(hit.nodes, hit.tokens + 1, hit.run, hit.reason) if room else hit

    patch.setattr("kvist.cache.tree.find", more)


def limit_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("kvist.cache.tree.find", lambda root, data, limit, span, bounded, f=match.find: f(
        root, data, len(data) // 4, span, bounded))  # fmt: skip


def copy_not_announced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockTable, "replace", lambda self, index, block: self.ids.__setitem__(index, block))


def rollback_past_the_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tenancy, "check_cut", lambda self, end: None)


def rollback_keeps_published(patch: pytest.MonkeyPatch) -> None:
    def cut(self, end, f=Tenancy.cut):
        published = self.published
        f(self, end)
        self.published = published

    patch.setattr(Tenancy, "cut", cut)


def tails_pile_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tree, "_supersede", lambda self, node, data: None)


def idle_blocks_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tree, "idle", lambda self, blocks, bounded, full: None)


def freed_while_held(patch: pytest.MonkeyPatch) -> None:
    def leave(self, blocks, share, f=Pool.leave_tree):
        for block in blocks:
            if self.refs[block] > 1:
                self._free.append(BlockId(block))
        return f(self, blocks, share)

    patch.setattr(Pool, "leave_tree", leave)


def fork_shares_the_open_block(patch: pytest.MonkeyPatch) -> None:
    def seat(self, tenancy, plan, f=ledger.Ledger.seat):
        if plan.copied_blocks and plan.__class__ is take.Take and tenancy.node is not None:
            shared = tuple([*a, *b] for a, b in zip(plan.shared, plan.sources, strict=True))
            plan = take.Take(plan.tokens, shared, tuple([] for _ in shared))
        f(self, tenancy, plan)

    patch.setattr(ledger.Ledger, "seat", seat)


def last_block_fits(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupRule, "end_block", lambda self, n: n // self.tokens)


MUTANTS = [
    no_pins, no_copy_on_write, copies_lost, tenants_meet, published_before_written, window_lets_go_early,
    window_keeps_stale_rows, tombstones_ignored, matches_one_more, limit_ignored, copy_not_announced,
    rollback_past_the_window, rollback_keeps_published, tails_pile_up, idle_blocks_forgotten, freed_while_held,
    fork_shares_the_open_block, last_block_fits,
]  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_a_broken_cache_is_noticed(mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, KvistError, IndexError, KeyError, AttributeError)):
        for seed in range(60):
            for name in ("full+window", "two full"):
                drive(name, seed, 150)
