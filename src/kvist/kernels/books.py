"""The cache's bulk work natively (``cache/bulk.py`` is its contract and its reference)."""

from __future__ import annotations

from collections.abc import Sequence

from kvist.kernels.native_module import absent_reason, load


class NativeBulk:
    """Raises ``ImportError`` where the native kernels are absent."""

    def __init__(self) -> None:
        native = load()
        self._pack = native.books_pack
        self.swap = native.books_swap
        self.fill = native.books_fill
        self.only = native.books_only
        self.count = native.books_count

    def pack(self, tokens: Sequence[int]) -> bytes | None:
        """Tokens as little-endian int32; None for what is no list or tuple of ints that fit."""
        try:
            packed: bytes = self._pack(tokens)
        except (TypeError, ValueError):
            return None
        return packed


def best_available() -> NativeBulk | None:
    """None where there is nothing native: the cache then does it itself."""
    return None if absent_reason() else NativeBulk()
