"""What a caller gets: pieces of text while a sequence runs, and the answer with its account at the end."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.engine.event import FinishReason, Timeline
from kvist.spec.layout import CacheLayout
from kvist.step import TokenLogprob


@dataclass(frozen=True, slots=True)
class Ledger:
    """The memory account of one finished sequence.

    ``held_bytes`` is what the allocator had given it (blocks x block bytes); ``formula_bytes`` what the layout's
    arithmetic says for ``computed_tokens``: rows of computed tokens, unused slots of part-filled blocks, padding.
    """

    blocks: int
    block_bytes: int
    held_bytes: int
    formula_bytes: int
    computed_tokens: int
    row_bytes: int
    unused_slot_bytes: int
    padding_bytes: int


def ledger(layout: CacheLayout, timeline: Timeline) -> Ledger:
    """The account of an ended sequence."""
    usage = timeline.usage
    assert usage is not None
    n = usage.computed_tokens
    rows = slots = padding = 0
    for group in layout.groups:
        blocks = group.blocks_for(n)
        slot_bytes = len(group.layers) * group.row_bytes_per_layer
        kept = min(group.retention.kept_tokens(n), blocks * group.tokens_per_block)
        rows += kept * slot_bytes
        slots += (blocks * group.tokens_per_block - kept) * slot_bytes
        padding += blocks * layout.padding_bytes_per_block(group)
    return Ledger(
        blocks=usage.held_blocks,
        block_bytes=layout.block_bytes,
        held_bytes=timeline.held_bytes,
        formula_bytes=rows + slots + padding,
        computed_tokens=n,
        row_bytes=rows,
        unused_slot_bytes=slots,
        padding_bytes=padding,
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished sequence. Times in seconds; ``tpot_s`` is None with fewer than two output tokens."""

    text: str
    token_ids: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finish_reason: FinishReason
    ttft_s: float | None
    tpot_s: float | None
    ledger: Ledger
    preemptions: int = 0
    error: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    loaded_tokens: int = 0
    """Of ``cached_tokens``, those that came from a tier."""

    @property
    def blocks_held(self) -> int:
        """Blocks in the sequence's tables when it ended."""
        return self.ledger.blocks

    @property
    def kv_bytes_held(self) -> int:
        """Bytes the allocator had given the sequence."""
        return self.ledger.held_bytes

    @property
    def kv_bytes_formula(self) -> int:
        """The same by arithmetic."""
        return self.ledger.formula_bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that sample ``sample`` of prompt ``prompt`` gained. ``answer`` comes with the last one."""

    prompt: int
    sample: int
    text: str
    answer: Answer | None = None
