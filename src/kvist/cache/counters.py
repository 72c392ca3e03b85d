"""What the cache did, counted: a feature that does nothing shows as a zero."""

from __future__ import annotations

from dataclasses import dataclass, fields

from kvist.cache.answers import Match


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the cache was made.

    ``hit_tokens`` of ``query_tokens`` were not computed again, in ``hits`` of ``queries`` admissions. Then, in blocks:
    """

    queries: int = 0
    hits: int = 0
    query_tokens: int = 0
    hit_tokens: int = 0
    shared_blocks: int = 0
    """Referred to by a hit."""
    copied_blocks: int = 0
    """Copies sent to the executor: of a partly matching run, at a fork, before a write to a shared block."""
    cow_blocks: int = 0
    """Entries replaced for the last of these causes."""
    inserted_blocks: int = 0
    """Became matchable."""
    duplicate_blocks: int = 0
    """Computed although the tree already had them."""
    filled_blocks: int = 0
    """Of ``inserted_blocks``, those put in place of a tombstone."""
    evicted_blocks: int = 0
    """Freed by eviction, whichever way."""
    tombstoned_blocks: int = 0
    """Of ``evicted_blocks``, those of window groups whose run stays in the tree."""
    detached_blocks: int = 0
    """Taken out of the tree while a sequence still holds them."""
    superseded_tails: int = 0
    """Open tails dropped for a longer run."""
    stopped_end: int = 0
    """Admissions by ``Match.reason``: why the hit was not longer."""
    stopped_diverged: int = 0
    stopped_evicted: int = 0
    stopped_empty: int = 0
    stopped_window: int = 0
    stopped_limit: int = 0
    stopped_full: int = 0
    stopped_off: int = 0


Tally = dict[str, int]
"""The running totals behind ``Counters``, by field name. Owner: ``Cache``; the tree and the reclaimer add to it."""


def new_tally() -> Tally:
    """All zeros."""
    return {field.name: 0 for field in fields(Counters)}


def snapshot(tally: Tally) -> Counters:
    """Freeze the totals of this moment."""
    return Counters(**tally)


def count_query(tally: Tally, query_tokens: int, match: Match) -> None:
    """One admission and what it found."""
    tally["queries"] += 1
    tally["query_tokens"] += query_tokens
    tally["hits"] += match.cached_tokens > 0
    tally["hit_tokens"] += match.cached_tokens
    tally["shared_blocks"] += match.shared_blocks
    tally["stopped_" + match.reason] += 1
