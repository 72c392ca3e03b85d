"""Do all the books agree? Read by tests after every step; walks everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from kvist.cache.node import TOKEN_BYTES, Node
from kvist.cache.pool import Pool
from kvist.cache.queue import BURIED, ENDS, LEAF, SURPLUS
from kvist.cache.tenancy import Tenancy
from kvist.cache.tree import Tree
from kvist.ids import NULL_BLOCK, BlockId, SeqId


def check_books(pool: Pool, tree: Tree, seqs: Mapping[SeqId, Tenancy]) -> None:
    """Raise ``AssertionError`` with the first disagreement."""
    pool.check()
    treed: Counter[BlockId] = Counter()
    nodes = list(_nodes(tree))
    for node in nodes:
        _check_node(tree, node)
        treed.update(b for ids in node.blocks for b in ids if b != NULL_BLOCK)
        assert all(tree.owner[b] is node for ids in node.blocks for b in ids if b != NULL_BLOCK), "owners differ"
    assert all(count == 1 for count in treed.values()), "a block hangs in the tree twice"
    assert {b for b in range(pool.total) if pool.treed[b]} == set(treed), "pool and tree differ"
    assert all((tree.owner[b] is not None) == bool(pool.treed[b]) for b in range(pool.total))
    assert tree.nodes == sum(node.parent is not None for node in nodes)
    tables: Counter[BlockId] = Counter()
    for tenancy in seqs.values():
        for table in tenancy.tables:
            tables.update(table.blocks)
            assert len(set(table.blocks)) == len(table.blocks), "a table lists a block twice"
    for b in map(BlockId, range(pool.total)):
        assert pool.refs[b] == tables[b] + treed[b] + pool.pins.get(b, 0), f"block {b}: references and holders differ"
    for tenancy in seqs.values():
        _check_tenancy(pool, tree, tenancy)
    _check_queue(pool, tree, nodes)
    _check_shares(pool, tree, nodes, seqs)


def _nodes(tree: Tree) -> Iterator[Node]:
    stack = list(tree.roots.values())
    while stack:
        node = stack.pop()
        yield node
        stack += node.children.values()


def _check_node(tree: Tree, node: Node) -> None:
    assert node.alive and node.order == sorted(node.children), "children and their order differ"
    for key, child in node.children.items():
        assert child.parent is node and child.start == node.end and child.key(tree.span_bytes) == key
    for shorter, longer in zip(node.order, node.order[1:], strict=False):
        assert not longer.startswith(shorter), "an open tail was not superseded"
    if node.parent is None:
        assert node.space is not None and tree.roots[node.space] is node
        return
    size = len(node.tokens)
    assert size and (size < tree.span_bytes and not node.children if node.open else size % tree.span_bytes == 0)
    for rule in tree.rules:
        ids = node.blocks[rule.id]
        assert len(ids) == rule.end_block(size // TOKEN_BYTES), "blocks do not cover the tokens"
        assert rule.bounded or NULL_BLOCK not in ids, "a full group has a tombstone"
    assert node.holes == sum(ids.count(NULL_BLOCK) for ids in node.blocks)
    assert node.children or not node.barren, "a leaf without blocks was not pruned"


def _check_tenancy(pool: Pool, tree: Tree, tenancy: Tenancy) -> None:
    computed = tenancy.computed
    assert tenancy.published <= computed <= tenancy.covered
    assert tenancy.published % tree.span_tokens == 0
    private = tenancy.private_from
    assert private % tree.span_tokens == 0
    for rule, table in zip(tree.rules, tenancy.tables, strict=True):
        goes_on = max(computed, tenancy.loading)
        assert rule.fit(table.ids, goes_on) == goes_on, "a block that the next query reads is gone"
        for i, block in enumerate(table.ids):
            assert (block == NULL_BLOCK) == (table.sink_end <= i < table.null_to), "nulls are not where the table says"
            if block != NULL_BLOCK and i * rule.tokens >= private:
                assert not pool.shared(block), f"position {i * rule.tokens} could be written in a shared block"
        nulls = sum(b == NULL_BLOCK for b in table.ids)
        assert table.held == len(table.ids) - nulls
        if not rule.bounded:
            assert not nulls


def _check_queue(pool: Pool, tree: Tree, nodes: list[Node]) -> None:
    entries = Counter((stage, node.serial) for stage, _, _, node in tree.queue if node.alive)
    assert len(tree.queue) == len(list(tree.queue))
    assert all(count == 1 for count in entries.values()), "a node is queued twice for a stage"
    queued = {(stage, n.serial) for n in nodes for stage in range(4) if n.queued >> stage & 1}
    assert queued == set(entries), "queue and nodes differ"
    for node in nodes:
        loose = {r.bounded for r in tree.rules for b in node.blocks[r.id] if b != NULL_BLOCK and pool.refs[b] == 1}
        if False in loose:
            assert node.queued & (1 << LEAF | 1 << BURIED), "cached blocks of a full group cannot be found"
        if True in loose:
            assert node.queued & (1 << SURPLUS | 1 << ENDS), "cached blocks of a window group cannot be found"


def _check_shares(pool: Pool, tree: Tree, nodes: list[Node], seqs: Mapping[SeqId, Tenancy]) -> None:
    shares = tree.shares.by_tenant
    paid = Counter(pool.payer[b] for b in range(pool.total) if pool.refs[b])
    cached = Counter(pool.payer[b] for b in range(pool.total) if pool.treed[b] and pool.refs[b] == 1)
    holders = Counter(node.share for node in nodes if node.parent is None)
    holders.update(tenancy.share for tenancy in seqs.values())
    assert set(shares.values()) == set(holders) and all(shares[s.tenant] is s for s in holders), "tenants differ"
    for share in shares.values():
        assert share.holders == holders[share] and share.blocks == paid[share], f"books of {share.tenant!r} differ"
        assert share.cached == cached[share], f"{share.cached} cached blocks of {share.tenant!r}: {cached[share]}"
    for node in nodes:
        assert node.parent is None or node.share is node.parent.share
        assert all(pool.payer[b] is node.share for ids in node.blocks for b in ids if b != NULL_BLOCK)
