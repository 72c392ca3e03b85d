"""Who has reserved a slot: one lock file per open tier, locked as long as its process lives."""

from __future__ import annotations

import os

from kvist.tier.disk.folder import GATE, Folder
from kvist.tier.disk.io import Io


def _name(token: str) -> str:
    return f"owner-{token}.lock"


class Owner:
    """This open of the tier. ``token`` stands in the rows of slots that it is writing to."""

    def __init__(self, folder: Folder, io: Io) -> None:
        """Raises ``OSError``."""
        self._folder, self._io = folder, io
        while True:
            token = os.urandom(8).hex()
            fd = io.open(_name(token), os.O_RDWR | os.O_CREAT | os.O_EXCL, folder.fd)
            # Between the two calls another process may take the file for a dead one's and remove it.
            if io.lock(fd, wait=False) and os.fstat(fd).st_nlink:
                break
            os.close(fd)
        self.token, self._fd = token.encode(), fd

    def is_dead(self, token: bytes) -> bool:
        """Whether the process behind a token has ended. Its lock file goes with this call."""
        if token == self.token:
            return False
        name = _name(token.decode("ascii", "replace"))
        if "/" in name or "\0" in name:
            return True
        try:
            fd = self._io.open(name, os.O_RDWR, self._folder.fd)
        except OSError:
            return not self._folder.is_file(name)
        try:
            if not self._io.lock(fd, wait=False):
                return False
            if os.fstat(fd).st_nlink:
                self._io.unlink(name, self._folder.fd)
            return True
        finally:
            os.close(fd)

    def close(self) -> None:
        """Let go of the lock and remove its file."""
        try:
            self._io.unlink(_name(self.token.decode()), self._folder.fd)
        except OSError:
            pass
        finally:
            os.close(self._fd)


class Gate:
    """Held while a folder is opened or its index rebuilt: one process at a time."""

    def __init__(self, folder: Folder, io: Io) -> None:
        """Waits for the gate. Raises ``OSError``."""
        self._fd = io.open(GATE, os.O_RDWR | os.O_CREAT, folder.fd)
        io.lock(self._fd, wait=True)

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
