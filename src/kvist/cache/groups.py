"""What the cache must know of a layer group: which blocks serve a sequence that continues at position n."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvist.errors import StateError
from kvist.ids import NULL_BLOCK, BlockId, GroupId
from kvist.spec.layer import Retention
from kvist.spec.layout import CacheLayout
from kvist.units import ceil_div


@dataclass(frozen=True, slots=True)
class GroupRule:
    """Arithmetic of one group. A query at n reads ``[0, sink_blocks(n))``, ``[first_block(n), end_block(n))``."""

    id: GroupId
    tokens: int
    per_span: int
    retention: Retention
    bounded: bool
    sink_end: int

    def sink_blocks(self, n_tokens: int) -> int:
        """Leading blocks that hold sinks among the first ``n_tokens``."""
        return min(self.sink_end, self.end_block(n_tokens))

    def first_block(self, n_tokens: int) -> int:
        """First non-sink block that a query at ``n_tokens`` may read."""
        return self.retention.first_needed(n_tokens) // self.tokens

    def end_block(self, n_tokens: int) -> int:
        """Entries of a table that covers ``n_tokens``."""
        return ceil_div(n_tokens, self.tokens)

    def release_at(self, block: int) -> int:
        """Smallest committed length at which non-sink block ``block`` is needed no more (bounded groups)."""
        last = (block + 1) * self.tokens - 1
        if self.retention.window_tokens is not None:
            return last + self.retention.window_tokens
        chunk = self.retention.chunk_tokens
        assert chunk is not None, "a group that keeps everything releases nothing"
        return (last // chunk + 1) * chunk

    def fit(self, ids: Sequence[BlockId], n_tokens: int) -> int:
        """``n_tokens`` if every block needed there is present in ``ids``, else a smaller upper bound."""
        sinks = self.sink_blocks(n_tokens)
        first, end = self.first_block(n_tokens), self.end_block(n_tokens)
        for start, stop in ((0, sinks), (first, end)):
            part = ids[start:stop]
            if NULL_BLOCK in part:
                return min(n_tokens, (start + part.index(NULL_BLOCK)) * self.tokens)
        return n_tokens


def rules_of(layout: CacheLayout) -> tuple[GroupRule, ...]:
    """One rule per group. Raises ``StateError`` for layouts whose memory is not blocks of tokens alone."""
    if layout.state_blocks:
        raise StateError(
            f"the model keeps {layout.state_bytes} bytes of recurrent state a sequence and the cache has no snapshots",
            remedy="use a model without recurrent layers",
        )
    if not layout.groups:
        raise StateError("the layout has no groups: there is nothing to cache")
    span = layout.span_tokens
    rules = []
    for group in layout.groups:
        tokens, retention = group.tokens_per_block, group.retention
        assert span % tokens == 0, "tokens per block divide the span"
        sink_end = ceil_div(retention.sinks, tokens)
        rules.append(GroupRule(group.id, tokens, span // tokens, retention, retention.bounded, sink_end))
    return tuple(rules)
