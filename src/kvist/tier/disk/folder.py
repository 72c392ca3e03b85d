"""The tier's folder: its marker, its names, what lies there that is not ours.

``kvist-cache.json`` says which format the files have; ``index.db`` (SQLite) knows the records; ``slab-<slot
bytes>-<n>.kvs`` hold them; ``owner-<token>.lock`` belongs to one live process each; ``kvist-cache.lock`` is held while
a folder is opened. The folder is private (0700) when kvist makes it, its files always (0600). What has another name,
or is a symlink where a file should be, is counted and left alone.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvist.errors import BadValue, StateError
from kvist.tier.disk.io import Io

FORMAT: Final = 1
MARKER: Final = "kvist-cache.json"
RESERVE_HINT: Final = "reserve=SIZE changes that, in --tier or the key tier: disk:FOLDER?size=SIZE&reserve=SIZE"
GATE: Final = "kvist-cache.lock"
INDEX: Final = "index.db"
INDEX_PARTS: Final = (f"{INDEX}-wal", f"{INDEX}-shm", INDEX)
"""In the order in which they may go: a log must never be left beside an index that it does not belong to."""

_SLAB: Final = re.compile(r"slab-(\d{4,12})-(\d{1,9})\.kvs")
_OURS: Final = re.compile(
    r"kvist-cache\.(json|json\.new|lock)|index\.db(-wal|-shm|-journal)?"
    r"|index\.db\.damaged-\d+(-wal|-shm)?|owner-[0-9a-f]{16}\.lock|slab-\d{4,12}-\d{1,9}\.kvs"
)

_NEIGHBOURS: Final = re.compile(r"tenants\.keys(\.lock|\.part)?|answers\.db.*|sessions")
"""What else kvist keeps in the folder of its first disk tier: keys, the ids of answers, saved sessions."""

_ANSWERS_ASIDE: Final = re.compile(r"answers\.db\.damaged-\d+(-wal|-shm)?")


@dataclass(frozen=True, slots=True)
class Folder:
    """An open folder. ``fd`` stands for it whatever happens to its path. ``reason`` says why it is not writable."""

    path: Path
    fd: int
    writable: bool
    reason: str = ""

    def slabs(self) -> dict[int, tuple[str, int]]:
        """Slab files by number: (name, bytes of a slot). Only regular files."""
        found = {}
        for name in os.listdir(self.fd):
            match = _SLAB.fullmatch(name)
            if match and self.is_file(name):
                found[int(match[2])] = (name, int(match[1]))
        return found

    def is_file(self, name: str) -> bool:
        """Whether a regular file has this name (a symlink is none)."""
        try:
            return stat.S_ISREG(os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_mode)
        except OSError:
            return False

    def inode(self, name: str) -> int:
        """Which file has this name now; 0: none."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_ino
        except OSError:
            return 0

    def sizes(self, names: tuple[str, ...]) -> int:
        """Bytes of those of the files that are there."""
        total = 0
        for name in names:
            try:
                total += os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_size
            except OSError:
                continue
        return total

    def damaged(self) -> list[str]:
        """Indexes that were moved aside."""
        return sorted(n for n in os.listdir(self.fd) if n.startswith(f"{INDEX}.damaged-") and _OURS.fullmatch(n))

    def put_aside(self) -> list[str]:
        """All that was moved aside because it was damaged: indexes, and files of kept answers."""
        answers = [n for n in os.listdir(self.fd) if _ANSWERS_ASIDE.fullmatch(n) and self.is_file(n)]
        return sorted([*self.damaged(), *answers])

    def owners(self) -> list[str]:
        """Tokens of processes that have a lock file here, dead or alive."""
        names = os.listdir(self.fd)
        return sorted(n[6:-5] for n in names if n.startswith("owner-") and _OURS.fullmatch(n))

    def foreign_files(self) -> int:
        """How many things lie here that are not ours."""
        try:
            names = [n for n in os.listdir(self.fd) if not _NEIGHBOURS.fullmatch(n)]
            return sum(not (_OURS.fullmatch(n) and self.is_file(n)) for n in names)
        except OSError:
            return 0

    def refuse_symlinks(self) -> None:
        """Raises ``StateError`` where a symlink stands in for a file that must be ours."""
        for name in (MARKER, GATE, *INDEX_PARTS):
            if self.inode(name) and not self.is_file(name):
                raise StateError(
                    f"{self.path / name} is not a regular file", remedy="remove it, or choose another cache folder"
                )


def slab_name(slot_bytes: int, slab: int) -> str:
    """The file of a slab."""
    return f"slab-{slot_bytes}-{slab}.kvs"


def open_folder(path: Path, io: Io, *, read_only: bool) -> Folder:
    """Make or open the folder and check its marker. A symlinked path is followed once, here.

    Raises ``BadValue`` for a path that cannot be a folder, ``StateError`` for one of a newer or unreadable format.
    """
    real = Path(os.path.realpath(path))
    reason = "opened to read" if read_only else ""
    if not read_only:
        try:
            os.makedirs(real, mode=0o700, exist_ok=True)
        except OSError as error:
            if not real.is_dir():
                raise BadValue("folder", str(path), "a folder that exists or can be made", remedy=str(error)) from error
    try:
        fd = os.open(real, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise BadValue("folder", str(path), "a folder that can be opened", remedy=str(error)) from error
    try:
        Folder(real, fd, True).refuse_symlinks()
        gate, reason = (-1, reason) if read_only else _open_gate(fd, io)
        try:
            if not _check_marker(real, fd, io) and gate >= 0:
                reason = _write_marker(fd, io)
        finally:
            if gate >= 0:
                os.close(gate)
        return Folder(real, fd, not reason, reason)
    except BaseException:
        os.close(fd)
        raise


def _check_marker(path: Path, fd: int, io: Io) -> bool:
    """Whether there is a marker. Raises ``StateError`` unless it is one of this format."""
    try:
        marker = io.open(MARKER, os.O_RDONLY, fd)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StateError(f"{path / MARKER} cannot be read: {error}", remedy="choose another cache folder") from error
    try:
        with os.fdopen(marker, "rb") as file:
            said = json.loads(file.read(4096))
        version = said["format"]
        if type(version) is not int or version < 1:
            raise ValueError(f"format {version!r}")
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise StateError(
            f"{path / MARKER} does not say what format the cache has ({error})",
            remedy="choose another cache folder, or delete this one",
        ) from error
    if version > FORMAT:
        raise StateError(
            f"the cache in {path} has format {version}, this kvist knows formats up to {FORMAT}",
            remedy="upgrade kvist, or give this one another folder",
        )
    return True


def _write_marker(fd: int, io: Io) -> str:
    """Mark the folder. Says why that could not be done."""
    new = f"{MARKER}.new"
    text = memoryview(json.dumps({"format": FORMAT, "what": "a KV cache of kvist"}).encode() + b"\n")
    try:
        file = io.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, fd)
        try:
            if io.pwritev(file, [text], 0) != len(text):
                raise OSError(errno.ENOSPC, "short write")
            io.fsync(file)
        finally:
            os.close(file)
        io.rename(new, MARKER, fd)
        io.fsync(fd)
    except OSError as error:
        return str(error)
    return ""


def _open_gate(fd: int, io: Io) -> tuple[int, str]:
    """The lock that openers take, held; or -1 and why the folder cannot be written to."""
    try:
        gate = io.open(GATE, os.O_RDWR | os.O_CREAT, fd)
        io.lock(gate, wait=True)
        return gate, ""
    except OSError as error:
        return -1, str(error)


def move_index_aside(folder: Folder, io: Io) -> str:
    """Rename the index to ``index.db.damaged-<n>``; older ones go. Says the new name."""
    old = folder.damaged()
    number = max((int(n.split("damaged-")[1].split("-")[0]) for n in old), default=0) + 1
    aside = f"{INDEX}.damaged-{number}"
    for part in INDEX_PARTS:
        if folder.inode(part):
            io.rename(part, aside + part.removeprefix(INDEX), folder.fd)
    for name in old:
        io.unlink(name, folder.fd)
    return aside
