"""Where a prompt leaves the tree: reading only.

``find`` walks whole runs down from a root, then looks for the longest common run inside a child's first span among the
child's neighbours in sorted order, and last steps back to where the window groups still have every block they need.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from kvist.cache.ghosts import Ghost
from kvist.cache.groups import GroupRule
from kvist.cache.node import TOKEN_BYTES, Node, common_bytes
from kvist.ids import BlockId

NEIGHBOURS: Final = 16
"""Siblings looked at for a partial match. Two are enough unless the nearest have tombstones where blocks are needed."""


@dataclass(frozen=True, slots=True)
class Hit:
    """What matched: the path (its last node perhaps in part), usable ``tokens``, and ``run`` of tokens that agree.

    ``there`` is the token that the nearest run has behind those that agree, if it goes on; ``ghost`` what is
    remembered of an evicted run.
    """

    nodes: tuple[Node, ...]
    tokens: int
    run: int
    reason: str
    there: int | None = None
    ghost: Ghost | None = None


MISS: Final = Hit((), 0, 0, "empty")


def find(root: Node, data: bytes, limit: int, span_tokens: int, bounded: tuple[GroupRule, ...]) -> Hit:
    """Largest n <= ``limit`` where tokens agree and every block needed to continue at n is present."""
    path, run = _walk(root, data, span_tokens * TOKEN_BYTES)
    inside = bool(path) and run < path[-1].end
    there = _token(path[-1], run) if inside else None
    nodes, best = path, usable(path, bounded, min(run, limit))
    deepest = len(path) - inside
    for level in range(deepest, -1, -1):
        parent = path[level - 1] if level else root
        at = parent.end
        if (inside or level < deepest) and (at + span_tokens - 1 <= best or best >= min(run, limit)):
            break
        for child, common in _neighbours(parent, data[at * TOKEN_BYTES : (at + span_tokens) * TOKEN_BYTES]):
            reach = at + common
            if level == deepest and not inside and (reach > run or (reach == run and there is None)):
                run, there = reach, _token(child, reach) if child.end > reach else None
            if best >= limit or reach <= best:
                break
            if common < span_tokens:
                branch = [*path[:level], child]
                n = usable(branch, bounded, min(reach, limit))
                if n > best:
                    best, nodes = n, branch
    total = len(data) // TOKEN_BYTES
    reason = _reason(best, run, limit, total, there is not None)
    return Hit(tuple(n for n in nodes if n.start < best), best, run, reason, there)


def _token(node: Node, position: int) -> int:
    at = (position - node.start) * TOKEN_BYTES
    return int.from_bytes(node.tokens[at : at + TOKEN_BYTES], "little", signed=True)


def usable(path: Sequence[Node], bounded: tuple[GroupRule, ...], n_tokens: int) -> int:
    """Largest n <= ``n_tokens`` whose needed blocks are all on ``path``."""
    if not any(node.holes for node in path):
        return n_tokens
    flat = [(rule, path_blocks(path, rule, n_tokens)) for rule in bounded]
    while True:
        n = n_tokens
        for rule, ids in flat:
            n = rule.fit(ids, n)
        if n == n_tokens:
            return n
        n_tokens = n


def path_blocks(path: Sequence[Node], rule: GroupRule, n_tokens: int) -> list[BlockId]:
    """Block ids of one group along a path, entries ``[0, end_block(n_tokens))``."""
    ids: list[BlockId] = []
    for node in path:
        ids += node.blocks[rule.id]
    del ids[rule.end_block(n_tokens) :]
    return ids


def _reason(best: int, run: int, limit: int, total: int, differs: bool) -> str:
    if best == limit:
        return "limit" if limit < total else "end"
    if best < min(run, limit):
        return "window"
    return "diverged" if differs and run < total else "end"


def _walk(root: Node, data: bytes, span_bytes: int) -> tuple[list[Node], int]:
    """Follow first spans down; gives the path and how many tokens agree along it."""
    path: list[Node] = []
    node, at = root, 0
    while True:
        child = node.children.get(data[at : at + span_bytes])
        if child is None or child.open:
            return path, at // TOKEN_BYTES
        path.append(child)
        if not data.startswith(child.tokens, at):
            return path, (at + common_bytes(child.tokens, 0, data, at)) // TOKEN_BYTES
        node, at = child, at + len(child.tokens)


def _neighbours(parent: Node, key: bytes) -> Iterator[tuple[Node, int]]:
    """Children and the number of tokens their first span has in common with ``key``, most first."""
    order = parent.order
    high = bisect_left(order, key)
    low = high - 1
    left = common_bytes(order[low], 0, key, 0) if low >= 0 else -1
    right = common_bytes(order[high], 0, key, 0) if high < len(order) else -1
    for _ in range(NEIGHBOURS):
        if left < 0 and right < 0:
            return
        if left > right:
            yield parent.children[order[low]], left // TOKEN_BYTES
            low -= 1
            left = common_bytes(order[low], 0, key, 0) if low >= 0 else -1
        else:
            yield parent.children[order[high]], right // TOKEN_BYTES
            high += 1
            right = common_bytes(order[high], 0, key, 0) if high < len(order) else -1
