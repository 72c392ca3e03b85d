"""What a hit gives a sequence: which blocks it shares and which it copies. A plan; nothing changes here."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.cache.groups import GroupRule
from kvist.cache.match import Hit, path_blocks, usable
from kvist.cache.pool import Pool
from kvist.ids import NULL_BLOCK, BlockId


@dataclass(frozen=True, slots=True)
class Take:
    """``tokens`` of a hit. Per group: ``shared`` entries of whole spans, then ``sources`` to copy; nulls included."""

    tokens: int
    shared: tuple[list[BlockId], ...]
    sources: tuple[list[BlockId], ...]

    @property
    def shared_blocks(self) -> int:
        """Real blocks shared."""
        return sum(len(ids) - ids.count(NULL_BLOCK) for ids in self.shared)

    @property
    def copied_blocks(self) -> int:
        """Real blocks to copy, each into a new one."""
        return sum(len(ids) - ids.count(NULL_BLOCK) for ids in self.sources)

    def fits(self, pool: Pool) -> bool:
        """True when the copies can be had while every block of the hit stays where it is."""
        need = self.copied_blocks
        if not need:
            return True
        refs = pool.refs
        taken = sum(refs[b] == 1 for ids in (*self.shared, *self.sources) for b in ids if b != NULL_BLOCK)
        return need <= pool.free + pool.cached - taken


def take_of(hit: Hit, rules: tuple[GroupRule, ...], span_tokens: int) -> Take:
    """The blocks of a hit: whole spans are shared, the rest of a span is copied, what windows do not need is null."""
    n = hit.tokens
    base = n - n % span_tokens
    shared, sources = [], []
    for rule in rules:
        ids = path_blocks(hit.nodes, rule, n)
        first = rule.first_block(n)
        if first > rule.sink_end:
            ids[rule.sink_end : first] = [NULL_BLOCK] * (first - rule.sink_end)
        shared.append(ids[: base // rule.tokens])
        sources.append(ids[base // rule.tokens :])
    return Take(n, tuple(shared), tuple(sources))


def shorten(hit: Hit, span_tokens: int, bounded: tuple[GroupRule, ...], reason: str) -> Hit:
    """The longest part of a hit that needs no copy: whole spans."""
    n = hit.tokens
    while n % span_tokens:
        n = usable(hit.nodes, bounded, n - n % span_tokens)
    return Hit(tuple(node for node in hit.nodes if node.start < n), n, hit.run, reason, hit.there)
