"""One random key for each tenant, kept in one file, each wrapped by a master key that is not in it.

Whoever has the file and the master key reads every tenant; ``forget`` destroys a tenant's key, and with it the worth
of every copy of his records, wherever they lie. The file is JSON: names of tenants stand in it as they are. It is
replaced whole (written aside, synced, renamed), under a lock, and read again when another process replaced it.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import secrets
import threading
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from kvist.errors import BadValue, StateError, UsageError
from kvist.tier.envelope import MAX_TENANT_BYTES
from kvist.tier.master_key import KEY_BYTES
from kvist.tier.private_file import Stamp, read_private, replace_private, stamp_of

VERSION: Final = 1

_NONCE_BYTES: Final = 12
_FIELD: Final = "kvist_keyring"
_INSTALL: Final = "pip install cryptography"


def aes_gcm(key: bytes) -> Any:
    """The cipher of ``cryptography``. Raises ``UsageError`` where it is not installed."""
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise UsageError("sealing the cache needs the package cryptography", remedy=_INSTALL) from None
    return AESGCM(key)


class Keyring:
    """The tenants' keys. Any thread may ask, and several processes may share the file."""

    def __init__(self, path: Path, master: bytes) -> None:
        """Open the file, or begin one. Raises ``UsageError``: wrong master key, damaged, another version, exposed."""
        if len(master) != KEY_BYTES:
            raise BadValue("master", f"<{len(master)} bytes>", f"{KEY_BYTES} bytes")
        self.path = path
        self._master = master
        self._cipher = aes_gcm(master)
        self._lock = threading.RLock()
        self._keys: dict[str, bytes] = {}
        self._seen: Stamp = ()
        with self._alone():
            if not path.exists() and not path.is_symlink():
                self._write(self._cipher, self._master)
            self._refresh()

    def tenants(self) -> list[str]:
        """Names of tenants that have a key."""
        with self._lock:
            self._refresh()
            return sorted(self._keys)

    def find(self, tenant: str) -> bytes | None:
        """A tenant's key, None where he has none. Raises ``UsageError`` when the file went bad since."""
        with self._lock:
            self._refresh()
            return self._keys.get(tenant)

    def key(self, tenant: str) -> bytes:
        """A tenant's key, made and written down at the first call. Raises ``UsageError`` and ``StateError``."""
        found = self.find(tenant)
        if found is not None:
            return found
        if len(tenant.encode()) > MAX_TENANT_BYTES:
            raise BadValue("tenant", tenant[:40], f"a name of at most {MAX_TENANT_BYTES} bytes")
        with self._alone():
            self._refresh()
            if tenant not in self._keys:
                self._keys[tenant] = secrets.token_bytes(KEY_BYTES)
                self._write(self._cipher, self._master)
        return self._keys[tenant]

    def forget(self, tenant: str) -> bool:
        """Destroy a tenant's key: his records are noise from here on. Returns whether he had one.

        The file's old content is overwritten after the new one is in place. That cannot reach what a file system with
        snapshots, or somebody's backup, keeps of the file: those open with the master key alone.
        """
        with self._alone():
            self._refresh()
            if self._keys.pop(tenant, None) is None:
                return False
            self._write(self._cipher, self._master)
        return True

    def rewrap(self, master: bytes) -> None:
        """Change the master key. Records stay as they are; other processes must be started again with the new key."""
        if len(master) != KEY_BYTES:
            raise BadValue("master", f"<{len(master)} bytes>", f"{KEY_BYTES} bytes")
        with self._alone():
            self._refresh()
            cipher = aes_gcm(master)
            self._write(cipher, master)
            self._cipher, self._master = cipher, master

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other thread or process changes the file meanwhile. The lock is a file of its own: the other one goes."""
        with self._lock:
            try:
                name = self.path.with_name(self.path.name + ".lock")
                file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise UsageError(f"the keyring {self.path} cannot be locked: {error.strerror}") from error
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                yield
            finally:
                os.close(file)

    def _refresh(self) -> None:
        """Read the file again when it is another one than was read last."""
        for attempt in range(3):
            try:
                if stamp_of(os.stat(self.path)) == self._seen:
                    return
                text, stamp = read_private(self.path)
                self._keys, self._seen = self._unwrapped(text), stamp
                return
            except OSError as error:
                raise UsageError(f"the keyring {self.path} cannot be read: {error.strerror}") from error
            except UsageError:
                # Another process may just have replaced the file, and wiped the one that was being read.
                if attempt == 2:
                    raise

    def _unwrapped(self, text: str) -> dict[str, bytes]:
        try:
            told = json.loads(text)
            version = told[_FIELD]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UsageError(
                f"{self.path} is no keyring, or a damaged one ({len(text)} bytes)",
                remedy="put back a copy, or remove it: the sealed records in the cache are lost then",
            ) from None
        if version != VERSION:
            raise UsageError(f"{self.path} is a keyring of version {version!r}, this kvist reads {VERSION}")
        if told.get("master") != _name_of(self._master):
            raise UsageError(f"the master key is not the one of {self.path}", remedy="use the key it was made with")
        try:
            return {tenant: self._open(tenant, base64.b64decode(held)) for tenant, held in told["keys"].items()}
        except Exception as error:  # InvalidTag, and whatever else a changed field leads to
            raise UsageError(f"{self.path} is damaged: {type(error).__name__}", remedy="put back a copy") from error

    def _open(self, tenant: str, held: bytes) -> bytes:
        key: bytes = self._cipher.decrypt(held[:_NONCE_BYTES], held[_NONCE_BYTES:], _bound(tenant))
        if len(key) != KEY_BYTES:
            raise ValueError("a key of another length")
        return key

    def _write(self, cipher: Any, master: bytes) -> None:
        """Replace the file. Raises ``StateError`` (a full disk...), and what is in memory is void then."""
        keys = {}
        for tenant, key in sorted(self._keys.items()):
            nonce = secrets.token_bytes(_NONCE_BYTES)
            keys[tenant] = base64.b64encode(nonce + cipher.encrypt(nonce, key, _bound(tenant))).decode()
        told = {_FIELD: VERSION, "master": _name_of(master), "keys": keys}
        try:
            self._seen = replace_private(self.path, json.dumps(told, indent=1).encode() + b"\n")
        except OSError as error:
            self._seen = ()
            raise StateError(f"the keyring {self.path} cannot be written: {error.strerror}") from error


def _bound(tenant: str) -> bytes:
    """What a wrapped key is bound to, so that no tenant's key passes for another's."""
    return b"kvist-keyring-1\0" + tenant.encode()


def _name_of(master: bytes) -> str:
    """Tells master keys apart without saying anything of them."""
    return blake2b(key=master, digest_size=8, person=b"kvist-master").hexdigest()
