"""The file of kept answers as a file: whose it is, who may read it, what is damage."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing, suppress
from pathlib import Path as File
from typing import Final

APPLICATION: Final = int.from_bytes(b"kvtn", "big")
VERSION: Final = 1
_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
"""What SQLite says of a file that is not what was written; the low byte of its code."""

_SQLITE: Final = b"SQLite format 3\0"
_FORMATS_AT: Final = slice(18, 20)
_FORMATS: Final = frozenset((1, 2))
"""How it may be written and read; SQLite only reads a file with another number for writing."""

_APPLICATION_AT: Final = 68
_VERSION_AT: Final = 60
_HEADER_BYTES: Final = 100


_NEWEST_VERSION: Final = 255
"""A file of a newer kvist is left alone; a version above this is no version."""

_LOOK_S: Final = 1.0
"""How long is waited for another program to let its database be looked into."""


class Refused(Exception):
    """The file is not ours to use, and will not be later: it is left alone."""


class Damaged(Exception):
    """What lies there is no file of kept answers, or not any more."""


def checked(path: File) -> bool:
    """Make the file where there is none; whether it can only be read.

    Raises ``Refused``, ``Damaged``, ``OSError``, and ``sqlite3.Error`` where it cannot be told whose it is.
    """
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
        if not _FORMATS.issuperset(head[_FORMATS_AT]):
            raise Damaged(f"it says that it has formats {[*head[_FORMATS_AT]]}")
    read_only = not (
        os.access(path, os.W_OK, effective_ids=True) and os.access(path.parent, os.W_OK, effective_ids=True)
    )
    if not read_only and found.st_mode & 0o077:
        path.chmod(0o600)
    return read_only


def is_damage(error: Exception) -> bool:
    """Whether the file is to blame for an error: not its disk, not a lock.

    SQLite quotes a damaged schema in what it says, and where that is no text, Python raises ``UnicodeDecodeError``.
    """
    code = getattr(error, "sqlite_errorcode", None)
    return isinstance(error, (Damaged, UnicodeDecodeError)) or (code is not None and code & 0xFF in _DAMAGED)


def _is_anothers(path: File) -> bool:
    """Whether this is a sound database without a table of ours. Raises ``sqlite3.Error`` where that cannot be told."""
    try:
        with closing(sqlite3.connect(f"file:{quoted(path)}?mode=ro", uri=True, timeout=_LOOK_S)) as db:
            return not db.execute("select count(*) from sqlite_schema where name = 'paths'").fetchone()[0]
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if is_damage(error):
            return False
        raise


def quoted(path: File) -> str:
    """A path as it stands in an SQLite URI."""
    return str(path.absolute()).replace("%", "%25").replace("?", "%3f").replace("#", "%23")
