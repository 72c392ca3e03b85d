"""A damaged file of kept answers makes way for a new one: once, however many processes find the damage."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path as File
from typing import Final

LOCK_TRIES: Final = 40
LOCK_PAUSE_S: Final = 0.05
"""Others hold the lock while they open, close or rename: for moments."""

_PARTS: Final = ("-wal", "-shm", "")
"""The log goes first: it must never be left beside a file that it does not belong to."""

_log = logging.getLogger("kvist.text")


class Spot:
    """Where the file lies, and which file lay there when it was last opened. One thread at a time.

    Damage is of a file, not of its path: when it is found, another process may have put a new file there. So the
    file that is opened is held on to (its inode cannot come again meanwhile), and only that one is put aside.
    """

    def __init__(self, path: File) -> None:
        self._path = path
        self._pin: int | None = None

    @contextmanager
    def opening(self) -> Iterator[None]:
        """While the file is opened; nobody renames it. Raises ``BlockingIOError`` when others rename for too long."""
        self.release()
        with _locked(self._path, fcntl.LOCK_SH):
            self._pin = _pinned(self._path)
            try:
                yield
            finally:
                if self._pin is None:  # it was begun just now
                    self._pin = _pinned(self._path)

    @contextmanager
    def closing(self) -> Iterator[None]:
        """While it is closed: SQLite removes its log by name then, which must not be a new file's."""
        with _locked(self._path, fcntl.LOCK_SH, needed=False):
            yield

    def put_aside(self, error: Exception) -> bool:
        """Rename the file that was opened, with its log, to ``<name>.damaged-<n>``; what was aside before it goes.

        False: another file is there by now, and nothing was done. Raises ``OSError``.
        """
        with _locked(self._path, fcntl.LOCK_EX):
            if not self._is_there():
                return False
            old = _aside(self._path)
            numbers = [int(name.name.rpartition("damaged-")[2].partition("-")[0]) for name in old]
            aside = self._path.with_name(f"{self._path.name}.damaged-{max(numbers, default=0) + 1}")
            for part in _PARTS:
                with suppress(FileNotFoundError):
                    self._path.with_name(self._path.name + part).rename(aside.with_name(aside.name + part))
            for name in old:
                name.unlink(missing_ok=True)
        _log.warning("%s was damaged (%s): it is now %s, and a new one is begun", self._path, error, aside.name)
        return True

    def release(self) -> None:
        """Let go of the file that was opened."""
        if self._pin is not None:
            os.close(self._pin)
            self._pin = None

    def _is_there(self) -> bool:
        try:
            return self._pin is not None and os.path.samestat(os.fstat(self._pin), self._path.lstat())
        except FileNotFoundError:
            return False


def forget_aside(path: File, owners: Sequence[str | None]) -> None:
    """Where somebody is to be forgotten, remove what was put aside: whose rows are whose cannot be told there.

    Raises ``OSError``.
    """
    for name in _aside(path) if owners else ():
        name.unlink(missing_ok=True)


def _aside(path: File) -> list[File]:
    form = re.compile(re.escape(path.name) + r"\.damaged-\d+(-wal|-shm)?")
    return [name for name in path.parent.iterdir() if form.fullmatch(name.name)]


def _pinned(path: File) -> int | None:
    """Holds a file without opening it: closing it takes none of the locks that SQLite has on it in this process."""
    try:
        return os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None


@contextmanager
def _locked(path: File, how: int, *, needed: bool = True) -> Iterator[None]:
    """Holds the lock of the file's folder: shared to open and close, alone to rename. No file is made for it.

    Raises ``BlockingIOError`` when it is ``needed`` and others hold it for too long.
    """
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # what is wrong with it is found out by who goes on
        folder = -1
    try:
        if folder >= 0 and not _took(folder, how) and needed:
            raise BlockingIOError(errno.EWOULDBLOCK, "other processes are just opening it or putting it aside")
        yield
    finally:
        if folder >= 0:
            os.close(folder)


def _took(folder: int, how: int) -> bool:
    pause = threading.Event()
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(folder, how | fcntl.LOCK_NB)
        except BlockingIOError:
            pause.wait(LOCK_PAUSE_S)
        except OSError:  # a filesystem without locks: which file it is still tells
            return True
        else:
            return True
    return False
