"""Eviction: take blocks back from the tree, in the order of the evict queue (``queue.py`` lists the stages).

Tenants above their floor give first, and among them the order of the queue decides; those at or below it give only
when nobody above has anything left. What is asked for counts as the asking tenant's already (``Ledger.allocate``), so a
tenant alone is above its floor by exactly what is missing. A cut takes whole spans (and what hangs below a buried
run), so it may go past a floor by less than that.

Any cached block can be had: leaf first, and where a sequence holds the end of a run whose beginning nobody holds (it
had computed duplicates of it), by taking the run out of the tree. So ``free + cached`` is exactly what is available.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heapreplace

from kvist.cache.evict.base import Priority
from kvist.cache.node import Node
from kvist.cache.queue import BURIED, ENDS, LEAF, SURPLUS, EvictQueue
from kvist.cache.share import Share
from kvist.cache.tree import Tree
from kvist.ids import NULL_BLOCK

Turn = tuple[int, Priority, int, Share]
"""The front entry of one tenant's queue, its tenant in the node's place."""


def evict(tree: Tree, need_blocks: int) -> int:
    """Free at least ``need_blocks`` of the cached blocks (there must be as many). Says how many were freed."""
    assert need_blocks <= tree.pool.cached, "more asked than is cached"
    shares, queue = tree.shares, tree.queue
    tenants, unit = shares.by_tenant.values(), shares.unit_blocks()
    freed, sparing, line = 0, True, _line(queue, (s for s in tenants if s.blocks > s.weight * unit))
    while freed < need_blocks:
        if not line:
            assert sparing, f"{tree.pool.cached} blocks are cached but no node is queued"
            sparing, line = False, _line(queue, tenants)
            continue
        share, most = line[0][3], need_blocks - freed
        if sparing:
            most = min(most, share.excess_blocks(unit))
        if most > 0:
            freed += take(tree, share, most)
            if not share.blocks:
                unit = shares.unit_blocks()
        front = queue.front(share) if most > 0 else None
        if front is None:
            heappop(line)
        else:
            heapreplace(line, (*front[:3], share))
    return freed


def evict_tenant(tree: Tree, share: Share) -> int:
    """Free every cached block of one tenant. Says how many there were."""
    freed = 0
    while tree.queue.front(share) is not None:
        freed += take(tree, share, tree.pool.total)
    return freed


def take(tree: Tree, share: Share, need_blocks: int) -> int:
    """Let a tenant's front node give up to about ``need_blocks``, perhaps none. Says how many were freed."""
    stage, node = tree.queue.pop(share)
    if stage == LEAF:
        freed = _cut_leaf(tree, node, need_blocks)
    elif stage == BURIED:
        freed = _dig(tree, node, need_blocks)
    else:
        freed = _sweep(tree, node, need_blocks, stage)
    share.evicted += freed
    tree.tally["evicted_blocks"] += freed
    tree.queue.compact(tree.nodes)
    return freed


def _line(queue: EvictQueue, shares: Iterable[Share]) -> list[Turn]:
    fronts = ((queue.front(share), share) for share in shares)
    line = [(*front[:3], share) for front, share in fronts if front is not None]
    heapify(line)
    return line


def _cut_leaf(tree: Tree, node: Node, need: int) -> int:
    """Cut spans that no sequence holds from the tail of a leaf."""
    if node.children:
        tree.queue.add(node, bounded=False, full=True)
        return 0
    freed, blocked = _cut(tree, node, need, force=False)
    if node.alive and blocked and tree.full:
        tree.queue.push(node, BURIED)
    elif node.alive and not blocked:
        tree.queue.push(node, LEAF)
    return freed


def _dig(tree: Tree, node: Node, need: int) -> int:
    """Free blocks of a run whose later part is held: everything below and behind them leaves the tree."""
    refs = tree.pool.refs
    if not any(refs[b] == 1 for rule in tree.full for b in node.blocks[rule.id]):
        return 0
    freed = 0
    below = [node]
    for each in below:
        below += each.children.values()
    for each in reversed(below[1:]):
        freed += tree.trim(each, 0)
    freed += _cut(tree, node, need - freed, force=True)[0]
    if node.alive:
        tree.queue.add(node, bounded=False, full=True)
    return freed


def _cut(tree: Tree, node: Node, need: int, *, force: bool) -> tuple[int, bool]:
    """Cut spans from the tail until ``need`` blocks are free. Says how many are, and whether a held span stopped it."""
    spans = keep = 1 if node.open else len(node.tokens) // tree.span_bytes
    width = sum(rule.per_span for rule in tree.rules)
    freed, blocked, step = 0, False, max(1, need // width)
    while keep and freed < need and not blocked:
        step = min(step, keep)
        held, loose = _survey(tree, node, keep - step, keep)
        if held and not force:
            blocked, step = step == 1, 1
            continue
        keep -= step
        freed += loose
        step = max(1, min(step, (need - freed) // width))
    if keep < spans:
        parent = node.parent
        gone = tree.trim(node, keep)
        assert gone == freed, "counted what was freed"
        tree.prune(node if node.alive else parent)
    return freed, blocked


def _survey(tree: Tree, node: Node, low: int, high: int) -> tuple[bool, int]:
    """Spans ``[low, high)`` of a node: does a sequence hold one, and how many blocks does the tree hold alone?

    Spans are shared whole, so full groups tell; where there is none, any group does.
    """
    pool, refs = tree.pool, tree.pool.refs
    held, loose = False, 0
    for rule in tree.rules:
        part = node.blocks[rule.id][low * rule.per_span : high * rule.per_span]
        if node.holes:
            part = [b for b in part if b != NULL_BLOCK]
        alone = pool.bulk.count(refs, part, 1) if part else 0
        loose += alone
        if alone < len(part) and not (rule.bounded and tree.full):
            held = held or any(pool.held(b) for b in part)
    return held, loose


def _sweep(tree: Tree, node: Node, need: int, stage: int) -> int:
    """Tombstone cached blocks of window groups, spans from the start of the node first.

    ``SURPLUS`` spares what a continuation anywhere in the node's last span needs; ``ENDS`` spares nothing.
    """
    refs = tree.pool.refs
    spans = max(1, len(node.tokens) // tree.span_bytes)
    near_end = max(node.start, node.end - tree.span_tokens)
    width = sum(rule.per_span for rule in tree.bounded)
    freed = 0
    while node.swept < spans and freed < need:
        upto = min(spans, node.swept + max(1, (need - freed) // width))
        for rule in tree.bounded:
            ids, shift = node.blocks[rule.id], node.start // rule.tokens
            low, high = node.swept * rule.per_span, min(upto * rule.per_span, len(ids))
            if stage == SURPLUS:
                low, high = max(low, rule.sink_end - shift), min(high, rule.first_block(near_end) - shift)
            picks = [i for i in range(low, high) if ids[i] != NULL_BLOCK and refs[ids[i]] == 1]
            if picks:
                freed += tree.tombstone(node, rule, picks)
        node.swept = upto
    more = node.swept < spans
    if not more:
        node.swept = 0
    if more or stage == SURPLUS:
        tree.queue.push(node, stage if more else ENDS)
    tree.prune(node)
    return freed
