"""Files that hold secrets: only their owner opens them, and they are replaced whole."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from kvist.errors import UsageError

Stamp = tuple[int, ...]
"""Tells one content of a file from another without reading it."""


def stamp_of(stat: os.stat_result) -> Stamp:
    """The stamp of a file."""
    return stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size


def read_private(path: Path) -> tuple[str, Stamp]:
    """Content and stamp. Raises ``OSError``, and ``UsageError`` for a file that others than its owner can open."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(file, "rb") as source:
        stat = os.fstat(file)
        if stat.st_mode & 0o077:
            raise UsageError(f"{path} can be opened by others than its owner", remedy=f"chmod 600 {path}")
        return source.read().decode("utf-8", errors="replace"), stamp_of(stat)


def replace_private(path: Path, data: bytes) -> Stamp:
    """Write aside, sync, rename, sync the folder; then overwrite what the old file held. Raises ``OSError``.

    One at a time: the file aside always has the same name, so that none is left over with secrets in it.
    """
    aside = path.with_name(path.name + ".part")
    with contextlib.ExitStack() as opened:
        out = opened.enter_context(open(aside, "r+b", opener=_private))
        try:
            out.write(data)
            out.truncate()
            out.flush()
            os.fsync(out.fileno())
            old = opened.enter_context(open(path, "r+b")) if path.exists() else None
            os.replace(aside, path)
        except BaseException:
            os.unlink(aside)
            raise
        stamp = stamp_of(os.fstat(out.fileno()))
        sync_folder(path.parent)
        if old is not None:
            old.write(bytes(os.fstat(old.fileno()).st_size))
            old.flush()
            os.fsync(old.fileno())
        return stamp


def _private(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def sync_folder(folder: Path) -> None:
    """What was created, renamed or removed in a folder stays so after a power cut."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
