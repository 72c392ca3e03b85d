"""The calls to a tier. One that raises, or answers what the port does not know, has a bug: the answer is ``error``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, get_args

from kvist.ids import RecordId
from kvist.runtime.mover.lane import Lane
from kvist.tier.base import Got, Label, Put, Record

_GOT: Final = frozenset(get_args(Got))
_PUT: Final = frozenset(get_args(Put))


def exists(lane: Lane, tenant: str, ids: Sequence[RecordId]) -> list[bool] | None:
    """Which are there; None for a bug."""
    try:
        has = lane.of(tenant).exists_many(ids)
        _check_count(ids, has)
    except Exception as error:
        lane.blame(error)
        return None
    lane.praise()
    return has


def is_strange(lane: Lane, origin: bytes, now: float) -> bool:
    """Whether all that it has is of other models or settings; a bug: no."""
    try:
        return lane.is_strange(origin, now)
    except Exception as error:
        lane.blame(error)
        return False


def get(
    lane: Lane, tenant: str, ids: Sequence[RecordId], buffers: Sequence[memoryview], *, origin: bytes, timeout_s: float
) -> list[tuple[Got, Label | None]]:
    """Read records. Whatever a tier says, another record, or one of another origin, is ``foreign``."""
    try:
        got = lane.of(tenant).get_many_into(ids, buffers, timeout_s=timeout_s)
        _check_count(ids, got)
        _check_words(_GOT, [word for word, _ in got])
    except Exception as error:
        lane.blame(error)
        return [("error", None)] * len(ids)
    lane.praise()
    checked: list[tuple[Got, Label | None]] = []
    for id, (word, label) in zip(ids, got, strict=True):
        ours = label is not None and label.id == id and label.origin == origin
        checked.append((word, label) if ours or word != "hit" else ("foreign", None))
    return checked


def put(lane: Lane, tenant: str, records: Sequence[Record], *, timeout_s: float) -> Sequence[Put]:
    """Store records."""
    try:
        answers = lane.of(tenant).put_many(records, timeout_s=timeout_s)
        _check_count(records, answers)
        _check_words(_PUT, answers)
    except Exception as error:
        lane.blame(error)
        return ["error"] * len(records)
    lane.praise()
    return answers


def remove(lane: Lane, tenant: str, id: RecordId) -> None:
    """Take one record out."""
    try:
        lane.of(tenant).delete(ids=[id])
    except Exception as error:
        lane.blame(error)


def touch(lane: Lane, tenant: str, ids: Sequence[RecordId]) -> None:
    """Count records as used."""
    try:
        lane.of(tenant).touch_many(ids)
    except Exception as error:
        lane.blame(error)


def delete(lane: Lane, tenant: str | None, *, origin: bytes) -> tuple[int, str]:
    """Records removed, or -1 and why: a tier that is off has not removed all, whatever it says."""
    try:
        removed = lane.tier.delete(tenant=tenant, origin=origin)
    except Exception as error:
        lane.blame(error)
        return -1, f"{lane.name}: {type(error).__name__}: {error}"
    usage = lane.usage()
    if removed >= 0 and usage.condition != "off":
        return removed, ""
    why = usage.reason or getattr(lane.tier, "trouble", "") or "it could not be asked to the end"
    return -1, f"{lane.name}: {why}"


def _check_count(asked: Sequence[object], answers: Sequence[object]) -> None:
    if len(asked) != len(answers):
        raise ValueError(f"asked about {len(asked)} records, it answered about {len(answers)}")


def _check_words(known: frozenset[str], words: Sequence[str]) -> None:
    if not known.issuperset(words):
        raise ValueError(f"{sorted(set(words) - known)} is no answer that the port knows")
