"""What the pool can promise: so many whole contexts at once, so much for each when all places are taken."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.server.served import Served
from kvist.spec.layout import CacheLayout


@dataclass(frozen=True, slots=True)
class Capacity:
    """``guaranteed_requests`` of the whole context fit at the same time, whatever they share.

    ``guaranteed_tokens`` is the length that each of ``max_sequences`` may have at the same time. Beyond that requests
    wait or are preempted, and all end: a context is never made smaller for one of them. ``request_tokens`` is the
    longest that one request may become.
    """

    blocks: int
    pool_bytes: int
    context_tokens: int
    request_tokens: int
    max_sequences: int
    guaranteed_requests: int
    guaranteed_tokens: int
    order: str
    itl_slo: str

    @staticmethod
    def of(served: Served) -> Capacity:
        """From the engine that runs."""
        scheduler, layout, sched = served.engine.scheduler, served.layout, served.config.sched
        blocks, limits = scheduler.cache.total_blocks, scheduler.limits
        longest = min(limits.context_tokens, limits.pool_tokens + 1)
        step = min(sched.token_budget, longest)
        return Capacity(
            blocks=blocks,
            pool_bytes=blocks * layout.block_bytes,
            context_tokens=limits.context_tokens,
            request_tokens=longest,
            max_sequences=sched.max_sequences,
            guaranteed_requests=blocks // layout.peak_blocks_for(longest - 1, step),
            guaranteed_tokens=_longest(layout, blocks // sched.max_sequences, longest, step),
            order=sched.order,
            itl_slo=sched.itl_slo,
        )

    def sentence(self) -> str:
        """For people."""
        short = f", or {self.max_sequences} of {self.guaranteed_tokens:,}" if self.guaranteed_tokens else ""
        whole = f"{self.guaranteed_requests} requests at once of {self.request_tokens:,} tokens{short}"
        return f"guaranteed: {whole}; best effort: {self.max_sequences} at once of any length, others wait"


def _longest(layout: CacheLayout, blocks: int, most_tokens: int, step_tokens: int) -> int:
    """Longest sequence whose peak fits ``blocks``; 0 when not even one token does."""
    low, high = 0, most_tokens
    while low < high:
        middle = (low + high + 1) // 2
        if layout.peak_blocks_for(middle, min(step_tokens, middle)) <= blocks:
            low = middle
        else:
            high = middle - 1
    return low
