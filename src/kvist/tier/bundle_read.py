"""Reading a bundle: all of it is checked before anything of it is put anywhere, so a bad file changes nothing."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

import xxhash

from kvist.errors import UsageError
from kvist.tier.base import Put, Record, Tier
from kvist.tier.bundle import (
    END,
    HEAD,
    HEAD_SUM_BYTES,
    MAGIC,
    MAX_ABOUT_BYTES,
    TRAILER,
    VERSION,
    Chain,
    Progress,
    Summary,
)
from kvist.tier.envelope import MAX_HEADER_BYTES, Damaged, Foreign, Header, check_stored, read_header

MAX_FILE_BYTES: Final = 64 << 30
MAX_RECORD_BYTES: Final = 1 << 30
BATCH_BYTES: Final = 8 << 20
"""Records that are put with one call, or one where that is more."""

_SIZE_AT: Final = 12
_PEEK_BYTES: Final = 16


class _Bad(Exception):
    """What is wrong with a file."""


def read_about(path: Path) -> dict[str, Any]:
    """What a bundle says of itself; its records are not looked at. Raises ``UsageError``."""
    with _opened(path) as file:
        about, _ = _head(_Source(file))
        return about


def read_bundle(
    path: Path,
    tier: Tier,
    *,
    origin: bytes,
    record_bytes: int | None = None,
    tenant: str | None = None,
    max_bytes: int = MAX_FILE_BYTES,
    timeout_s: float = 60.0,
    on_progress: Progress | None = None,
) -> Summary:
    """Check a bundle from its first byte to its last, then put its records into ``tier``, ancestors first.

    ``origin`` is the fingerprint that every record must have (empty: any, but one), ``record_bytes`` its size (None:
    any), ``tenant`` whose the records are to be (None: as the bundle says). Holds ``BATCH_BYTES`` or one record in
    memory, and reads the file twice. Where the tier stops taking records the rest is ``lost``: what was taken is a
    whole beginning of the chain.
    Raises ``UsageError`` and puts nothing for anything but a whole, undamaged bundle of this origin.
    """
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise _Bad(f"it has {size:,} bytes, {max_bytes:,} are allowed")

        def report(done: int) -> None:
            if on_progress is not None:
                on_progress(done, 2 * size)

        source = _Source(file)
        about, begin = _head(source)
        chain, digests, data_bytes = Chain(origin), list[bytes](), 0
        for header, _ in _records(source, size, record_bytes):
            if fault := chain.fault(header.label):
                raise _Bad(fault)
            digests.append(header.digest)
            data_bytes += header.data_bytes
            report(source.at)
        _check_trailer(source, len(digests))
        file.seek(begin)
        again = _again(_Source(file, begin), digests, size, tenant)
        answers: list[Put] = []
        try:
            reason = _put(tier, again, answers, timeout_s, lambda done: report(size + done))
        except _Bad as error:
            reason = f"after it was checked: {error}"
        stored, known = answers.count("stored"), answers.count("known")
        lost = len(digests) - stored - known
        return Summary(len(digests), data_bytes, size, about, stored, known, lost, reason)


class _Source:
    """Reads exactly, sums up what was read, and knows where it is."""

    def __init__(self, file: BufferedReader, at: int = 0) -> None:
        self.at = at
        self._file = file
        self._sum = xxhash.xxh3_128()

    def take(self, n_bytes: int) -> bytearray:
        """The next bytes. Raises ``_Bad`` where there are fewer."""
        data = bytearray(n_bytes)
        if self._file.readinto(data) != n_bytes:
            raise _Bad(f"it ends early, within {n_bytes} bytes from byte {self.at}")
        self._sum.update(data)
        self.at += n_bytes
        return data

    def digest(self) -> bytes:
        return self._sum.digest()

    def at_trailer(self, size: int) -> bool:
        """Whether what follows is the trailer: then exactly its bytes are left."""
        return self.at + TRAILER.size >= size


def _head(source: _Source) -> tuple[dict[str, Any], int]:
    fixed = source.take(HEAD.size)
    magic, version, about_bytes = HEAD.unpack(fixed)
    if magic != MAGIC:
        raise _Bad("it is no bundle")
    if version != VERSION:
        raise _Bad(f"it has version {version}, this kvist reads {VERSION}")
    if about_bytes > MAX_ABOUT_BYTES:
        raise _Bad("its head is too long")
    told = source.take(about_bytes)
    if xxhash.xxh3_64_digest(fixed + told) != bytes(source.take(HEAD_SUM_BYTES)):
        raise _Bad("its head is damaged")
    try:
        about = json.loads(told)
    except (ValueError, RecursionError):
        about = None
    if not isinstance(about, dict):
        raise _Bad("its head says nothing")
    return about, source.at


def _records(source: _Source, size: int, record_bytes: int | None) -> Iterator[tuple[Header, bytearray]]:
    """Header and checked bytes of each record; ends before the trailer."""
    while not source.at_trailer(size):
        at = source.at
        start = source.take(_PEEK_BYTES)
        header_bytes = int.from_bytes(start[_SIZE_AT:_PEEK_BYTES], "little")
        if not _PEEK_BYTES <= header_bytes <= MAX_HEADER_BYTES:
            raise _Bad(f"what should be a record at byte {at} is none")
        try:
            header = read_header(memoryview(start + source.take(header_bytes - _PEEK_BYTES)))
            if header.flags or header.data_bytes != header.stored_bytes:
                raise Foreign("a record in a form that bundles do not have")
            if record_bytes not in (None, header.data_bytes) or header.data_bytes > MAX_RECORD_BYTES:
                raise Foreign(f"a record of {header.data_bytes} bytes, {record_bytes or MAX_RECORD_BYTES} are right")
            if header.stored_bytes > size - source.at:
                raise Damaged("it ends early")
            data = source.take(header.stored_bytes)
            check_stored(header, header.label.id, memoryview(data))
        except (Foreign, Damaged, UnicodeDecodeError, struct.error) as error:
            raise _Bad(f"the record at byte {at}: {error}") from error
        yield header, data


def _check_trailer(source: _Source, records: int) -> None:
    at, digest = source.at, source.digest()
    end, count, total, told = TRAILER.unpack(source.take(TRAILER.size))
    if (end, count, total, told) != (END, records, at, digest):
        raise _Bad("its end does not agree with what comes before")
    if not records:
        raise _Bad("it holds nothing")


def _again(source: _Source, digests: Sequence[bytes], size: int, tenant: str | None) -> Iterator[tuple[Record, int]]:
    """The records, read a second time: what changed since the first time is refused."""
    for (header, data), digest in zip(_records(source, size, None), digests, strict=True):
        if header.digest != digest:
            raise _Bad("it was changed while it was read")
        label = header.label if tenant is None else replace(header.label, tenant=tenant)
        yield Record(label, memoryview(data)), source.at


def _put(
    tier: Tier,
    records: Iterator[tuple[Record, int]],
    answers: list[Put],
    timeout_s: float,
    report: Callable[[int], None],
) -> str:
    """Put until one is not taken: its descendants would be of no use. Returns why it ended early, or nothing."""
    batch, held = list[Record](), 0

    def put() -> str:
        got = tier.put_many(batch, timeout_s=timeout_s)
        answers.extend(got)
        batch.clear()
        return next((how for how in got if how not in ("stored", "known")), "")

    for record, at in records:
        batch.append(record)
        held += len(record.data)
        if held >= BATCH_BYTES:
            if reason := put():
                return reason
            held = 0
        report(at)
    return put() if batch else ""


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BufferedReader]:
    """A regular file, and one way to say what is wrong with it."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _Bad("it is no file")
            if not os.fstat(file.fileno()).st_size:
                raise _Bad("it is empty")
            yield file
    except OSError as error:
        raise UsageError(f"the bundle {path} cannot be read: {error.strerror}") from error
    except _Bad as error:
        raise UsageError(f"the bundle {path} is refused: {error}", remedy="nothing of it was loaded") from error
