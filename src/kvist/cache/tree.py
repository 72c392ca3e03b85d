"""The prefix index: one radix tree over token runs per namespace.

Matching compares tokens, never keys. Blocks are shared in whole spans (``layout.span_tokens``, the largest
tokens-per-block of any group), so that a block hangs in exactly one node; what matches inside a span is copied out.
Every ancestor of a cached full-group block is cached: full groups have no tombstones, and nodes lose their tail first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from kvist.cache.counters import Tally
from kvist.cache.ghosts import Ghost, Ghosts
from kvist.cache.groups import GroupRule
from kvist.cache.habits import born, known_bytes, parted
from kvist.cache.keys import Space
from kvist.cache.match import MISS, Hit, find
from kvist.cache.node import TOKEN_BYTES, Bytes, Node, common_bytes
from kvist.cache.offload import Offload
from kvist.cache.pool import Pool
from kvist.cache.queue import EvictQueue
from kvist.cache.share import Share, Shares
from kvist.ids import NULL_BLOCK, BlockId

Tables = Sequence[Sequence[BlockId]]
"""Block ids of each group."""


class Tree:
    """The index over all cached runs. Owner: ``Cache``. Nodes change here only (``queued`` and ``swept`` belong to
    the evict queue); ``owner[b]`` is the node that block b hangs in.
    """

    def __init__(
        self,
        rules: tuple[GroupRule, ...],
        pool: Pool,
        queue: EvictQueue,
        shares: Shares,
        tally: Tally,
        offload: Offload | None = None,
    ) -> None:
        """``offload`` is told of blocks that come and go; None without tiers."""
        self.rules = rules
        self.bounded = tuple(r for r in rules if r.bounded)
        self.full = tuple(r for r in rules if not r.bounded)
        self.span_tokens = max(r.tokens for r in rules)
        self.span_bytes = self.span_tokens * TOKEN_BYTES
        self.offload = offload
        self.pool = pool
        self.queue = queue
        self.shares = shares
        self.ghosts = Ghosts(self.span_bytes)
        self.tally = tally
        self.roots: dict[Space, Node] = {}
        self.owner: list[Node | None] = [None] * pool.total
        self.nodes = 0
        self.tick = 0
        self._serial = 0

    def match(self, space: Space, data: bytes, limit: int) -> Hit:
        """What the tree has of ``data`` (``pack_tokens``), at most ``limit`` tokens. Changes nothing."""
        root = self.roots.get(space)
        hit = find(root, data, limit, self.span_tokens, self.bounded) if root else MISS
        if hit.reason in ("end", "diverged", "empty"):
            ghost = self.ghosts.had(space, data, hit.run, hit.nodes)
            return replace(hit, reason="evicted", ghost=ghost) if ghost else hit
        return hit

    def touch(self, node: Node | None) -> None:
        """Mark a node and its ancestors as used now."""
        self.tick = self.queue.now = self.tick + 1
        while node is not None:
            node.last_use = self.tick
            node = node.parent

    def hit(self, nodes: Sequence[Node], tokens: int, ghost: Ghost | None) -> None:
        """An admission uses ``tokens`` of a path, or would have what ``ghost`` remembers: count it as used now."""
        self.queue.learn(nodes, tokens, ghost, self.tally["inserted_blocks"])
        for node in nodes:
            node.hits += 1
            node.gap = self.tick + 1 - node.last_use
            node.reach = max(node.reach, min(node.end, tokens))
        if self.offload is not None:
            self.offload.used(nodes, tokens)
        self.touch(nodes[-1] if nodes else None)

    def root(self, space: Space, share: Share) -> Node:
        """The root of a namespace, made if need be: it stays with the tenant that published there first."""
        node = self.roots.get(space)
        if node is None:
            node = self.roots[space] = self._new(None, self.shares.join(share.tenant), 0, b"", [()] * len(self.rules))
            node.space = space
        return node

    def insert(self, node: Node, at: int, data: bytes, ids: Tables, ghost: Ghost | None = None) -> Node:
        """Make whole spans ``data`` at position ``at`` (inside or at the end of ``node``) matchable.

        ``ids[g]`` is a whole table. Runs that exist win; their tombstones are filled. Gives the node the run ends in.
        """
        off = 0
        while off < len(data):
            if at == node.end:
                child = node.children.get(data[off : off + self.span_bytes])
                if child is None:
                    return self._grow(node, data[off:], ids, ghost)
                node = child
            common = common_bytes(node.tokens, (at - node.start) * TOKEN_BYTES, data, off)
            common -= common % self.span_bytes
            self._meet(node, at, common // TOKEN_BYTES, ids)
            off += common
            at += common // TOKEN_BYTES
            if off < len(data) and at < node.end:
                node = self._split(node, at)
        return node

    def insert_tail(self, node: Node, at: int, data: bytes, ids: Tables) -> Node:
        """Make an open tail (less than a span) matchable, unless something at least as long already is."""
        if at < node.end:
            if node.tokens.startswith(data, (at - node.start) * TOKEN_BYTES):
                return node
            node = self._split(node, at)
        place = bisect_left(node.order, data)
        if place < len(node.order) and node.order[place].startswith(data):
            return node.children[node.order[place]]
        self._supersede(node, data)
        return self._add(node, data, ids)

    def _grow(self, node: Node, data: bytes, ids: Tables, ghost: Ghost | None) -> Node:
        self._supersede(node, data[: self.span_bytes])
        known = known_bytes(node, len(data), ghost, self.span_tokens) if self.queue.apart else len(data)
        if 0 < known < len(data):
            return self._add(self._grow(node, data[:known], ids, ghost), data[known:], ids)
        if node.children or node.parent is None or not known:
            return self._add(node, data, ids, ghost)
        self.ghosts.grow(node, data)
        first, node_end = node.end, node.end + len(data) // TOKEN_BYTES
        node.tokens += data
        for rule in self.rules:
            part = ids[rule.id][first // rule.tokens : node_end // rule.tokens]
            node.blocks[rule.id] += part
            self._keep(node, part)
        self.queue.add(node, bounded=True, full=True)
        return node

    def _add(self, parent: Node, data: bytes, ids: Tables, ghost: Ghost | None = None) -> Node:
        start, end = parent.end, parent.end + len(data) // TOKEN_BYTES
        parts = [ids[r.id][start // r.tokens : r.end_block(end)] for r in self.rules]
        child = self._new(parent, parent.share, start, data, parts)
        child.open = len(data) < self.span_bytes
        child.holes = 0
        born(child, parent, ghost, self.tick)
        if not child.gap and not self.tally["evicted_blocks"]:
            child.gap = self.tick * self.pool.total // (self.pool.total - self.pool.free)
        for part in parts:
            self._keep(child, part)
        parent.attach(child.key(self.span_bytes), child)
        self.queue.add(child, bounded=True, full=True)
        self.queue.add(parent, bounded=False, full=True)
        return child

    def _new(self, parent: Node | None, share: Share, start: int, data: Bytes, blocks: Tables) -> Node:
        self._serial += 1
        node = Node(parent, share, start, data, blocks, self._serial)
        node.last_use = self.tick
        self.nodes += parent is not None
        return node

    def _keep(self, node: Node, part: Sequence[BlockId]) -> None:
        """The tree takes a reference to the blocks of ``part`` on behalf of ``node``."""
        real = part
        if self.bounded and NULL_BLOCK in part:
            real = [b for b in part if b != NULL_BLOCK]
            node.holes += len(part) - len(real)
        self.pool.enter_tree(real, node.share)
        self.pool.bulk.fill(self.owner, real, node)
        if self.offload is not None and not node.open:
            self.offload.sealed(node, real)
        self.tally["inserted_blocks"] += len(real)

    def _meet(self, node: Node, at: int, n_tokens: int, ids: Tables) -> None:
        """A sequence computed what ``node`` has: fill tombstones with its blocks, count the rest as duplicates."""
        for rule in self.rules:
            first, last = at // rule.tokens, (at + n_tokens) // rule.tokens
            shift = node.start // rule.tokens
            mine, theirs = ids[rule.id][first:last], node.blocks[rule.id]
            if mine == theirs[first - shift : last - shift]:
                continue
            for i, block in enumerate(mine, first - shift):
                if block == NULL_BLOCK or block == theirs[i]:
                    continue
                if theirs[i] == NULL_BLOCK:
                    theirs[i] = block
                    node.holes -= 1
                    self._keep(node, (block,))
                    self.tally["filled_blocks"] += 1
                else:
                    self.tally["duplicate_blocks"] += 1

    def _split(self, node: Node, at: int) -> Node:
        """Cut a node in two at a span boundary; the same object stays the lower part. Gives the new upper part."""
        assert node.parent is not None and node.start < at < node.end and at % self.span_tokens == 0
        cut = (at - node.start) * TOKEN_BYTES
        key = node.key(self.span_bytes)
        parts = [node.blocks[r.id][: (at - node.start) // r.tokens] for r in self.rules]
        head = self._new(node.parent, node.share, node.start, node.tokens[:cut], parts)
        parted(head, node, at)
        for part in parts:
            for block in part:
                if block != NULL_BLOCK:
                    self.owner[block] = head
            if self.offload is not None:
                self.offload.moved(head, part)
        for rule, part in zip(self.rules, parts, strict=True):
            del node.blocks[rule.id][: len(part)]
        del node.tokens[:cut]
        node.holes -= head.holes
        node.start, node.swept = at, 0
        node.keys.clear()
        assert head.parent is not None
        head.parent.children[key] = head
        node.parent = head
        head.attach(node.key(self.span_bytes), node)
        self.queue.add(head, bounded=True, full=True)
        if node.barren and not node.children:
            self.trim(node, 0)
        return head

    def _supersede(self, node: Node, data: bytes) -> None:
        """Drop the open tail that ``data`` continues, if there is one: in order it is right before ``data``."""
        place = bisect_left(node.order, data) - 1
        if place >= 0 and data.startswith(node.order[place]):
            tail = node.children[node.order[place]]
            if tail.open:
                self.trim(tail, 0)
                self.tally["superseded_tails"] += 1

    def trim(self, node: Node, spans: int) -> int:
        """Cut a childless node to its first ``spans`` spans (0: remove it). Says how many blocks were freed."""
        assert not node.children and node.parent is not None, "leaf first"
        if not node.open:
            self.ghosts.cut(node, spans)
        if self.offload is not None:
            for rule in self.rules:
                low = spans * rule.per_span
                self.offload.leaving(node, rule, range(low, len(node.blocks[rule.id])))
        if spans == 0:
            node.parent.detach(node.key(self.span_bytes))
            node.alive = False
            self.nodes -= 1
            self.queue.add(node.parent, bounded=False, full=True)
        node.cuts += 1
        node.keys.clear()
        tokens = spans * self.span_tokens
        del node.tokens[tokens * TOKEN_BYTES :]
        gone: list[BlockId] = []
        for rule in self.rules:
            gone += node.blocks[rule.id][tokens // rule.tokens :]
            del node.blocks[rule.id][tokens // rule.tokens :]
        gone.reverse()
        real = [b for b in gone if b != NULL_BLOCK] if node.holes else gone
        node.holes -= len(gone) - len(real)
        return self._drop(node, real)

    def tombstone(self, node: Node, rule: GroupRule, picks: Sequence[int]) -> int:
        """Take blocks of a bounded group out of the tree; their run stays. Says how many blocks were freed."""
        ids = node.blocks[rule.id]
        if self.offload is not None:
            self.offload.leaving(node, rule, picks)
        gone = [ids[i] for i in picks]
        for i in picks:
            ids[i] = NULL_BLOCK
        node.holes += len(gone)
        self.tally["tombstoned_blocks"] += len(gone)
        return self._drop(node, gone)

    def prune(self, node: Node | None) -> None:
        """Forget a childless node that has no block left, its ancestors in the same state, and an empty root."""
        while node is not None and not node.children and node.alive:
            parent = node.parent
            if parent is None:
                assert node.space is not None, "a root knows its namespace"
                node.alive = False
                del self.roots[node.space]
                self.shares.quit(node.share)
            elif node.barren:
                self.trim(node, 0)
            else:
                return
            node = parent

    def idle(self, blocks: Sequence[BlockId], *, bounded: bool, full: bool) -> None:
        """Blocks (of bounded groups, of full groups) that no sequence holds any more: their nodes can be evicted."""
        last = None
        if blocks and self.pool.bulk.only(self.owner, blocks):
            blocks = blocks[:1]
        for block in blocks:
            node = self.owner[block]
            if node is not None and node is not last:
                self.queue.add(node, bounded=bounded, full=full)
                last = node

    def _drop(self, node: Node, blocks: Sequence[BlockId]) -> int:
        self.pool.bulk.fill(self.owner, blocks, None)
        freed = self.pool.leave_tree(blocks, node.share)
        self.tally["detached_blocks"] += len(blocks) - freed
        return freed
