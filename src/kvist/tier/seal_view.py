"""One tenant's part of a sealed tier: true ids and plain bytes in, keyed ids and sealed bytes on to the inner tier."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from kvist.ids import RecordId
from kvist.tier.base import Entry, Got, Label, Put, Record, Tier, Usage
from kvist.tier.envelope import Damaged
from kvist.tier.tenant_cipher import SEAL_BYTES, Ciphers, TenantCipher

BATCH_BYTES: Final = 16 << 20
"""Sealed bytes that one call holds at a time, or one record where that is more: so much memory each thread keeps."""


class TenantView:
    """One tenant's part of a sealed tier. Records of another tenant are not taken (``error``)."""

    def __init__(self, inner: Tier, ciphers: Ciphers, tenant: str) -> None:
        self.name = inner.name
        self.tenant = tenant
        self._inner = inner
        self._ciphers = ciphers

    def exists_many(self, ids: Sequence[RecordId]) -> list[bool]:
        """As any tier."""
        cipher = self._ciphers.of(self.tenant)
        if cipher is None or not ids:
            return [False] * len(ids)
        return self._inner.exists_many([cipher.id_of(id) for id in ids])

    def get_many_into(
        self, ids: Sequence[RecordId], buffers: Sequence[memoryview], *, timeout_s: float
    ) -> list[tuple[Got, Label | None]]:
        """As any tier: a record whose seal does not agree is ``damaged`` and dropped."""
        end = time.monotonic() + timeout_s
        cipher = self._ciphers.of(self.tenant)
        if cipher is None:
            return [("error" if self._ciphers.trouble else "missing", None)] * len(ids)
        got: list[tuple[Got, Label | None]] = []
        for batch in _batches([len(buffer) + SEAL_BYTES for buffer in buffers]):
            left_s = end - time.monotonic()
            if left_s <= 0 or (got and got[-1][0] == "timeout"):
                return got + [("timeout", None)] * (len(ids) - len(got))
            wanted = [cipher.id_of(ids[n]) for n in batch]
            pieces = self._ciphers.scratch.pieces([len(buffers[n]) + SEAL_BYTES for n in batch])
            answers = self._inner.get_many_into(wanted, pieces, timeout_s=left_s)
            for n, piece, (how, label) in zip(batch, pieces, answers, strict=True):
                got.append(self._opened(cipher, ids[n], label, piece, buffers[n]) if label else (how, None))
            self._after([how for how, _ in answers])
        return got

    def put_many(self, records: Sequence[Record], *, timeout_s: float) -> list[Put]:
        """As any tier. What is there already is not sealed again."""
        end = time.monotonic() + timeout_s
        cipher = self._ciphers.of(self.tenant, new=True)
        if cipher is None:
            return ["off"] * len(records)
        put: list[Put] = ["timeout"] * len(records)
        ids = [cipher.id_of(record.label.id) for record in records]
        known = self._inner.exists_many(ids)
        self._inner.touch_many([id for id, there in zip(ids, known, strict=True) if there])
        todo = []
        for n, record in enumerate(records):
            if known[n]:
                put[n] = "known"
            elif record.label.tenant != self.tenant:
                put[n] = "error"
            else:
                todo.append(n)
        for batch in _batches([len(records[n].data) + SEAL_BYTES for n in todo]):
            left_s = end - time.monotonic()
            if left_s <= 0:
                break
            places = [todo[n] for n in batch]
            sealed = self._closed(cipher, [records[n] for n in places])
            answers = self._inner.put_many(sealed, timeout_s=left_s)
            self._after(answers)
            for n, answer in zip(places, answers, strict=True):
                put[n] = answer
        return put

    def touch_many(self, ids: Sequence[RecordId]) -> None:
        """As any tier."""
        cipher = self._ciphers.of(self.tenant)
        if cipher is not None:
            self._inner.touch_many([cipher.id_of(id) for id in ids])

    def delete(self, *, ids: Sequence[RecordId] = (), tenant: str | None = None, origin: bytes | None = None) -> int:
        """As any tier, within this tenant's part."""
        if tenant not in (None, self.tenant):
            return 0
        if ids:
            cipher = self._ciphers.of(self.tenant)
            return self._inner.delete(ids=[cipher.id_of(id) for id in ids]) if cipher is not None else 0
        return self._inner.delete(tenant=self.tenant, origin=origin) if tenant is not None or origin is not None else 0

    def list(self, *, origin: bytes | None = None, tenant: str | None = None) -> Iterator[Entry]:
        """This tenant's records."""
        if tenant in (None, self.tenant):
            yield from opened_entries(self._inner.list(origin=origin, tenant=self.tenant), self._ciphers)

    def usage(self) -> Usage:
        """The whole tier's, as the keyring lets it be used."""
        return usage_of(self._inner, self._ciphers)

    def close(self) -> None:
        """Nothing: the tier is closed, not its views."""

    def _after(self, answers: Sequence[str]) -> None:
        """A place that gave up waiting may go on with what it was given."""
        if "timeout" in answers or "error" in answers:
            self._ciphers.scratch.let_go()

    def _closed(self, cipher: TenantCipher, records: Sequence[Record]) -> Sequence[Record]:
        pieces = self._ciphers.scratch.pieces([len(record.data) + SEAL_BYTES for record in records])
        sealed = []
        for record, piece in zip(records, pieces, strict=True):
            label = cipher.seal_label(record.label, len(record.data))
            cipher.seal_into(label, record.data, piece)
            sealed.append(Record(label, piece))
        return sealed

    def _opened(
        self, cipher: TenantCipher, id: RecordId, label: Label, piece: memoryview, buffer: memoryview
    ) -> tuple[Got, Label | None]:
        try:
            opened = cipher.open_label(label, len(buffer))
            if opened.id != id:
                raise Damaged("another record lies where this one should")
            cipher.open_into(label, piece, buffer)
            return "hit", opened
        except Damaged:
            self._ciphers.count_damaged()
            self._inner.delete(ids=[cipher.id_of(id)])
            return "damaged", None


def opened_entry(entry: Entry, ciphers: Ciphers) -> Entry | None:
    """An entry of the inner tier with its true label; None where no key opens it."""
    cipher = ciphers.of(entry.label.tenant)
    data_bytes = entry.data_bytes - SEAL_BYTES
    if cipher is None or data_bytes < 0:
        return None
    try:
        return replace(entry, label=cipher.open_label(entry.label, data_bytes), data_bytes=data_bytes)
    except Damaged:
        return None


def opened_entries(entries: Iterable[Entry], ciphers: Ciphers) -> Iterator[Entry]:
    """Those of the inner tier's entries that a key opens."""
    return (opened for entry in entries if (opened := opened_entry(entry, ciphers)) is not None)


def usage_of(inner: Tier, ciphers: Ciphers) -> Usage:
    """The inner tier's usage. The condition is ``off`` while the keyring cannot be used."""
    usage = inner.usage()
    usage = replace(usage, damaged_records=usage.damaged_records + ciphers.damaged)
    return replace(usage, condition="off", reason=ciphers.trouble) if ciphers.trouble else usage


def _batches(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Indexes in order, in groups of at most ``BATCH_BYTES``, or of one."""
    group: list[int] = []
    held = 0
    for n, size in enumerate(sizes):
        if group and held + size > BATCH_BYTES:
            yield group
            group, held = [], 0
        group.append(n)
        held += size
    if group:
        yield group
