"""Lossless compression of the bytes of blocks: zstd over bytes that were sorted by their place in an element.

A packed value is one byte (the width of the elements that were sorted) and a zstd frame. It stays off unless asked
for: what is gained on real keys and values is little (docs/tiers.md has the numbers).
"""

from __future__ import annotations

import importlib
import importlib.util
import threading
from typing import Any, Final

import numpy as np

from kvist.errors import BadValue, UsageError
from kvist.tier.envelope import Damaged

WIDTHS: Final = (1, 2, 4)
LEAST_GAIN: Final = 1.05
"""A value that shrinks by less is kept as it is: it would cost its unpacking for nothing."""


def is_installed() -> bool:
    """Whether zstandard can be imported."""
    return importlib.util.find_spec("zstandard") is not None


class Packer:
    """Packs with zstd at ``level`` after sorting the bytes of elements ``element_bytes`` wide (1: no sorting).

    Any packer unpacks what any other packed. Several threads may use one.
    """

    def __init__(self, *, element_bytes: int = 2, level: int = 1) -> None:
        if element_bytes not in WIDTHS:
            raise BadValue("element_bytes", element_bytes, "1, 2 or 4")
        if not 1 <= level <= 19:
            raise BadValue("level", level, "a zstd level from 1 to 19")
        if not is_installed():
            raise UsageError("compression needs zstandard, which is not installed", remedy="pip install zstandard")
        self._element_bytes = element_bytes
        self._level = level
        self._zstd: Any = importlib.import_module("zstandard")
        self._own = threading.local()
        """A (compressor, decompressor) for each thread: one of them serves one thread at a time."""

    def pack(self, data: memoryview) -> bytes | None:
        """The packed value, or None when it would not be smaller by ``LEAST_GAIN``."""
        width = self._element_bytes if len(data) % self._element_bytes == 0 else 1
        frame: bytes = self._codecs()[0].compress(_sorted(data, width))
        return bytes((width,)) + frame if (len(frame) + 1) * LEAST_GAIN < len(data) else None

    def unpack_into(self, packed: memoryview, buffer: memoryview) -> None:
        """Fill ``buffer``, which has exactly the size of what was packed. Raises ``Damaged``."""
        width = packed[0] if len(packed) else 0
        if width not in WIDTHS or len(buffer) % width:
            raise Damaged("no packed value begins here")
        try:
            plain: bytes = self._codecs()[1].decompress(packed[1:], max_output_size=len(buffer))
        except self._zstd.ZstdError as error:
            raise Damaged(f"it cannot be unpacked ({error})") from error
        if len(plain) != len(buffer):
            raise Damaged(f"it unpacks to {len(plain)} bytes instead of {len(buffer)}")
        out = np.frombuffer(buffer, np.uint8)
        if width == 1:
            out[:] = np.frombuffer(plain, np.uint8)
        else:
            out.reshape(-1, width)[:] = np.frombuffer(plain, np.uint8).reshape(width, -1).T

    def _codecs(self) -> tuple[Any, Any]:
        pair: tuple[Any, Any] | None = getattr(self._own, "pair", None)
        if pair is None:
            pair = self._zstd.ZstdCompressor(level=self._level), self._zstd.ZstdDecompressor()
            self._own.pair = pair
        return pair


def _sorted(data: memoryview, width: int) -> memoryview:
    """First all first bytes of the elements, then all second ones, and so on."""
    if width == 1 or not len(data):
        return data
    return np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(-1, width).T).data.cast("B")
