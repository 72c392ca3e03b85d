"""What the cache answers: frozen values."""

from __future__ import annotations

from dataclasses import dataclass

from kvist.ids import BlockId
from kvist.step import BlockCopy, TableChange


@dataclass(frozen=True, slots=True)
class Match:
    """What of a prompt is cached.

    ``reason`` says why not more: ``limit`` (the caller's), ``end`` (the cached run or the prompt ends), ``diverged``
    (another token follows), ``evicted`` (what follows was cached once), ``window`` (a window group has dropped blocks
    needed there), ``full`` (no block for the copy of a partly matching run), ``empty`` (namespace unknown), ``off``.
    ``first_differing`` is the index of the first token that no cached run has: past ``cached_tokens`` when a limit, a
    window or a full pool cut the hit. ``cached_there`` is the token that the nearest cached run of the same namespace
    has at that place, if one goes on.
    """

    cached_tokens: int
    shared_blocks: int
    copied_blocks: int
    reason: str
    first_differing: int
    cached_there: int | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """A sequence now holds ``cached_tokens`` of its prompt; computing starts there."""

    cached_tokens: int
    match: Match


@dataclass(frozen=True, slots=True)
class TenantShare:
    """One tenant's part of the pool: blocks in use (cached or live), the floor it may count on, blocks lost so far."""

    used_blocks: int
    floor_blocks: float
    evicted_blocks: int


@dataclass(frozen=True, slots=True)
class Drained:
    """For the next ``StepPlan``, applied in this order before any chunk is written."""

    fresh: tuple[BlockId, ...]
    tables: tuple[TableChange, ...]
    copies: tuple[BlockCopy, ...]
