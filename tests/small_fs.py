"""A real file system of a few MiB, which a test can fill up and make read-only."""

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallFs:
    """Mounted at ``path``. A name that begins with ``filler`` is the test's own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def free_bytes(self) -> int:
        facts = os.statvfs(self.path)
        return facts.f_bavail * facts.f_frsize

    def fill(self, leave_bytes: int = 0) -> None:
        """Somebody else takes what is free."""
        with open(self.path / "filler", "ab") as file:
            while self.free_bytes > leave_bytes:
                file.write(bytes(min(1 << 16, self.free_bytes - leave_bytes)))
                file.flush()

    def empty(self) -> None:
        (self.path / "filler").unlink()

    def read_only(self, on: bool) -> None:
        done = _mount("-o", "remount,ro" if on else "remount,rw", self.path)
        if done.returncode:
            # What is open for writing keeps a file system writable: the folder itself can be.
            raise OSError(done.stderr)


def _mount(*args: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["mount", *map(str, args)], capture_output=True, text=True)


@contextmanager
def small_fs(folder: Path, size: str):
    """A tmpfs at ``folder/fs``. Skips the test where it may not be mounted."""
    path = folder / "fs"
    path.mkdir()
    try:
        done = _mount("-t", "tmpfs", "-o", f"size={size},mode=0700", "none", path)
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield SmallFs(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], capture_output=True)
