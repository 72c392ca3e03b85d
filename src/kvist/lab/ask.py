"""What a sweep is asked to do, checked before anything heavy is loaded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from kvist.config import CacheConfig, SchedConfig
from kvist.errors import BadValue, UsageError
from kvist.spec.format import KVFormat
from kvist.spec.layout import plan_layout
from kvist.spec.model import ModelSpec

MODES: Final = ("on", "off")


@dataclass(frozen=True, slots=True)
class SweepAsk:
    """What to sweep over. ``tokens`` are generated per sequence; without the cache ``plain_tokens`` at most."""

    lengths: tuple[int, ...]
    batch: int = 1
    cache: tuple[str, ...] = MODES
    tokens: int = 16
    plain_tokens: int = 4
    seed: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        if not self.lengths or min(self.lengths) < 1:
            raise BadValue("lengths", self.lengths, "counts of tokens >= 1, separated by commas")
        if self.batch < 1:
            raise BadValue("batch", self.batch, "a count >= 1")
        if not self.cache or any(mode not in MODES for mode in self.cache):
            raise BadValue("cache", ",".join(self.cache), "on, off, or both separated by a comma")
        if self.tokens < 2 or self.plain_tokens < 2:
            raise BadValue(
                "tokens", min(self.tokens, self.plain_tokens), "a count >= 2: nothing follows a single token"
            )

    def tokens_of(self, mode: str) -> int:
        """Tokens generated in this mode."""
        return self.tokens if mode == "on" else min(self.tokens, self.plain_tokens)

    def check(self, spec: ModelSpec, sched: SchedConfig) -> None:
        """Refuse what the model or the scheduler cannot do, before any weight is read. Raises ``BadValue``."""
        context = min(spec.context_tokens, sched.context_tokens or spec.context_tokens)
        most = context - max(self.tokens_of(mode) for mode in self.cache)
        if max(self.lengths) > most:
            raise BadValue(
                "lengths",
                max(self.lengths),
                f"at most {most} tokens",
                remedy=f"the model sees {context}, and {context - most} of them are generated",
            )
        if self.batch > sched.max_sequences:
            raise BadValue("batch", self.batch, f"at most {sched.max_sequences}", remedy="raise --max-sequences")


def pool_for(ask: SweepAsk, spec: ModelSpec, cache: CacheConfig) -> CacheConfig:
    """The pool that the sweep needs, unless a size was given. Raises ``UsageError`` when the given one is too small."""
    layout = plan_layout(spec, KVFormat.parse(cache.format), block_tokens=cache.block_tokens)
    tokens = max(ask.lengths) + max(ask.tokens_of(mode) for mode in ask.cache)
    needed = ask.batch * (layout.peak_blocks_for(tokens, tokens) + 1) + layout.state_blocks * ask.batch
    if cache.blocks is None and cache.memory_bytes is None:
        return replace(cache, blocks=needed)
    given = cache.pool_blocks(layout.block_bytes)
    if given < needed:
        raise UsageError(
            f"{ask.batch} sequences of {tokens} tokens need a pool of {needed} blocks, {given} were given",
            remedy="leave the size out, or give more (--kv-memory, --kv-blocks)",
        )
    return cache
