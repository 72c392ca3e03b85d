"""Files of saved sessions: one folder for each tenant, named by a digest, so that no name leads anywhere else."""

from __future__ import annotations

import logging
import os
import stat
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from kvist.errors import UsageError
from kvist.server.refuse import Refusal
from kvist.tier.bundle import safe_name
from kvist.tier.bundle_read import read_about

FOLDER_NAME: Final = "sessions"
SUFFIX: Final = ".kvist"
log: Final = logging.getLogger("kvist.server")
MOST_SESSIONS: Final = 1000
"""Of one tenant."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """One tenant's sessions. Raises ``BadValue`` for names that may not be, ``Refusal`` for what is not there."""

    folder: Path

    @staticmethod
    def of(folder: Path, owner: str) -> Shelf:
        """The shelf of ``owner`` in the folder of all. No symlink is followed: ``Refusal``, and a line in the log."""
        digest = blake2b(owner.encode(), digest_size=16, person=b"kvist-session")
        shelf = folder / digest.hexdigest()
        for path in (folder, shelf):
            if _is_other(path):
                log.warning("%s is not a folder: no session is saved to it or read from it", path)
                what = f"{FOLDER_NAME} in the cache folder is not a folder (a symlink is not followed)"
                raise Refusal(503, "sessions_refused", what, remedy="remove it from the cache folder")
        return Shelf(shelf)

    def path(self, name: str) -> Path:
        """The file of a session, there or not."""
        return self.folder / (safe_name(name) + SUFFIX)

    def found(self, name: str) -> Path:
        """The file of a session that is there."""
        path = self.path(name)
        if not _is_file(path):
            raise Refusal(404, "session_not_found", f"no session of yours is called {name!r}", param="name")
        return path

    def room_for(self, name: str, n_bytes: int, most_bytes: int | None) -> Path:
        """Where to write a session of about ``n_bytes``; all together may have ``most_bytes``."""
        path = self.path(name)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        others = [p for p in self._files() if p != path]
        if len(others) >= MOST_SESSIONS:
            raise Refusal(409, "too_many_sessions", f"{len(others)} sessions are saved", remedy="delete some")
        held = sum(p.lstat().st_size for p in others)
        if most_bytes is not None and held + n_bytes > most_bytes:
            what = (
                f"sessions of {held:,} bytes are saved; with {n_bytes:,} more they would take more than {most_bytes:,}"
            )
            raise Refusal(409, "sessions_full", what, remedy="delete some")
        return path

    def listed(self) -> list[dict[str, Any]]:
        """What is there, by name."""
        out = []
        for path in sorted(self._files()):
            told: dict[str, Any] = {"object": "session", "name": path.name.removesuffix(SUFFIX)}
            told["bytes"] = path.lstat().st_size
            try:
                about = read_about(path)
                told |= {name: about.get(name) for name in ("tokens", "model", "saved_unix_s")}
            except UsageError as error:
                told["error"] = named(error, path)
            out.append(told)
        return out

    def delete(self, name: str) -> None:
        """Remove a session."""
        self.found(name).unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        try:
            names = os.listdir(self.folder)
        except OSError:
            return []
        return [p for n in names if n.endswith(SUFFIX) and not n.startswith(".") and _is_file(p := self.folder / n)]


def named(error: UsageError, path: Path) -> str:
    """What is wrong with a file, without telling where it lies."""
    return str(error).replace(str(path), path.name.removesuffix(SUFFIX))


def _is_other(path: Path) -> bool:
    """Whether something else than a folder has this name."""
    try:
        return not stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
