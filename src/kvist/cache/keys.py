"""Content ids: the same on every process, tier and machine.

A key is a 128-bit BLAKE2b digest. It is never what a hit is decided by (the tree compares tokens); tiers use it to
find bytes that were computed elsewhere. Every variable-length field is preceded by its length, so that no two
different inputs feed the same bytes to the hash.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from kvist.errors import BadValue
from kvist.ids import BlockKey

KEY_BYTES: Final = 16
FORMAT_VERSION: Final = 1
"""Raise it whenever the bytes of a block change their meaning."""

Space = tuple[bytes, tuple[bytes, ...]]
"""One namespace of the tree: (salt, extras). Sequences of two spaces never meet."""


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Tokens as little-endian int32, the form in which the tree keeps and compares them."""
    try:
        return _packer(len(tokens))(*tokens)
    except struct.error as error:
        raise BadValue("tokens", "...", "token ids that fit in 32 bits", remedy=str(error)) from None


@lru_cache(maxsize=256)
def _packer(n_tokens: int) -> Callable[..., bytes]:
    """Made once for a length: nearly twice as fast as ``struct.pack`` with a format."""
    return struct.Struct(f"<{n_tokens}i").pack


def space_of(salt: bytes, extras: tuple[bytes, ...]) -> Space:
    """The namespace of a request. ``extras`` are digests of whatever else the KV depends on (adapter, media)."""
    for extra in extras:
        if len(extra) < KEY_BYTES:
            raise BadValue("extras", extra.hex(), f"digests of at least {KEY_BYTES * 8} bits, not {len(extra) * 8}")
    return salt, extras


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Everything that decides what the bytes of a block mean, in a fixed order. Change any field: another key.

    ``model`` is what the config says beside the weights (rotation, scales, caps, norms). ``model``, ``format`` and
    ``layout`` are canonical descriptions (the ``repr`` of the frozen specs), without names.
    """

    weights: bytes
    tokenizer: bytes
    model: str
    format: str
    layout: str
    block_tokens: int
    numerics: str
    version: int = FORMAT_VERSION

    def digest(self) -> bytes:
        """128 bits over the ordered, named, length-prefixed fields."""
        state = blake2b(digest_size=KEY_BYTES, person=b"kvist-model")
        for field in fields(self):
            value = getattr(self, field.name)
            data = value if isinstance(value, bytes) else str(value).encode()
            state.update(_sized(field.name.encode()) + _sized(data))
        return state.digest()


def root_key(fingerprint: bytes, salt: bytes, extras: tuple[bytes, ...]) -> BlockKey:
    """Key of the empty prefix of one namespace: the parent of every first block."""
    state = blake2b(digest_size=KEY_BYTES, person=b"kvist-root")
    for part in (fingerprint, salt, struct.pack("<q", len(extras)), *extras):
        state.update(_sized(part))
    return BlockKey(state.digest())


def block_key(parent: BlockKey, tokens: bytes) -> BlockKey:
    """Key of a full block: ``parent`` is the key of the block before it, ``tokens`` its own (``pack_tokens``)."""
    return BlockKey(blake2b(parent + _sized(tokens), digest_size=KEY_BYTES, person=b"kvist-block").digest())


def _sized(data: bytes) -> bytes:
    return struct.pack("<q", len(data)) + data
