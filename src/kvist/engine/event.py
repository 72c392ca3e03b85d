"""What the engine tells the world: events of sequences, and the timeline of each."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.cache.cache import Match as Match
from kvist.ids import RequestId, SeqId
from kvist.sched.choice import Choice as Choice
from kvist.sched.request import Event as Event
from kvist.sched.request import FinishReason as FinishReason
from kvist.sched.request import Usage as Usage


@dataclass(slots=True)
class Timeline:
    """One sequence from arrival to end, in the clock's seconds (None: has not happened). Owner: the engine.

    ``matched`` is what its first admission found in the cache (None for a sample that forked), ``led``: it waited for
    another sequence to compute their common prefix. ``choice``: what was decided about loading, and what came of it.
    ``computed_s`` is when its whole prompt was in the cache. ``recomputed`` are tokens computed again after
    preemptions. ``held_bytes`` are the pool's bytes in its tables just before they were given back; ``layout_bytes``
    what the layout's formula says for the same number of computed tokens.
    """

    request: RequestId
    seq: SeqId
    arrived_s: float
    tenant: str = ""
    prompt_tokens: int = 0
    matched: Match | None = None
    led: bool = False
    choice: Choice | None = None
    admitted_s: float | None = None
    computed_s: float | None = None
    first_token_s: float | None = None
    done_s: float | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    recomputed: int = 0
    held_bytes: int = 0
    layout_bytes: int = 0

    @property
    def queue_s(self) -> float | None:
        """Seconds before its first chunk was planned; of a sample that forked, before its parent's was."""
        return None if self.admitted_s is None else self.admitted_s - self.arrived_s

    @property
    def ttft_s(self) -> float | None:
        """Seconds to the first token."""
        return None if self.first_token_s is None else self.first_token_s - self.arrived_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first; None with fewer than two."""
        if self.first_token_s is None or self.done_s is None or self.usage is None or self.usage.output_tokens < 2:
            return None
        return (self.done_s - self.first_token_s) / (self.usage.output_tokens - 1)
