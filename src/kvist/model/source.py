"""What a file of weights can do, whatever its format. Tensors are read where they are wanted, never all at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch

from kvist.kernels.packing import GroupedRows
from kvist.model.names import Scheme

READ_ELEMENTS = 1 << 18
"""Elements converted at a time: small enough for the CPU's cache, so loading needs no second copy of a tensor."""


class Source(Protocol):
    """An opened file, or several that belong together."""

    scheme: Scheme

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shape of every tensor, rows first."""
        ...

    def stored_bytes(self, name: str) -> int:
        """Bytes of a tensor in the file."""
        ...

    def type_of(self, name: str) -> str:
        """How a tensor is stored, in capitals: ``F16``, ``Q4_K``."""
        ...

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Fill ``out`` (same shape, any float type). Raises ``ModelError`` for a type that cannot be converted."""
        ...

    def grouped(self, name: str, rows: np.ndarray, kind: str) -> GroupedRows:
        """Some rows of a matrix, in this order, for a packed kind: stored integers as they are where the kind holds
        them, else quantised. Raises ``ModelError`` as above, and for scales or weights that are no finite numbers.
        """
        ...
