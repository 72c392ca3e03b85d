"""What one tenant's key does to a record: another id, data and label that nobody else can read or change unseen.

A sealed record's data is ``nonce 12 | AES-256-GCM | tag 16``; its id is the keyed BLAKE2b of the true one, the last
two bytes (group and shard) as they are. The label's tokens become ``nonce | sealed (id 18, parent 18, tokens) | tag``:
so the true ids come back. Both are bound to the sealed ids, origin, depth, tenant and length: none of that can be
changed unseen. Those, and how records follow each other, stay readable.
"""

from __future__ import annotations

import logging
import os
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Final, TypeVar

from kvist.errors import KvistError
from kvist.ids import RECORD_ID_BYTES, RecordId
from kvist.tier.base import Label
from kvist.tier.damage import Damage
from kvist.tier.envelope import MAX_TENANT_BYTES, Damaged
from kvist.tier.keyring import Keyring, aes_gcm

T = TypeVar("T")

NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
SEAL_BYTES: Final = NONCE_BYTES + TAG_BYTES
"""A sealed record is so much longer than its data."""

_KEY_BYTES: Final = 32
_PLACE_BYTES: Final = 2
_NO_PARENT: Final = bytes(RECORD_ID_BYTES)
_BOUND: Final = struct.Struct(f"<{RECORD_ID_BYTES}s{RECORD_ID_BYTES}sIQH")

_log = logging.getLogger("kvist.tier")


class TenantCipher:
    """One tenant's keys, all made from his one key. Any thread may use it.

    Nonces are drawn by the system, 96 bits each: after 2^32 records of one tenant two are equal with a chance of 2^-33.
    """

    def __init__(self, key: bytes) -> None:
        self.key = key
        self._ids = _derived(key, b"kvist-seal-ids")
        self._data = aes_gcm(_derived(key, b"kvist-seal-data"))
        self._labels = aes_gcm(_derived(key, b"kvist-seal-label"))
        self._turns = aes_gcm(_derived(key, b"kvist-seal-turns"))
        self._into = hasattr(self._data, "decrypt_into")  # since cryptography 47: one copy less

    def id_of(self, id: RecordId) -> RecordId:
        """The id under which a record lies in the inner tier; empty for none."""
        if not id:
            return id
        digest = blake2b(id, key=self._ids, digest_size=RECORD_ID_BYTES - _PLACE_BYTES).digest()
        return RecordId(digest + id[-_PLACE_BYTES:])

    def seal_label(self, label: Label, data_bytes: int) -> Label:
        """The label of the sealed record."""
        outer = replace(label, id=self.id_of(label.id), parent=self.id_of(label.parent))
        nonce = os.urandom(NONCE_BYTES)
        inner = label.id + (label.parent or _NO_PARENT) + label.tokens
        return replace(outer, tokens=nonce + self._labels.encrypt(nonce, inner, _bound(outer, data_bytes)))

    def open_label(self, outer: Label, data_bytes: int) -> Label:
        """The label that was sealed. Raises ``Damaged``."""
        from cryptography.exceptions import InvalidTag

        sealed = outer.tokens
        try:
            inner = self._labels.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], _bound(outer, data_bytes))
        except (InvalidTag, ValueError):
            raise Damaged("the label's seal does not agree") from None
        id, parent = inner[:RECORD_ID_BYTES], inner[RECORD_ID_BYTES : 2 * RECORD_ID_BYTES]
        return replace(
            outer,
            id=RecordId(id),
            parent=RecordId(b"" if parent == _NO_PARENT else parent),
            tokens=inner[2 * RECORD_ID_BYTES :],
        )

    def seal_into(self, outer: Label, data: memoryview, sealed: memoryview) -> None:
        """Seal ``data`` into ``sealed``, ``SEAL_BYTES`` longer. ``outer`` is what ``seal_label`` gave."""
        nonce, bound = os.urandom(NONCE_BYTES), _bound(outer, len(data))
        sealed[:NONCE_BYTES] = nonce
        if self._into:
            self._data.encrypt_into(nonce, data, bound, sealed[NONCE_BYTES:])
        else:
            sealed[NONCE_BYTES:] = self._data.encrypt(nonce, data, bound)

    def open_into(self, outer: Label, sealed: memoryview, data: memoryview) -> None:
        """Fill ``data`` with what was sealed. Raises ``Damaged``; then ``data`` is void."""
        from cryptography.exceptions import InvalidTag

        nonce, bound = sealed[:NONCE_BYTES], _bound(outer, len(data))
        try:
            if self._into:
                self._data.decrypt_into(nonce, sealed[NONCE_BYTES:], bound, data)
            else:
                data[:] = self._data.decrypt(nonce, sealed[NONCE_BYTES:], bound)
        except (InvalidTag, ValueError):
            raise Damaged("the seal does not agree") from None

    def seal_turns(self, owner: str, plain: bytes) -> bytes:
        """Seal what is remembered of an owner's conversations."""
        nonce = os.urandom(NONCE_BYTES)
        sealed: bytes = nonce + self._turns.encrypt(nonce, plain, owner.encode())
        return sealed

    def open_turns(self, owner: str, sealed: bytes) -> bytes:
        """What was sealed. Raises ``Damaged``."""
        from cryptography.exceptions import InvalidTag

        try:
            plain: bytes = self._turns.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], owner.encode())
        except (InvalidTag, ValueError):
            raise Damaged("the seal does not agree") from None
        return plain


class Scratch(threading.local):
    """Memory for sealed records, a thread's own and used again: fresh pages cost more than sealing does."""

    def __init__(self) -> None:
        self._memory = bytearray()

    def pieces(self, sizes: Sequence[int]) -> list[memoryview]:
        """So many bytes for each, void, until the thread asks again."""
        if len(self._memory) < sum(sizes):
            self._memory = bytearray(sum(sizes))
        whole, at, pieces = memoryview(self._memory), 0, []
        for size in sizes:
            pieces.append(whole[at : at + size])
            at += size
        return pieces

    def let_go(self) -> None:
        """Somebody may still be at work on the pieces: the next ones are others."""
        self._memory = bytearray()


class Ciphers:
    """The ciphers of a keyring's tenants, looked up anew each time. Raises nothing: ``trouble`` says what is wrong."""

    def __init__(self, keyring: Keyring, name: str) -> None:
        self._damage = Damage(f"tier {name}", "their seals do not agree, so something changes what lies there")
        self.scratch = Scratch()
        self._keyring = keyring
        self._name = name
        self._made: dict[str, TenantCipher] = {}
        self._troubles = {"read": "", "written": ""}
        self._lock = threading.Lock()

    @property
    def damaged(self) -> int:
        """Seals that did not agree."""
        return self._damage.records

    @property
    def trouble(self) -> str:
        """Why no key can be used; empty while they can."""
        return self._troubles["read"]

    def of(self, tenant: str, *, new: bool = False) -> TenantCipher | None:
        """A tenant's cipher. None where he has no key (``new``: he gets one), or none can be read or written."""
        key = self._asked("read", lambda: self._keyring.find(tenant))
        if key is None and new and not self.trouble and len(tenant.encode()) <= MAX_TENANT_BYTES:
            key = self._asked("written", lambda: self._keyring.key(tenant))
        with self._lock:
            made = self._made.get(tenant)
            if key is None:
                self._made.pop(tenant, None)
                return None
            if made is None or made.key != key:
                made = self._made[tenant] = TenantCipher(key)
            return made

    def tenants(self) -> Sequence[str]:
        """Names of tenants that have a key."""
        return self._asked("read", self._keyring.tenants) or ()

    def count_damaged(self) -> None:
        """A seal did not agree."""
        self._damage.found(1)

    def _asked(self, what: str, ask: Callable[[], T]) -> T | None:
        """The keyring's answer, None where it raises. Logged when that begins and when it ends."""
        try:
            answer, trouble = ask(), ""
        except KvistError as error:
            answer, trouble = None, str(error)
        with self._lock:
            changed, self._troubles[what] = bool(trouble) != bool(self._troubles[what]), trouble
        if changed:
            _log.warning("tier %s: %s", self._name, trouble or f"the keyring can be {what} again")
        return answer


def _derived(key: bytes, use: bytes) -> bytes:
    """A key for one use only."""
    return blake2b(use, key=key, digest_size=_KEY_BYTES).digest()


def _bound(outer: Label, data_bytes: int) -> bytes:
    """What a seal vouches for beside what it hides: everything in the label, unambiguously."""
    parent = outer.parent or _NO_PARENT
    fixed = _BOUND.pack(outer.id, parent, outer.depth, data_bytes, len(outer.origin))
    return fixed + outer.origin + outer.tenant.encode()
