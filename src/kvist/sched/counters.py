"""What really happened: every feature of the scheduler counts its effect, so that a disabled one is visible."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Totals since the start. Owner: the scheduler.

    ``prompt_tokens`` counts a request's prompt once, when it is first admitted, and ``cached_tokens`` what of it came
    from the cache, so hits <= queries. Tokens a preempted sequence finds again are ``self_hit_tokens``; what another
    sample of the same request left is ``sibling_hit_tokens``.
    """

    requests: int = 0
    sequences: int = 0
    steps: int = 0
    mixed_steps: int = 0
    """Steps that both continued a sequence and computed a chunk of a prompt."""
    chunks: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    sampled_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    self_hit_tokens: int = 0
    sibling_hit_tokens: int = 0
    preemptions: int = 0
    forks: int = 0
    late_forks: int = 0
    """Samples that could not fork and were admitted on their own later."""
    led_admissions: int = 0
    """Admissions of sequences that had waited for somebody to compute their prefix."""
    led_tokens: int = 0
    """Cached tokens they got that were not there when they began to wait."""
    postponed_admissions: int = 0
    """Admissions tried and undone for want of blocks."""
    cut_hits: int = 0
    """Admissions that took whole blocks of a hit only: the copy of the rest did not fit (nothing else was running)."""
    shrunk_chunks: int = 0
    """Chunks made smaller because the pool could not hold a whole one (nothing else was running)."""
    drafted_tokens: int = 0
    accepted_drafts: int = 0
    finished_stop: int = 0
    finished_length: int = 0
    finished_abort: int = 0
    finished_error: int = 0
    failures: int = 0
    """Steps the executor could not do."""
    finds: int = 0
    """Questions put to the tiers."""
    found_tokens: int = 0
    """Tokens by which tiers could have lengthened the hits of those that were admitted."""
    loads: int = 0
    load_decisions: int = 0
    """Admissions by what was decided: to load what was found, a part of it, or to recompute it all."""
    part_decisions: int = 0
    recompute_decisions: int = 0
    loaded_tokens: int = 0
    unloaded_tokens: int = 0
    """Tokens that a load was to bring and did not (it failed, or was not needed any more)."""
    failed_loads: int = 0
    load_regret_s: float = 0.0
    """Seconds that recomputing would have saved where loading was chosen, and the other way round."""
    saved_blocks: int = 0
    """Blocks that tiers took, had already, and did not take."""
    known_blocks: int = 0
    lost_blocks: int = 0
    miss_end: int = 0
    """Requests by ``Match.reason`` of their lookup: why the hit was not longer."""
    miss_diverged: int = 0
    miss_evicted: int = 0
    miss_empty: int = 0
    miss_window: int = 0
    miss_limit: int = 0
    miss_full: int = 0
    miss_off: int = 0
