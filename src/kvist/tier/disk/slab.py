"""Slab files: fixed slots, a header page (or more) and the block's bytes in each; direct I/O where it works.

Bytes go straight between a block's buffer and the device when the buffer's address and length are multiples of 4096;
others go through an aligned buffer. A run of neighbouring slots is one system call.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from kvist.tier.disk.folder import Folder, slab_name
from kvist.tier.disk.health import LOG
from kvist.tier.disk.io import Io

PAGE: Final = 4096


def padded(size: int) -> int:
    """Up to whole pages."""
    return -(-size // PAGE) * PAGE


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """One slot."""

    slab: int
    slot: int


def is_aligned(view: memoryview) -> bool:
    """Whether the device can read and write these bytes in place."""
    if len(view) % PAGE or not view.contiguous:
        return False
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0]) % PAGE == 0


class Arena(threading.local):
    """A thread's own aligned memory. What was taken last is void when more is taken."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 16 * PAGE)

    def take(self, size: int) -> memoryview:
        """At least ``size`` bytes, at a page's start."""
        if len(self._memory) < size:
            self._memory = mmap.mmap(-1, size)
        return memoryview(self._memory)[:size]


class Slabs:
    """The open files, by slab. Any thread may use it."""

    def __init__(self, folder: Folder, io: Io) -> None:
        self._folder, self._io = folder, io
        self._lock = threading.Lock()
        self._files: dict[int, int] = {}
        self._retired: list[int] = []
        self.direct = True

    def file(self, slab: int, slot_bytes: int, *, create: bool = False) -> int:
        """Its descriptor. Raises ``OSError``."""
        with self._lock:
            if slab not in self._files:
                name, rights = slab_name(slot_bytes, slab), os.O_RDWR if self._folder.writable else os.O_RDONLY
                if create:
                    rights |= os.O_CREAT
                self._files[slab] = self._open(name, rights)
            return self._files[slab]

    def _open(self, name: str, flags: int) -> int:
        if self.direct:
            try:
                return self._io.open(name, flags | os.O_DIRECT, self._folder.fd)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                    raise
            self._give_up_direct()
        return self._io.open(name, flags, self._folder.fd)

    def _give_up_direct(self) -> None:
        if self.direct:
            self.direct = False
            LOG.warning("disk tier %s: the filesystem takes no direct I/O, going through its cache", self._folder.path)

    def _falls_back(self, slab: int, fd: int) -> bool:
        """After EINVAL: whether a file was open for direct I/O and is not any more."""
        if not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            return False
        self._give_up_direct()
        with self._lock:
            if self._files.get(slab) == fd:
                self._retired.append(self._files.pop(slab))
        return True

    def forget(self, slab: int) -> None:
        """Open a slab's file anew next time. This descriptor stays until the end: another thread may be using it."""
        with self._lock:
            if slab in self._files:
                self._retired.append(self._files.pop(slab))

    def close(self) -> None:
        """Close them all. Nobody uses them any more."""
        with self._lock:
            for fd in (*self._files.values(), *self._retired):
                os.close(fd)
            self._files.clear()
            self._retired.clear()

    def write(self, place: Place, slot_bytes: int, parts: Sequence[memoryview]) -> None:
        """Fill slots from ``place`` on with ``parts``. Raises ``OSError`` (``ENOENT``: the file was removed)."""
        fd = self.file(place.slab, slot_bytes)
        if not os.fstat(fd).st_nlink:
            self.forget(place.slab)
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), slab_name(slot_bytes, place.slab))
        self._whole(place, slot_bytes, parts, write=True)

    def read(self, place: Place, slot_bytes: int, parts: Sequence[memoryview]) -> int:
        """Fill ``parts`` from ``place`` on; says how many bytes there were. Raises ``OSError``."""
        return self._whole(place, slot_bytes, parts, write=False)

    def _whole(self, place: Place, slot_bytes: int, parts: Sequence[memoryview], *, write: bool) -> int:
        fd, at, done = self.file(place.slab, slot_bytes), place.slot * slot_bytes, 0
        call = self._io.pwritev if write else self._io.preadv
        left = list(parts)
        while left:
            try:
                n = call(fd, left, at + done)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._falls_back(place.slab, fd):
                    raise
                fd = self.file(place.slab, slot_bytes)
                continue
            if n <= 0:
                if write:
                    raise OSError(errno.EIO, "nothing was written")
                break
            done += n
            while left and n >= len(left[0]):
                n -= len(left.pop(0))
            if left and n:
                left[0] = left[0][n:]  # where direct I/O cannot go on from here, it says EINVAL
        return done

    def sync(self, slab: int, slot_bytes: int) -> None:
        """Wait until what was written to it is on the device. Raises ``OSError``."""
        self._io.fdatasync(self.file(slab, slot_bytes))

    def grow(self, slab: int, slot_bytes: int, first: int, slots: int) -> None:
        """Have room for slots from ``first`` on. Raises ``OSError``."""
        fd = self.file(slab, slot_bytes, create=True)
        self._io.fallocate(fd, first * slot_bytes, slots * slot_bytes)

    def punch(self, place: Place, slot_bytes: int, slots: int) -> bool:
        """Give the room of neighbouring slots back; their bytes are gone. False: the filesystem makes no holes."""
        fd = self.file(place.slab, slot_bytes)
        try:
            self._io.punch(fd, place.slot * slot_bytes, slots * slot_bytes)
            return True
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                raise
            return False

    def blank(self, place: Place, slot_bytes: int) -> None:
        """Overwrite a slot with zeros. Raises ``OSError``."""
        zeros = memoryview(mmap.mmap(-1, slot_bytes))
        self.write(place, slot_bytes, [zeros])
        self.sync(place.slab, slot_bytes)

    def truncate(self, slab: int, slot_bytes: int, slots: int) -> None:
        """Cut a slab. Raises ``OSError``."""
        self._io.truncate(self.file(slab, slot_bytes), slots * slot_bytes)

    def slots(self, slab: int, slot_bytes: int) -> int:
        """How many whole slots its file has. Raises ``OSError``."""
        return os.fstat(self.file(slab, slot_bytes)).st_size // slot_bytes

    def remove(self, slab: int, slot_bytes: int) -> None:
        """Remove a slab's file: its room is free even while others have it open. Raises ``OSError``."""
        self.truncate(slab, slot_bytes, 0)
        self.forget(slab)
        self._io.unlink(slab_name(slot_bytes, slab), self._folder.fd)
