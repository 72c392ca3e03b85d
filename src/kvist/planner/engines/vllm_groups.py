"""Groups of vLLM V1: layers that share a block table, and the bytes of a block they all share.

Rules as in ``vllm/v1/core/kv_cache_utils.py`` (versions 0.10 to 0.28): layers of one kind make one group; several
kinds are cut into groups of equal layer count, and every group's page is made equally large.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvist.errors import ModelError
from kvist.planner.engines.base import Run
from kvist.planner.engines.stages import rank_layers
from kvist.planner.engines.vllm_compressed import compressed_groups, compresses
from kvist.planner.engines.vllm_pages import Page, pages_of
from kvist.units import ceil_div, round_up


@dataclass(frozen=True, slots=True)
class Group:
    """Layers with one block table. ``pages`` are (layer, page); in a pool of several groups all pages are equal."""

    pages: tuple[tuple[int, Page], ...]

    @property
    def page(self) -> Page:
        """What the group's layers have in common: kind, tokens and limit."""
        return self.pages[0][1]


@dataclass(frozen=True, slots=True)
class Pool:
    """How the cache of one rank is cut. ``stages`` says which layers (by index) each pipeline stage has.

    ``checked_block_bytes`` is what the check of the longest request counts for a block, where that is not the pool's
    own size (0: it is).
    """

    groups: tuple[Group, ...]
    stages: tuple[frozenset[int], ...]
    checked_block_bytes: int = 0

    def block_bytes(self, stage: int) -> int:
        """Bytes of one block on a rank of ``stage``: of all its layers, or of its fullest group."""
        held = self.stages[stage]
        sizes = [sum(page.bytes for layer, page in group.pages if layer in held) for group in self.groups]
        return max(sizes, default=0)

    @property
    def largest_block_bytes(self) -> int:
        """Bytes of one block on the stage with the largest."""
        return max(self.block_bytes(stage) for stage in range(len(self.stages)))

    @property
    def block_tokens(self) -> int:
        """The fewest tokens any group's block holds."""
        return min(g.page.block_tokens for g in self.groups)

    def blocks(self, available_bytes: int) -> int:
        """Blocks that fit: the minimum over stages, each with ``available_bytes`` a rank."""
        return min(available_bytes // size for s in range(len(self.stages)) if (size := self.block_bytes(s)))

    @property
    def charged_block_bytes(self) -> int:
        """Bytes of a block as the check of the longest request counts them."""
        return self.checked_block_bytes or self.largest_block_bytes

    def fits(self, blocks: int, available_bytes: int) -> bool:
        """True when the check of the longest request passes ``blocks`` blocks."""
        return blocks * self.charged_block_bytes <= available_bytes

    def blocks_for(self, n_tokens: int, run: Run, flight_tokens: int) -> int:
        """Blocks that one request of ``n_tokens`` takes, all groups."""
        return sum(g.page.blocks_for(n_tokens, run, flight_tokens) for g in self.groups)


def pool_of(run: Run) -> Pool:
    """The pool of a run. Raises ``ModelError`` for layers that cannot share one, ``BadValue`` for heads."""
    held = rank_layers(run)
    stages = tuple(frozenset(layer.index for layer in stage) for stage in held)
    layers = tuple(layer for stage in held for layer in stage)
    if compresses(layers):
        groups, checked = compressed_groups(layers, run)
        return Pool(tuple(Group(pages) for pages in groups), stages, checked)
    pages = pages_of(layers, run)
    if not pages:
        raise ModelError("the model keeps no cache", remedy="check the config: no layer owns KV or state")
    kinds = {(page.kind, page.limit_tokens) for _, page in pages}
    if len(kinds) == 1:
        return Pool((Group(tuple(pages)),), stages)
    return Pool(_cut(_equal_pages(pages)), stages)


def _equal_pages(pages: list[tuple[int, Page]]) -> list[tuple[int, Page]]:
    """Every page as large as the largest: longer blocks where that divides, padding where it does not."""
    largest = max(page.bytes for _, page in pages)
    out: list[tuple[int, Page]] = []
    for layer, page in pages:
        if page.kind == "state" or largest % page.bytes:
            out.append((layer, replace(page, bytes=largest)))
        else:
            longer = page.block_tokens * (largest // page.bytes)
            out.append((layer, replace(page, bytes=largest, block_tokens=longer)))
    return out


def _cut(pages: list[tuple[int, Page]]) -> tuple[Group, ...]:
    """Groups of equal size: the count of the rarest kind, or of the commonest if it is less than half as much again.

    A kind's layers are dealt out in turn, so that every pipeline stage has some of each group.
    """
    kinds: dict[Page, list[tuple[int, Page]]] = {}
    for layer, page in pages:
        kinds.setdefault(page, []).append((layer, page))
    counts = [len(members) for members in kinds.values()]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups: list[Group] = []
    for members in kinds.values():
        n = ceil_div(len(members), size)
        groups += [Group(tuple(members[i::n])) for i in range(n)]
    return tuple(groups)


def padding_layers(pool: Pool) -> int:
    """Places in groups that hold no layer. (Groups of compressed attention overlay each other instead.)"""
    if pool.checked_block_bytes:
        return 0
    size = max(len(g.pages) for g in pool.groups)
    return sum(round_up(len(g.pages), size) - len(g.pages) for g in pool.groups)
