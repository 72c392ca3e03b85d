"""The master key of a cache: 32 bytes that are in no folder of the cache."""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kvist.errors import BadValue, UsageError
from kvist.tier.private_file import read_private, sync_folder

KEY_BYTES: Final = 32
MASTER_VARIABLE: Final = "KVIST_CACHE_KEY"


def new_master_key() -> str:
    """A fresh master key, as the text that a key file or ``KVIST_CACHE_KEY`` holds: 64 hex digits."""
    return secrets.token_hex(KEY_BYTES)


def write_master_key(path: Path) -> None:
    """Put a fresh master key into a new file that only its owner reads. Raises ``UsageError`` where one is already."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(file, "w") as out:
            out.write(new_master_key() + "\n")
            out.flush()
            os.fsync(out.fileno())
        sync_folder(path.parent)
    except FileExistsError:
        raise UsageError(f"{path} is there already", remedy="a key that is lost takes the cache with it") from None
    except OSError as error:
        raise UsageError(f"no key could be written to {path}: {error.strerror}") from error


def read_master_key(path: Path | None = None, environ: Mapping[str, str] = os.environ) -> bytes:
    """32 bytes from a file, or from ``KVIST_CACHE_KEY`` without one. Raises ``UsageError``; never shows the key."""
    if path is None:
        if MASTER_VARIABLE not in environ:
            raise UsageError("no master key for the cache", remedy=f"set {MASTER_VARIABLE}, or name a key file")
        return _parsed(MASTER_VARIABLE, environ[MASTER_VARIABLE])
    try:
        return _parsed(str(path), read_private(path)[0])
    except OSError as error:
        raise UsageError(f"the key file {path} cannot be read: {error.strerror}") from error


def _parsed(name: str, text: str) -> bytes:
    text = text.strip()
    key = b""
    with contextlib.suppress(ValueError, binascii.Error):
        if len(text) == 2 * KEY_BYTES:
            key = bytes.fromhex(text)
        else:
            plain = text.replace("-", "+").replace("_", "/")
            key = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    if len(key) != KEY_BYTES:
        what = f"{KEY_BYTES} bytes as {2 * KEY_BYTES} hex digits or as base64"
        raise BadValue(name, f"<{len(text)} characters>", what, remedy="make one with: kvist cache keygen")
    return key
