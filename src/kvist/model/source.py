"""What a file of weights can do, whatever its format. Tensors are read where they are wanted, never all at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch

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

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Fill ``out`` (same shape, any float type). Raises ``ModelError`` for a type that cannot be converted."""
        ...
