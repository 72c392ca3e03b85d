"""Memory between the pool and the tiers: blocks' bytes wait here until every tier that takes them has."""

from __future__ import annotations

import mmap
from typing import Final

import numpy as np
import numpy.typing as npt

from kvist.errors import BadValue, CapacityError
from kvist.units import format_bytes

PAGE_BYTES: Final = 4096
"""Direct I/O wants addresses that are multiples of it."""


def aligned_rows(rows: int, row_bytes: int) -> npt.NDArray[np.uint8]:
    """uint8 [rows, row_bytes] of untouched memory, every row at a multiple of ``PAGE_BYTES``. ``CapacityError``."""
    stride = -(-row_bytes // PAGE_BYTES) * PAGE_BYTES
    try:
        memory = mmap.mmap(-1, rows * stride, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise CapacityError(
            f"the system gives no {format_bytes(rows * stride)} for copies on their way to tiers ({error})",
            remedy="ask for less staging memory",
        ) from error
    return np.frombuffer(memory, dtype=np.uint8).reshape(rows, stride)[:, :row_bytes]


class Staging:
    """``slots`` buffers of one block each, of which as few as possible are ever touched. Not locked by itself.

    A slot that several tiers wait for is free when the last of them has let go of it.
    """

    def __init__(self, total_bytes: int, block_bytes: int, *, sharers: int) -> None:
        """``sharers``: tiers that hold slots; each must have room for a block. Raises ``BadValue``."""
        stride = -(-block_bytes // PAGE_BYTES) * PAGE_BYTES
        self.slots = total_bytes // stride
        if self.slots < sharers:
            raise BadValue(
                "staging_bytes", total_bytes, f"at least {sharers * stride}: a block ({stride} bytes) for each tier"
            )
        self.rows = aligned_rows(max(1, self.slots), block_bytes)
        self._free = list(range(self.slots - 1, -1, -1))
        self._holders = [0] * self.slots

    @property
    def free_slots(self) -> int:
        """Slots nobody holds."""
        return len(self._free)

    def take(self, holders: int) -> int:
        """A free slot, the one last used, for so many holders."""
        slot = self._free.pop()
        self._holders[slot] = holders
        return slot

    def release(self, slot: int) -> bool:
        """One holder is done with it; whether it was the last."""
        assert self._holders[slot] > 0, "a staging slot was released twice"
        self._holders[slot] -= 1
        if not self._holders[slot]:
            self._free.append(slot)
        return not self._holders[slot]
