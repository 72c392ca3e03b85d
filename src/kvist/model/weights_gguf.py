"""Weights from GGUF: places from the checked header; types that are not read as they lie go through ``gguf``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import QuantError, dequantize

from kvist.errors import BadValue, CorruptFile, ModelError
from kvist.gguf_header import TENSOR_TYPES, Tensor, read_header
from kvist.kernels.packing import GroupedRows, quantised_rows
from kvist.model.gguf_packed import DIRECT
from kvist.model.names import GGUF
from kvist.model.source import READ_ELEMENTS

_BLOCKS = {name: (elements, size) for name, elements, size in TENSOR_TYPES.values()}


class GgufSource:
    """One GGUF file. Rows are read, not mapped: pages of the file do not count as this process's memory."""

    scheme = GGUF

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tensors = read_header(path).tensors
        self.shapes = {name: tuple(reversed(t.shape)) for name, t in self._tensors.items()}

    def stored_bytes(self, name: str) -> int:
        """Bytes of a tensor in the file."""
        return self._tensors[name].n_bytes

    def type_of(self, name: str) -> str:
        """GGUF's name of a tensor's type."""
        return self._tensors[name].type_name

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Dequantise some rows at a time."""
        tensor = self._tensors[name]
        columns = tensor.shape[0]
        flat = out.view(-1, columns)
        step = max(1, READ_ELEMENTS // columns)
        for start in range(0, len(flat), step):
            values = _floats(tensor, self._raw(tensor, start, min(start + step, len(flat))))
            if flat.dtype == torch.float32:  # numpy's copy needs no second thread
                flat.numpy()[start : start + step] = values
            else:
                flat[start : start + step].copy_(torch.from_numpy(values))

    def grouped(self, name: str, rows: np.ndarray, kind: str) -> GroupedRows:
        """Rows for a packed kind, from the stored integers or through floats."""
        tensor, first = self._tensors[name], int(rows.min())
        raw = self._raw(tensor, first, int(rows.max()) + 1)
        if len(raw) != len(rows) or (np.diff(rows) != 1).any():
            raw = raw[rows - first]
        unpack = DIRECT.get((kind, tensor.type_name))
        try:
            return unpack(raw) if unpack else quantised_rows(_floats(tensor, raw))
        except BadValue as error:
            raise CorruptFile(
                f"tensor {name} ({tensor.type_name}) cannot be packed: {error}",
                remedy="the file is damaged: download it again",
            ) from error

    def _raw(self, tensor: Tensor, start: int, stop: int) -> np.ndarray:
        """Bytes of some rows, uint8 [rows, row bytes]."""
        elements, size = _BLOCKS[tensor.type_name]
        row = tensor.shape[0] // elements * size
        found = np.fromfile(self._path, dtype=np.uint8, count=(stop - start) * row, offset=tensor.start + start * row)
        if len(found) != (stop - start) * row:
            raise CorruptFile(f"{self._path.name} became shorter while it was read", remedy="download it again")
        return found.reshape(stop - start, row)


def _floats(tensor: Tensor, raw: np.ndarray) -> np.ndarray:
    """Rows of a tensor as float32, in memory of their own."""
    try:
        return np.require(dequantize(raw, GGMLQuantizationType[tensor.type_name]), requirements="W")
    except (NotImplementedError, KeyError, ValueError, QuantError) as error:
        raise ModelError(
            f"tensor {tensor.name} is stored as {tensor.type_name}, which cannot be converted to floats",
            remedy="use a file quantised to another type (Q4_0 ... Q8_0, K-quants, F16, BF16)",
        ) from error
