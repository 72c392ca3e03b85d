"""Now and then: is what a tier has of a block what computing it gives?

A block that was computed although a tier has it is compared with the record. In the ``invariant`` class the same key
means the same bytes; in ``fast`` numbers may differ in their last bits, so records count as wrong only when they are
far off, as those of other tokens or other weights are.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from kvist.spec.format import KVFormat

Bytes = npt.NDArray[np.uint8]

FAR: Final = 0.1
"""Root mean square of the differences, over that of the numbers, from which two blocks are not the same."""

FAR_MIXED: Final = 0.9
"""The same where K and V have different formats, or several numbers share a byte, so that bytes are compared as they
are (unrelated ones: 1.4)."""


class Checking:
    """``share`` of the blocks that are computed although a tier has them is compared; every k-th, not by chance."""

    def __init__(self, share: float, kv: KVFormat, *, exact: bool) -> None:
        self._share = share
        self._element = kv.k.name if kv.k == kv.v and not kv.in_cells else "mixed"
        self._exact = exact
        self._due = 0.0

    def due(self) -> bool:
        """Whether this one is to be compared."""
        self._due += self._share
        if self._due < 1.0:
            return False
        self._due -= 1.0
        return True

    def alike(self, stored: Bytes, computed: Bytes) -> bool:
        """Whether both can come from the same tokens and weights. uint8 [bytes] each."""
        if np.array_equal(stored, computed):
            return True
        if self._exact:
            return False
        a, b = self._numbers(stored), self._numbers(computed)
        if not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return False
        finite = np.isfinite(b)
        norm = float(np.linalg.norm(b[finite]))
        far = FAR_MIXED if self._element == "mixed" else FAR
        return float(np.linalg.norm(a[finite] - b[finite])) <= far * norm

    def _numbers(self, data: Bytes) -> npt.NDArray[np.float32]:
        if self._element == "f32":
            return data.view(np.float32)
        if self._element == "f16":
            return data.view(np.float16).astype(np.float32)
        if self._element == "bf16":
            return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return data.view(np.int8).astype(np.float32)


UNCHECKED: Final = Checking(0.0, KVFormat(), exact=True)
"""Never."""
