"""The offline optimum (Belady 1966): how many prompt tokens a pool can have cached, one request after another, when it
always lets go of the block whose next use as part of a prompt is farthest.

Blocks are whole and named by everything up to their end, so the optimum keeps prefixes by itself: no block is used
again before the one in front of it. A block that is being used stays. Hits inside a block are not counted.
"""

from __future__ import annotations

from heapq import heappop, heappush

Request = tuple[list[int], list[int]]
"""Prompt, answer."""

NEVER = 1 << 60


def chain(tokens: list[int], size: int, names: dict[tuple[int, tuple[int, ...]], int]) -> list[int]:
    """A number for each whole block."""
    out, name = [], 0
    for at in range(0, len(tokens) - size + 1, size):
        name = names.setdefault((name, tuple(tokens[at : at + size])), len(names) + 1)
        out.append(name)
    return out


def best_online(requests: list[Request], prefix_tokens: int, size: int, blocks: int) -> float:
    """Cached prompt tokens to be expected of the best that does not know the future, where every request begins with
    one of some prefixes, each as likely as any other whatever came before, and has the rest to itself.

    When a request comes, the one before has just filled blocks of its own; no more than all others can hold prefixes.
    Which of those seen so far they hold does not matter: each block of them is asked for with the same chance.
    """
    whole, found, own = prefix_tokens // size, 0.0, 0
    seen: set[tuple[int, ...]] = set()
    for prompt, answer in requests:
        prefix = tuple(prompt[:prefix_tokens])
        if prefix in seen:
            found += whole * size * min(1.0, (blocks - own) / (len(seen) * whole))
        seen.add(prefix)
        own = -(-(len(prompt) + len(answer)) // size) - whole
    return found


def optimum(requests: list[Request], size: int, blocks: int) -> int:
    """Cached prompt tokens of all requests; each must fit into the pool."""
    names: dict[tuple[int, tuple[int, ...]], int] = {}
    chains = [chain(prompt + answer, size, names) for prompt, answer in requests]
    nexts: list[list[int]] = []
    seen: dict[int, int] = {}
    for i in reversed(range(len(requests))):
        nexts.append([seen.get(block, NEVER) for block in chains[i]])
        seen.update((block, i) for block in chains[i][: len(requests[i][0]) // size])
    nexts.reverse()
    cached: dict[int, int] = {}
    heap: list[tuple[int, int, int]] = []
    found = 0
    for (prompt, answer), mine, after in zip(requests, chains, nexts, strict=True):
        whole = next((n for n, block in enumerate(mine) if block not in cached), len(mine))
        found += max(0, min(whole * size, len(prompt) - 1))
        room = blocks - -(-(len(prompt) + len(answer)) // size)
        used = set(mine)
        others = len(cached) - sum(block in cached for block in mine)
        while others > room:
            when, _, block = heappop(heap)
            if block not in used and cached.get(block) == -when:
                del cached[block]
                others -= 1
        for depth, (block, when) in enumerate(zip(mine, after, strict=True)):
            cached[block] = when
            heappush(heap, (-when, -depth, block))
    return found
