"""Weights from GGUF: places from the checked header, quantised types converted by the ``gguf`` library."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import QuantError, dequantize

from kvist.errors import ModelError
from kvist.gguf_header import TENSOR_TYPES, Tensor, read_header
from kvist.model.names import GGUF
from kvist.model.source import READ_ELEMENTS

_BLOCKS = {name: (elements, size) for name, elements, size in TENSOR_TYPES.values()}


class GgufSource:
    """One memory-mapped GGUF file."""

    scheme = GGUF

    def __init__(self, path: Path) -> None:
        self._tensors = read_header(path).tensors
        self._data = np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
        self.shapes = {name: tuple(reversed(t.shape)) for name, t in self._tensors.items()}

    def stored_bytes(self, name: str) -> int:
        """Bytes of a tensor in the file."""
        return self._tensors[name].n_bytes

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Dequantise some rows at a time."""
        tensor = self._tensors[name]
        elements, size = _BLOCKS[tensor.type_name]
        columns = tensor.shape[0]
        raw = self._data[tensor.start : tensor.start + tensor.n_bytes].reshape(-1, columns // elements * size)
        flat = out.view(len(raw), columns)
        rows = max(1, READ_ELEMENTS // columns)
        for start in range(0, len(raw), rows):
            values = _floats(tensor, raw[start : start + rows])
            if flat.dtype == torch.float32:  # numpy's copy needs no second thread
                flat.numpy()[start : start + rows] = values
            else:
                flat[start : start + rows].copy_(torch.from_numpy(values))


def _floats(tensor: Tensor, raw: np.ndarray) -> np.ndarray:
    """Rows of a tensor as float32, in memory of their own."""
    try:
        return np.require(dequantize(raw, GGMLQuantizationType[tensor.type_name]), requirements="W")
    except (NotImplementedError, KeyError, ValueError, QuantError) as error:
        raise ModelError(
            f"tensor {tensor.name} is stored as {tensor.type_name}, which cannot be converted to floats",
            remedy="use a file quantised to another type (Q4_0 ... Q8_0, K-quants, F16, BF16)",
        ) from error
