"""The index: one SQLite database in WAL mode that several processes share.

It knows where each record lies and in which order they were used; it never holds tokens or block bytes. ``slab.used``,
``ready`` and ``punched`` are kept by triggers, so that usage is a sum over few rows. Reading never waits for writing.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kvist.tier.disk.folder import INDEX, INDEX_PARTS, Folder
from kvist.tier.disk.io import Io

VERSION: Final = 1
APPLICATION: Final = 0x6B766973
READY: Final = 0
WRITING: Final = 1
DOOMED: Final = 2
"""Deleted while its owner was writing it."""

BUSY_S: Final = 5.0
CHECKPOINT_MS: Final = 50
ALONE_S: Final = 0.2

SCHEMA: Final = (
    "create table state(one integer primary key, clock integer not null, evicted integer not null,"
    " damaged integer not null)",
    "insert into state values(1, 0, 0, 0)",
    "create table slab(id integer primary key autoincrement, slot_bytes integer not null, slots integer not null,"
    " used integer not null default 0, ready integer not null default 0, punched integer not null default 0)",
    "create table record(id blob primary key, parent blob not null, origin blob not null, tenant blob not null,"
    " depth integer not null, head_bytes integer not null, data_bytes integer not null, slab integer not null,"
    " slot integer not null, state integer not null, owner blob, stamp integer not null, used integer not null,"
    " hits integer not null) without rowid",
    "create unique index record_place on record(slab, slot)",
    "create index record_used on record(used, depth desc)",
    "create index record_parent on record(parent, used)",
    "create index record_owner on record(owner) where owner is not null",
    # held: the slot has room on the device. wipe: its bytes must be destroyed before it is used again.
    "create table free(slab integer not null, slot integer not null, held integer not null, wipe integer not null,"
    " primary key(slab, slot)) without rowid",
    "create index free_wipe on free(slab, slot) where wipe = 1",
    "create trigger record_in after insert on record begin update slab set used = used + 1,"
    " ready = ready + (new.state = 0) where id = new.slab; end",
    "create trigger record_out after delete on record begin update slab set used = used - 1,"
    " ready = ready - (old.state = 0) where id = old.slab; end",
    "create trigger record_state after update of state on record begin update slab set"
    " ready = ready + (new.state = 0) - (old.state = 0) where id = new.slab; end",
    "create trigger free_in after insert on free begin update slab set punched = punched + (new.held = 0)"
    " where id = new.slab; end",
    "create trigger free_out after delete on free begin update slab set punched = punched - (old.held = 0)"
    " where id = old.slab; end",
    "create trigger free_held after update of held on free begin update slab set"
    " punched = punched + (new.held = 0) - (old.held = 0) where id = new.slab; end",
    f"pragma application_id = {APPLICATION}",
    f"pragma user_version = {VERSION}",
)

_CORRUPT: Final = frozenset(
    {
        sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_SCHEMA, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_RANGE,
    }
)  # fmt: skip


class Busy(Exception):
    """Others held the index for too long."""


class Unusable(Exception):
    """The index is damaged, or of another version."""


def is_busy(error: sqlite3.Error) -> bool:
    """Whether somebody else has the lock."""
    return _code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_corrupt(error: sqlite3.Error) -> bool:
    """Whether the database itself is to blame: not the disk, not a lock."""
    return _code(error) in _CORRUPT


def is_full(error: sqlite3.Error) -> bool:
    """Whether the database had no room."""
    return _code(error) == sqlite3.SQLITE_FULL


def is_io(error: sqlite3.Error) -> bool:
    """Whether a file could not be had or written, for whatever reason."""
    return _code(error) in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)


@contextmanager
def alone(folder: Folder) -> Iterator[sqlite3.Connection]:
    """An index that is there already, in one transaction, for nobody else: this takes no shared-memory file.

    What is not committed is rolled back. Raises ``sqlite3.Error`` (busy: somebody has it open).
    """
    path = urllib.parse.quote(str(folder.path / INDEX))
    connection = sqlite3.connect(f"file:{path}?mode=rw", timeout=ALONE_S, isolation_level=None, uri=True)
    connection.text_factory = bytes
    try:
        connection.execute("pragma locking_mode = exclusive")
        connection.execute("begin immediate")
        yield connection
    finally:
        connection.close()


def _code(error: sqlite3.Error) -> int:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:  # raised by the module itself, over a value that it cannot read
        return sqlite3.SQLITE_ERROR if isinstance(error, sqlite3.DatabaseError) else -1
    return int(code) & 0xFF


class Index:
    """One open database. ``fresh``: it was made by this open. Any thread may use it."""

    def __init__(self, folder: Folder, io: Io, *, wal_pages: int) -> None:
        """Raises ``Unusable``, ``Busy``, ``sqlite3.Error``, ``OSError``."""
        self._folder, self._io, self._wal_pages = folder, io, wal_pages
        self._lock = threading.Lock()
        self._readers: list[sqlite3.Connection] = []
        self._all: list[sqlite3.Connection] = []
        if folder.writable:
            self._ready_file()
        self._inode = folder.inode(INDEX)
        self._empty = not folder.writable and not folder.sizes((INDEX, INDEX_PARTS[0]))
        try:
            self._writer = self._connect()
            self.fresh = self._ready_schema()
        except sqlite3.Error as error:
            self.close()
            if is_busy(error):
                raise Busy from error
            if is_corrupt(error):
                raise Unusable(str(error)) from error
            raise
        except BaseException:
            self.close()
            raise

    def _ready_file(self) -> None:
        # SQLite would make it readable to others; its log gets the same rights as the file.
        if not self._folder.inode(INDEX):
            for part in (f"{INDEX}-wal", f"{INDEX}-shm"):
                if self._folder.inode(part):
                    self._io.unlink(part, self._folder.fd)
            os.close(self._io.open(INDEX, os.O_RDWR | os.O_CREAT, self._folder.fd))

    def _connect(self) -> sqlite3.Connection:
        path = urllib.parse.quote(str(self._folder.path / INDEX))
        if self._folder.writable:
            connection = self._open(f"file:{path}?mode=rw")
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = normal")
            connection.execute(f"pragma wal_autocheckpoint = {self._wal_pages}")
            connection.execute(f"pragma journal_size_limit = {self._wal_pages * 4096}")
            return connection
        if self._empty:
            return self._open(":memory:")
        connection = self._open(f"file:{path}?mode=ro")
        try:
            connection.execute("select count(*) from sqlite_schema").fetchone()
            return connection
        except sqlite3.OperationalError:
            self._all.remove(connection)
            connection.close()  # its lock would keep everybody from having the index alone
            # Without the right to make the shared-memory file: as it stands, the log's newest records left out.
            return self._open(f"file:{path}?immutable=1")

    def _open(self, name: str) -> sqlite3.Connection:
        connection = sqlite3.connect(name, timeout=BUSY_S, isolation_level=None, check_same_thread=False, uri=True)
        connection.text_factory = bytes
        self._all.append(connection)
        return connection

    def _ready_schema(self) -> bool:
        found = self._version()
        if found == (APPLICATION, VERSION):
            return False
        if found != (0, 0) or self._writer.execute("select count(*) from sqlite_schema").fetchone()[0]:
            raise Unusable(f"the index has version {found[1]}, not {VERSION}")
        self._writer.execute("begin immediate")
        if self._version() == (0, 0):
            for statement in SCHEMA:
                self._writer.execute(statement)
        self._io.commit(self._writer)
        return True

    def _version(self) -> tuple[int, int]:
        return (
            self._writer.execute("pragma application_id").fetchone()[0],
            self._writer.execute("pragma user_version").fetchone()[0],
        )

    @property
    def moved(self) -> bool:
        """Whether another process has put a new index in this one's place."""
        return self._folder.writable and self._folder.inode(INDEX) != self._inode

    @contextmanager
    def write(self, timeout_s: float) -> Iterator[sqlite3.Connection]:
        """One transaction with the only right to write. Raises ``Busy`` when it cannot be had in time."""
        timeout_s = min(max(timeout_s, 0.0), BUSY_S)
        if not self._lock.acquire(timeout=timeout_s):
            raise Busy
        try:
            try:
                self._bound_log(time.monotonic() + timeout_s)
                self._writer.execute(f"pragma busy_timeout = {int(1000 * timeout_s)}")
                self._writer.execute("begin immediate")
            except sqlite3.Error as error:
                raise Busy from error if is_busy(error) else error
            try:
                yield self._writer
                self._io.commit(self._writer)
            except BaseException:
                if self._writer.in_transaction:
                    self._writer.execute("rollback")
                raise
        finally:
            self._lock.release()

    def _bound_log(self, deadline_s: float) -> None:
        """Readers that follow each other closely keep SQLite from beginning its log anew: then writers wait for a gap.

        Raises ``Busy`` when none came in time.
        """
        while self._folder.sizes((INDEX_PARTS[0],)) > self._wal_pages * 4096 * 5 // 4:
            self._writer.execute(f"pragma busy_timeout = {CHECKPOINT_MS}")
            try:
                self._writer.execute("pragma wal_checkpoint(truncate)").fetchone()
            except sqlite3.Error as error:
                if is_full(error):
                    return  # it cannot grow either
                raise
            if time.monotonic() > deadline_s:
                raise Busy

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A connection to ask with."""
        try:
            connection = self._readers.pop()
        except IndexError:
            connection = self._writer if self._empty else self._connect()
        try:
            yield connection
        except BaseException:
            if connection is not self._writer:
                self._all.remove(connection)
                connection.close()
            raise
        if connection is not self._writer:
            self._readers.append(connection)

    def checkpoint(self) -> None:
        """Move the log's content into the database and cut the log."""
        with self._lock:
            self._writer.execute("pragma wal_checkpoint(truncate)").fetchone()

    def close(self) -> None:
        """Close every connection."""
        for connection in self._all:
            try:
                connection.close()
            except sqlite3.Error:
                continue
        self._all.clear()
        self._readers.clear()
