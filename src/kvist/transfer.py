"""The part of the letter that is about tiers: what a plan asks of a mover, and what comes back.

A question is begun with the step that carries it and goes on beside later steps. Each is answered once.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvist.ids import BlockId


@dataclass(frozen=True, slots=True)
class Find:
    """Which of these records, a tenant's, do tiers have? Answered by ``Found``."""

    id: int
    records: tuple[bytes, ...]
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """Fill ``blocks[i]`` with record ``records[i]`` from tier ``tiers[i]`` (index, fastest first). Answer: ``Loaded``.

    Until that answer the mover writes to the blocks, and nobody else may.
    """

    id: int
    records: tuple[bytes, ...]
    blocks: tuple[BlockId, ...]
    tiers: tuple[int, ...]
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class SavedBlock:
    """One block to keep in the tiers as ``record``: its bytes are taken before the step changes anything.

    ``parent`` is the record before it in its chain, ``depth`` how many there are before it, ``tokens`` its own tokens
    (int32, little-endian).
    """

    record: bytes
    parent: bytes
    depth: int
    tokens: bytes
    block: BlockId


@dataclass(frozen=True, slots=True)
class Save:
    """Blocks of one tenant to keep, ancestors first. Answer: ``Kept``."""

    id: int
    tenant: str
    blocks: tuple[SavedBlock, ...]


@dataclass(frozen=True, slots=True)
class Touch:
    """Records of a tenant whose blocks the pool served: tiers count them as used. No answer."""

    tenant: str
    records: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Remove from every tier what this model has there; of one tenant, or of all (None). Answer: ``Dropped``."""

    id: int
    tenant: str | None


@dataclass(frozen=True, slots=True)
class Found:
    """For each record of a ``Find``: the index of the fastest tier that has it, -1 where none has.

    ``queued_bytes``: what waits to be read from each tier, for guessing how long a load will take.
    """

    id: int
    tiers: tuple[int, ...]
    queued_bytes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Loaded:
    """The end of a ``Load``: which blocks hold verified bytes now; the content of the others is void.

    ``reason`` is why the first of those failed (``missing damaged foreign timeout error cancelled``), ``tier`` where.
    ``seconds`` from the order to the end; ``busy_s`` of them by tier were spent reading its ``bytes``.
    """

    id: int
    good: tuple[bool, ...]
    reason: str = ""
    tier: int = -1
    seconds: float = 0.0
    bytes: tuple[int, ...] = ()
    busy_s: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Kept:
    """The end of a ``Save``: how many blocks tiers took, had already, and did not take (and why the first was not).

    ``lost_at`` are the indices of those.
    """

    id: int
    stored: int
    known: int
    lost: int
    reason: str = ""
    lost_at: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Dropped:
    """The end of a ``Drop``: records removed from each tier, -1 where it could not be done, and why."""

    id: int
    records: tuple[int, ...]
    reason: str = ""
