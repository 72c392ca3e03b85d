"""Every change that the disk tier makes to a file goes through one small object, so that a test can stand in its way.

Reading and asking go through it too, where a fault of the device can show. What SQLite does inside a transaction is
its own; the moment of its commit passes here.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sqlite3
from collections.abc import Callable, Sequence
from typing import Final, cast

_KEEP_SIZE: Final = 1
_PUNCH_HOLE: Final = 2


def _libc_fallocate() -> Callable[[int, int, int, int], int] | None:
    try:
        call = ctypes.CDLL(None, use_errno=True).fallocate64
    except (OSError, AttributeError):
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return cast(Callable[[int, int, int, int], int], call)


class Io:
    """The system calls of the disk tier. All raise ``OSError``; ``commit`` raises ``sqlite3.Error``."""

    def __init__(self) -> None:
        self._fallocate = _libc_fallocate()

    def open(self, name: str, flags: int, dir_fd: int) -> int:
        """Open a file of the folder; never through a symlink, private to its owner when it is made."""
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)

    def pwritev(self, fd: int, parts: Sequence[memoryview], offset: int) -> int:
        """Write parts one after another; says how many bytes went."""
        return os.pwritev(fd, parts, offset)

    def preadv(self, fd: int, parts: Sequence[memoryview], offset: int) -> int:
        """Fill parts one after another; says how many bytes came (0: the file ends)."""
        return os.preadv(fd, parts, offset)

    def fdatasync(self, fd: int) -> None:
        """Wait until what was written is on the device."""
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        """The same, with the file's own facts (a folder: its names)."""
        os.fsync(fd)

    def rename(self, old: str, new: str, dir_fd: int) -> None:
        """Replace ``new`` by ``old`` in one go."""
        os.rename(old, new, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

    def unlink(self, name: str, dir_fd: int) -> None:
        """Remove a name."""
        os.unlink(name, dir_fd=dir_fd)

    def truncate(self, fd: int, size: int) -> None:
        """Cut a file, or lengthen it with a hole."""
        os.ftruncate(fd, size)

    def fallocate(self, fd: int, offset: int, size: int) -> None:
        """Have room for a range, and the file at least that long (where room cannot be had ahead: only the latter)."""
        try:
            self._call_fallocate(fd, 0, offset, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            if os.fstat(fd).st_size < offset + size:
                os.ftruncate(fd, offset + size)

    def punch(self, fd: int, offset: int, size: int) -> None:
        """Give a range's room back; it reads as zeros from then on."""
        self._call_fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, offset, size)

    def _call_fallocate(self, fd: int, mode: int, offset: int, size: int) -> None:
        if self._fallocate is None:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        if self._fallocate(fd, mode, offset, size) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))

    def free_bytes(self, fd: int) -> int:
        """Free space of the filesystem that a file lies on."""
        facts = os.fstatvfs(fd)
        return facts.f_bavail * facts.f_frsize

    def whole_bytes(self, fd: int) -> int:
        """Size of the filesystem that a file lies on; 0 where it has none."""
        facts = os.fstatvfs(fd)
        return facts.f_blocks * facts.f_frsize

    def lock(self, fd: int, *, wait: bool) -> bool:
        """Lock a file for this open of it. False: somebody else has it (and ``wait`` is not asked)."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        return True

    def commit(self, connection: sqlite3.Connection) -> None:
        """End a transaction of the index."""
        connection.execute("commit")
