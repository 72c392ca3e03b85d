"""Sessions as files: the chain of one conversation in one file, to keep, to move and to load into another tier.

::

    magic 8 | version u32 | about_bytes u32 | about: JSON | xxh3 of all before, 8
    records, root first: each a header (``envelope.py``), then its bytes
    magic 8 | records u64 | bytes before this trailer u64 | xxh3 of all before this, 16

A bundle is not sealed: it has what people wrote (tokens) and the KV computed from it in plain bytes, also when it comes
from a sealed tier. Its checksums find damage; they do not say who made it: load bundles only from people you trust.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import struct
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

import xxhash

from kvist.errors import BadValue, StateError, UsageError
from kvist.ids import RECORD_ID_BYTES, RecordId
from kvist.tier.base import Got, Label
from kvist.tier.envelope import Header, digest_of, write_header
from kvist.tier.private_file import sync_folder

MAGIC: Final = b"kvistBDL"
END: Final = b"kvistEND"
VERSION: Final = 1
HEAD: Final = struct.Struct("<8sII")
HEAD_SUM_BYTES: Final = 8
TRAILER: Final = struct.Struct("<8sQQ16s")
MAX_ABOUT_BYTES: Final = 1 << 20
MAX_NAME_CHARS: Final = 100
MAX_NAME_BYTES: Final = 200

_PART: Final = (".bundle-", ".part")


class Source(Protocol):
    """Where records are read from: a tier, a tenant's view of one, or several of them as one."""

    @property
    def name(self) -> str:
        """For people."""
        ...

    def get_many_into(
        self, ids: Sequence[RecordId], buffers: Sequence[memoryview], *, timeout_s: float
    ) -> list[tuple[Got, Label | None]]:
        """As a tier's."""
        ...


Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a bundle holds, and at an import what the tier made of it: ``lost`` records were not taken (``reason``)."""

    records: int
    data_bytes: int
    file_bytes: int
    about: Mapping[str, Any]
    stored: int = 0
    known: int = 0
    lost: int = 0
    reason: str = ""


class Chain:
    """What a bundle may hold: for each group and shard one chain of records, depths from 0, all of one origin."""

    def __init__(self, origin: bytes | None = None) -> None:
        self._origin = origin
        self._last: dict[bytes, Label] = {}

    def fault(self, label: Label) -> str:
        """Why ``label`` cannot come next; empty, and it has come, where it can."""
        if label.origin != (self._origin or label.origin):
            return f"it is of another model or format ({label.origin.hex()}), not of {(self._origin or b'').hex()}"
        place = label.id[RECORD_ID_BYTES - 2 :]
        before = self._last.get(place)
        parent, depth = (before.id, before.depth + 1) if before is not None else (b"", 0)
        if label.parent != parent or label.depth != depth:
            return f"its records are no chain: one of depth {label.depth} stands where depth {depth} should go on"
        self._last[place] = label
        self._origin = label.origin
        return ""


def safe_name(name: str) -> str:
    """A session's name as a file's name, unchanged, or ``BadValue``: nothing in it may lead anywhere else."""
    fault = ""
    if not name or len(name) > MAX_NAME_CHARS:
        fault = f"1 to {MAX_NAME_CHARS} characters"
    elif any(char in "/\\." or unicodedata.category(char)[0] == "C" for char in name):
        fault = "no slashes, dots or control characters"
    elif name != name.strip() or any(unicodedata.category(char) in ("Zl", "Zp") for char in name):
        fault = "no blanks at either end, and one line"
    elif len(name.encode()) > MAX_NAME_BYTES:
        fault = f"at most {MAX_NAME_BYTES} bytes"
    if fault:
        raise BadValue("name", name[:MAX_NAME_CHARS], f"a name with {fault}")
    return name


def write_bundle(
    path: Path,
    tier: Source,
    ids: Sequence[RecordId],
    about: Mapping[str, Any],
    *,
    record_bytes: int,
    timeout_s: float = 60.0,
    on_progress: Progress | None = None,
) -> Summary:
    """Write the records ``ids``, root first, each ``record_bytes`` long, to ``path``: wholly or not at all.

    ``about`` is what people and programs should know before they load it. Holds one record in memory. ``timeout_s`` is
    for each record. Raises ``UsageError`` (nothing to write, or the tier has not all of it), ``StateError`` (the disk).
    """
    if not ids:
        raise UsageError("there is nothing to export", remedy="a session has records once a block of it is full")
    told = json.dumps(dict(about), sort_keys=True).encode()
    if len(told) > MAX_ABOUT_BYTES:
        raise BadValue("about", f"<{len(told)} bytes>", f"at most {MAX_ABOUT_BYTES} bytes of JSON")
    with _whole(path) as file:
        out = _Summed(file)
        head = HEAD.pack(MAGIC, VERSION, len(told)) + told
        out.write(head + xxhash.xxh3_64_digest(head))
        buffer, chain = memoryview(bytearray(record_bytes)), Chain()
        for n, id in enumerate(ids):
            ((how, label),) = tier.get_many_into([id], [buffer], timeout_s=timeout_s)
            if label is None:
                what = f"record {n} of {len(ids)} could not be read from tier {tier.name}: {how}"
                raise UsageError(what, remedy="ask the conversation once more, so that it is computed and stored anew")
            if fault := chain.fault(label):
                raise UsageError(f"what is to be exported is refused: {fault}", remedy="give a chain's ids, root first")
            _write_record(out, label, buffer)
            if on_progress is not None:
                on_progress((n + 1) * record_bytes, len(ids) * record_bytes)
        file.write(TRAILER.pack(END, len(ids), out.written, out.digest()))
        return Summary(len(ids), len(ids) * record_bytes, out.written + TRAILER.size, dict(about))


class _Summed:
    """A file that is written to, and the checksum of what was."""

    def __init__(self, file: BinaryIO) -> None:
        self.written = 0
        self._file = file
        self._sum = xxhash.xxh3_128()

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._sum.update(data)
        self.written += len(data)

    def digest(self) -> bytes:
        return self._sum.digest()


def _write_record(out: _Summed, label: Label, data: memoryview) -> None:
    out.write(write_header(Header(label, len(data), len(data), digest_of(label.id, data))))
    out.write(data)


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[BinaryIO]:
    """A file beside ``path`` that takes its place, synced, when the block ends well, and goes when it does not."""
    aside = ""
    try:
        _clear_left_over(path.parent)
        handle, aside = tempfile.mkstemp(dir=path.parent, prefix=_PART[0], suffix=_PART[1])
        with open(handle, "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(aside, path)
        aside = ""
        sync_folder(path.parent)
    except OSError as error:
        raise StateError(f"{path} cannot be written: {error.strerror}", remedy="the old file is as it was") from error
    finally:
        if aside:
            with contextlib.suppress(OSError):
                os.unlink(aside)


def _clear_left_over(folder: Path) -> None:
    """Remove what an export that was killed left: nobody holds it, and it has what people wrote."""
    for name in folder.glob("*".join(_PART)):
        with contextlib.suppress(OSError), open(name, "rb", opener=_no_link) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            name.unlink()


def _no_link(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
