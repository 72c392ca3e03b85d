"""What a writing thread is given."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvist.ids import RecordId
from kvist.runtime.mover.open import OpenDrop, OpenSave
from kvist.tier.base import Record


@dataclass(slots=True, eq=False)
class Parcel:
    """One block for one tier. ``save`` is None for a promotion."""

    tenant: str
    record: Record
    slot: int
    save: OpenSave | None = None
    index: int = 0


@dataclass(slots=True, eq=False)
class Job:
    """``puts`` of one tenant, or a ``drop``, or records to count as used (``touch``)."""

    puts: list[Parcel] = field(default_factory=list)
    drop: OpenDrop | None = None
    touch: tuple[RecordId, ...] = ()
    tenant: str = ""
    since: float = 0.0
