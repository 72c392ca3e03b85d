"""Paths through conversations as rows of an SQLite file. One object belongs to one thread; processes share the file.

A row is replaced when its path grows: ``n`` never comes twice and ascends in the order of puts. Every body has a digest
over itself, its owner and its side, so that a row which decays is passed over, never believed.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path as File
from typing import Final

from kvist.text.turn_place import checked
from kvist.text.turn_sqlite import read_only, writable
from kvist.text.turn_store import ENTRY_TOKENS, Path

_DIGEST_BYTES: Final = 16
_ENTRY: Final = struct.Struct("<BII")


@dataclass(frozen=True, slots=True)
class Seal:
    """Hides rows: ``close(owner, bytes)``, and ``open`` the other way (None: it cannot be opened)."""

    close: Callable[[str, bytes], bytes]
    open: Callable[[str, bytes], bytes | None]


class SealFailed(Exception):
    """A seal raised: nothing is wrong with the file."""


@dataclass(frozen=True, slots=True)
class Row:
    """A path read back. ``n`` is its row."""

    n: int
    owner: str
    ids: array[int]
    entries: tuple[tuple[bytes, int, int], ...]

    @property
    def weight(self) -> int:
        """What it takes in a ``TurnStore``."""
        return len(self.ids) + ENTRY_TOKENS * len(self.entries)


class TurnRows:
    """The file of one side: what one tokenizer and template wrote. Calls raise ``sqlite3.Error``, ``OSError``,
    ``Damaged``, ``SealFailed``, and ``UnicodeDecodeError`` where SQLite quotes what is no text.
    """

    def __init__(self, path: File, side: bytes, max_bytes: int, seal: Seal | None) -> None:
        """Open or begin the file. Raises ``Refused`` besides."""
        self.unreadable = 0
        """Rows passed over: damaged, or sealed with a key that is gone."""
        self._side = side
        self._max_bytes = max_bytes
        self._seal = seal
        self._path = path
        self.read_only = checked(path)
        self._db = read_only(path) if self.read_only else writable(path, max_bytes)
        self._file = path.stat()

    @property
    def gone(self) -> bool:
        """Somebody removed or replaced the file: what is written here would be lost."""
        try:
            return not os.path.samestat(self._path.stat(), self._file)
        except FileNotFoundError:
            return True

    def newest(self, max_tokens: int) -> list[Row]:
        """This side's latest rows that fit into a store of ``max_tokens``, earliest first."""
        rows: list[Row] = []
        ask = "select n, cast(owner as blob), cast(body as blob) from paths where side = ? order by n desc"
        for n, owner, body in self._db.execute(ask, (self._side,)):
            row = self._row(n, bytes(owner or b"").decode(errors="replace"), bytes(body or b""))
            if row is None:
                self.unreadable += 1
                continue
            max_tokens -= row.weight
            if max_tokens < 0:
                break
            rows.append(row)
        return rows[::-1]

    def write(self, paths: Iterable[Path], rows: dict[int, int], owners: Iterable[str | None]) -> dict[int, int]:
        """In one transaction: forget ``owners`` (None: everybody), then put ``paths`` in place of their ``rows``.

        ``rows`` and what is returned: serial -> n. All or nothing.
        """
        now, forgotten = {}, list(owners)
        self._db.execute("begin immediate")
        try:
            for owner in forgotten:
                self._db.execute("delete from paths where ? is null or owner = ?", (owner, owner))
            for path in paths:
                body = self._body(path)
                self._db.execute("delete from paths where n = ?", (rows.get(path.serial),))
                put = "insert into paths (side, owner, bytes, body) values (?, ?, ?, ?)"
                now[path.serial] = self._db.execute(put, (self._side, path.owner, len(body), body)).lastrowid or 0
            self._make_room()
            self._db.execute("commit")
        except BaseException:
            with suppress(sqlite3.Error):
                self._db.execute("rollback")
            raise
        if forgotten:
            self._db.execute("pragma wal_checkpoint(truncate)").fetchall()
        return now

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def _make_room(self) -> None:
        """Whoever holds the most goes down to what the others leave, his earliest rows first."""
        ask = "select total(bytes), min(n) from paths group by owner order by 1 desc"
        while (held := self._db.execute(ask).fetchall()) and sum(size for size, _ in held) > self._max_bytes:
            self._db.execute("delete from paths where n = ?", held[0][1:])

    def _body(self, path: Path) -> bytes:
        plain = struct.pack("<I", len(path.entries))
        plain += b"".join(_ENTRY.pack(len(key), split, end) + key for key, split, end in path.entries) + path.ids
        body = self._digest(path.owner, plain) + plain
        if self._seal is None:
            return body
        try:
            return self._seal.close(path.owner, body)
        except Exception as error:
            raise SealFailed(str(error)) from error

    def _row(self, n: int, owner: str, body: bytes) -> Row | None:
        """A row as it was put; None for any other."""
        opened = self._opened(owner, body)
        if opened is None or self._digest(owner, opened[_DIGEST_BYTES:]) != opened[:_DIGEST_BYTES]:
            return None
        return Row(n, owner, *_parsed(opened[_DIGEST_BYTES:]))

    def _opened(self, owner: str, body: bytes) -> bytes | None:
        if self._seal is None:
            return body
        try:
            return self._seal.open(owner, body)
        except Exception as error:
            raise SealFailed(str(error)) from error

    def _digest(self, owner: str, plain: bytes) -> bytes:
        state = blake2b(digest_size=_DIGEST_BYTES, person=b"kvist-turns")
        for part in (sys.byteorder.encode(), self._side, owner.encode()):
            state.update(len(part).to_bytes(8, "little") + part)
        state.update(plain)
        return state.digest()


def _parsed(plain: bytes) -> tuple[array[int], tuple[tuple[bytes, int, int], ...]]:
    """Ids and entries."""
    (n_entries,) = struct.unpack_from("<I", plain)
    at = 4

    def entries() -> Iterator[tuple[bytes, int, int]]:
        nonlocal at
        for _ in range(n_entries):
            key_bytes, split, end = _ENTRY.unpack_from(plain, at)
            at += _ENTRY.size + key_bytes
            yield plain[at - key_bytes : at], split, end

    told = tuple(entries())
    ids = array("i")
    ids.frombytes(plain[at:])
    return ids, told
