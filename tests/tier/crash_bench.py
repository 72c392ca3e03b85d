"""Records to store, ways to make an ``Io`` fail, and a check of the books from outside."""

import errno
import hashlib
import os
import sqlite3
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

from kvist.ids import RecordId
from kvist.tier.base import Label, Record
from kvist.tier.disk.io import Io
from kvist.tier.disk.store import DiskTier

MIB = 1 << 20


@contextmanager
def in_memory(otherwise: Path):
    """A folder in memory where there is a place for it: nothing waits for a disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else otherwise) as place:
        yield Path(place)


def rid(name: str) -> RecordId:
    return RecordId(hashlib.blake2b(name.encode(), digest_size=16).digest() + b"\0\0")


def data_of(name: str, size: int, version: int = 0) -> bytes:
    return (hashlib.sha256(f"{name}/{version}".encode()).digest() * (size // 32 + 1))[:size]


def record(name, parent=None, depth=0, size=4096, tenant="t", origin=b"o" * 16, version=0, tokens=b"\1\0\0\0" * 4):
    label = Label(rid(name), rid(parent) if parent else RecordId(b""), origin, depth, tenant, tokens)
    return Record(label, memoryview(data_of(name, size, version)))


def chain(name, end, start=0, **kw):
    """Records ``<name>0`` to ``<name><end - 1>``, each the child of the one before it."""
    return [record(f"{name}{d}", f"{name}{d - 1}" if d else None, d, **kw) for d in range(start, end)]


def ids_of(records):
    return [r.label.id for r in records]


def opened(folder, capacity=4 * MIB, **kw) -> DiskTier:
    return DiskTier.open(folder, capacity_bytes=capacity, **{"reserve_bytes": 0, "sync": False} | kw)


def get(tier, records):
    """(answers, whether every hit has the record's bytes and label)."""
    buffers = [memoryview(bytearray(b"\xaa" * r.data.nbytes)) for r in records]
    got = tier.get_many_into(ids_of(records), buffers, timeout_s=30)
    right = all(
        bytes(b) == bytes(r.data) and label == r.label
        for (g, label), b, r in zip(got, buffers, records, strict=True)
        if g == "hit"
    )
    return [g for g, _ in got], right


def put(tier, records):
    return tier.put_many(records, timeout_s=30)


def physical(folder: Path) -> int:
    return sum(p.lstat().st_blocks * 512 for p in folder.iterdir() if p.is_file())


def check_books(folder: Path, *, writing: bool = False) -> dict:
    """The index against itself and against the files, read by a connection of our own."""
    c = sqlite3.connect(folder / "index.db")
    try:
        assert c.execute("pragma integrity_check").fetchone() == ("ok",)
        facts = {"records": 0, "used_bytes": 0}
        slabs = c.execute("select id, slot_bytes, slots, used, ready, punched from slab").fetchall()
        for id, slot_bytes, slots, used, ready, punched in slabs:
            taken = [s for (s,) in c.execute("select slot from record where slab = ?", (id,))]
            free = c.execute("select slot, held from free where slab = ?", (id,)).fetchall()
            assert sorted([*taken, *(s for s, _ in free)]) == list(range(slots)), "every slot is used or free, once"
            assert used == len(taken) and punched == sum(not held for _, held in free)
            assert ready == c.execute("select count(*) from record where slab = ? and state = 0", (id,)).fetchone()[0]
            path = folder / f"slab-{slot_bytes}-{id}.kvs"
            assert path.stat().st_size == slots * slot_bytes
            facts["records"] += ready
            facts["used_bytes"] += used * slot_bytes
        assert {f"slab-{s[1]}-{s[0]}.kvs" for s in slabs} == {p.name for p in folder.glob("slab-*") if p.is_file()}
        if not writing:
            assert c.execute("select count(*) from record where state != 0").fetchone() == (0,)
        return facts
    finally:
        c.close()


class FaultyIo(Io):
    """Fails on order: ``fail[name]`` is a list of errnos (0: let it pass), taken one per call; a lone int: always."""

    def __init__(self, **fail):
        super().__init__()
        self.fail = dict(fail)
        self.calls = {}
        self._count = threading.Lock()

    def _turn(self, name):
        with self._count:
            self.calls[name] = self.calls.get(name, 0) + 1
            order = self.fail.get(name)
            code = order.pop(0) if isinstance(order, list) and order else order
        if isinstance(code, int) and code:
            raise OSError(code, os.strerror(code))

    def open(self, name, flags, dir_fd):
        self._turn("open_rw" if flags & (os.O_RDWR | os.O_WRONLY) else "open_ro")
        return super().open(name, flags, dir_fd)

    def pwritev(self, fd, parts, offset):
        self._turn("pwritev")
        return super().pwritev(fd, parts, offset)

    def preadv(self, fd, parts, offset):
        self._turn("preadv")
        return super().preadv(fd, parts, offset)

    def fdatasync(self, fd):
        self._turn("fdatasync")
        super().fdatasync(fd)

    def fallocate(self, fd, offset, size):
        self._turn("fallocate")
        super().fallocate(fd, offset, size)

    def commit(self, connection):
        with self._count:
            order = self.fail.get("commit")
            code = order.pop(0) if isinstance(order, list) and order else order
        if isinstance(code, int) and code:
            error = sqlite3.OperationalError("database or disk is full" if code == errno.ENOSPC else "disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL if code == errno.ENOSPC else sqlite3.SQLITE_IOERR
            raise error
        super().commit(connection)


class ShortIo(Io):
    """Moves at most ``most`` bytes a call."""

    def __init__(self, most):
        super().__init__()
        self.most = most

    def _cut(self, parts):
        out, left = [], self.most
        for p in parts:
            out.append(p[:left])
            left -= len(out[-1])
            if not left:
                break
        return out

    def pwritev(self, fd, parts, offset):
        return super().pwritev(fd, self._cut(parts), offset)

    def preadv(self, fd, parts, offset):
        return super().preadv(fd, self._cut(parts), offset)
