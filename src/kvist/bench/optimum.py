"""The best a prefix cache could do: infinite memory, nothing forgotten, requests in the order in which they were sent.

Kept as sorted byte strings: the longest prefix that a new string shares with any known one is shared with one of its
two neighbours in the order. Token ids are written as four bytes, most significant first, so bytes sort as tokens do.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Final

ID_BYTES: Final = 4


def id_key(ids: Iterable[int]) -> bytes:
    """Token ids as bytes that sort and share prefixes as the ids do."""
    packed = array("I", ids)
    if sys.byteorder == "little":
        packed.byteswap()
    return packed.tobytes()


def common_bytes(a: bytes, b: bytes) -> int:
    """Length of the longest common prefix."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Known:
    """Every prompt sent so far, each with its answer once there is one."""

    def __init__(self) -> None:
        self._keys: list[bytes] = []

    def sent(self, key: bytes) -> int:
        """Bytes of ``key`` that were a prefix of something known; from now on ``key`` is known too."""
        at = bisect_left(self._keys, key)
        shared = max((common_bytes(key, self._keys[i]) for i in (at - 1, at) if 0 <= i < len(self._keys)), default=0)
        self._keys.insert(at, key)
        return shared

    def shared_with_others(self, key: bytes) -> int:
        """Bytes of ``key``, which was sent, that are a prefix of anything else known by now."""
        self.withdrawn(key)
        return self.sent(key)

    def answered(self, key: bytes, whole: bytes) -> None:
        """A prompt that was sent turns out to go on as ``whole`` (which begins with it)."""
        self.withdrawn(key)
        insort(self._keys, whole)

    def withdrawn(self, key: bytes) -> None:
        """A prompt that never reached the server."""
        del self._keys[bisect_left(self._keys, key)]


def optimum_tokens(shared: int, key_length: int, prompt_tokens: int) -> int:
    """Tokens of a prompt that need no computing, ``shared`` of its ``key_length`` units being known.

    At most all but one: the last token is computed by every server, for its logits.
    """
    if not key_length or not prompt_tokens:
        return 0
    return min(shared * prompt_tokens // key_length, prompt_tokens - 1)
