"""The file of kept answers as a file: whose it is, who may read it, how it goes."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import suppress
from pathlib import Path as File
from typing import Final

APPLICATION: Final = int.from_bytes(b"kvtn", "big")
VERSION: Final = 1
DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
"""What SQLite says of a file that is not what was written."""

_SQLITE: Final = b"SQLite format 3\0"
_APPLICATION_AT: Final = 68
_VERSION_AT: Final = 60
_HEADER_BYTES: Final = 100


class Refused(Exception):
    """The file is not ours to use, and will not be later: it is left alone."""


def cleared(path: File) -> str:
    """Remove a damaged file of ours with its log; why it could not be done, or nothing."""
    try:
        for name in (path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")):
            name.unlink(missing_ok=True)
    except OSError as error:
        return str(error)
    return ""


def checked(path: File) -> bool:
    """Make the file where there is none; whether it can only be read. Raises ``Refused`` and ``OSError``."""
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
            raise Refused(f"{path} is not a file of kept answers: it is left alone")
        if version != VERSION:
            raise Refused(f"{path} has version {version}, this kvist reads {VERSION}: it is left alone")
    read_only = not (
        os.access(path, os.W_OK, effective_ids=True) and os.access(path.parent, os.W_OK, effective_ids=True)
    )
    if not read_only and found.st_mode & 0o077:
        path.chmod(0o600)
    return read_only


def quoted(path: File) -> str:
    """A path as it stands in an SQLite URI."""
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
