"""The file of kept answers as a file: whose it is, who may read it, how it goes."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import stat
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path as File
from typing import Final

APPLICATION: Final = int.from_bytes(b"kvtn", "big")
VERSION: Final = 1
_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
"""What SQLite says of a file that is not what was written."""

_SQLITE: Final = b"SQLite format 3\0"
_APPLICATION_AT: Final = 68
_VERSION_AT: Final = 60
_HEADER_BYTES: Final = 100


_NEWEST_VERSION: Final = 255
"""A file of a newer kvist is left alone; a version above this is no version."""

_PARTS: Final = ("-wal", "-shm", "")
"""The log goes first: it must never be left beside a file that it does not belong to."""


_log = logging.getLogger("kvist.text")


class Refused(Exception):
    """The file is not ours to use, and will not be later: it is left alone."""


class Damaged(Exception):
    """What lies there is no file of kept answers, or not any more."""


def put_aside(path: File, error: Exception) -> str:
    """Rename a damaged file and its log to ``<name>.damaged-<n>``, and remove what was put aside before it.

    Says why it could not be done, or nothing.
    """
    try:
        old = _aside(path)
        numbers = [int(name.name.rpartition("damaged-")[2].partition("-")[0]) for name in old]
        aside = path.with_name(f"{path.name}.damaged-{max(numbers, default=0) + 1}")
        for part in _PARTS:
            with suppress(FileNotFoundError):
                path.with_name(path.name + part).rename(aside.with_name(aside.name + part))
        for name in old:
            name.unlink(missing_ok=True)
    except OSError as trouble:
        return f"{path} is damaged ({error}) and cannot be put aside: {trouble}"
    _log.warning("%s was damaged (%s): it is now %s, and a new one is begun", path, error, aside.name)
    return ""


def forget_aside(path: File, owners: Sequence[str | None]) -> None:
    """Where somebody is to be forgotten, remove what was put aside: whose rows are whose cannot be told there.

    Raises ``OSError``.
    """
    for name in _aside(path) if owners else ():
        name.unlink(missing_ok=True)


def _aside(path: File) -> list[File]:
    form = re.compile(re.escape(path.name) + r"\.damaged-\d+(-wal|-shm)?")
    return [name for name in path.parent.iterdir() if form.fullmatch(name.name)]


def checked(path: File) -> bool:
    """Make the file where there is none; whether it can only be read. Raises ``Refused``, ``Damaged``, ``OSError``."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode):
        raise Refused(f"{path} is no plain file: it is left alone")
    with open(path, "rb") as file:
        head = file.read(_HEADER_BYTES)
    if head:
        application, version = (int.from_bytes(head[at : at + 4], "big") for at in (_APPLICATION_AT, _VERSION_AT))
        if head[: len(_SQLITE)] != _SQLITE or application != APPLICATION:
            if head[: len(_SQLITE)] == _SQLITE and _is_anothers(path):
                raise Refused(f"{path} is not a file of kept answers: it is left alone")
            raise Damaged("it does not begin as a file of kept answers does")
        if VERSION < version <= _NEWEST_VERSION:
            raise Refused(f"{path} has version {version}, this kvist reads {VERSION}: it is left alone")
        if version != VERSION:
            raise Damaged(f"it says that it has version {version}")
    read_only = not (
        os.access(path, os.W_OK, effective_ids=True) and os.access(path.parent, os.W_OK, effective_ids=True)
    )
    if not read_only and found.st_mode & 0o077:
        path.chmod(0o600)
    return read_only


def is_damage(error: Exception) -> bool:
    """Whether the file is to blame for an error: not its disk, not a lock."""
    return isinstance(error, Damaged) or getattr(error, "sqlite_errorcode", None) in _DAMAGED


def _is_anothers(path: File) -> bool:
    """Whether this is a sound database without a table of ours."""
    try:
        with closing(sqlite3.connect(f"file:{quoted(path)}?mode=ro", uri=True)) as db:
            return not db.execute("select count(*) from sqlite_schema where name = 'paths'").fetchone()[0]
    except sqlite3.Error:
        return False


def quoted(path: File) -> str:
    """A path as it stands in an SQLite URI."""
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
