"""Weights from GGUF: the file's directory is read here, quantised types are converted by the ``gguf`` library."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import QuantError, dequantize

from kvist.errors import CorruptFile, ModelError
from kvist.model.names import GGUF
from kvist.model.source import READ_ELEMENTS

_AGAIN: Final = "download the file again"
_SCALAR_BYTES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY, _UINT32 = 8, 9, 4
_MAX_NESTING: Final = 4


@dataclass(frozen=True, slots=True)
class _Entry:
    """One tensor: its place in the file and how it is stored."""

    shape: tuple[int, ...]
    type_number: int
    offset: int

    @property
    def stored_bytes(self) -> int:
        block, size = self.block
        return math.prod(self.shape) // block * size

    @property
    def block(self) -> tuple[int, int]:
        """(elements, bytes) of one quantisation block. Unknown types are refused when read."""
        try:
            return GGML_QUANT_SIZES[GGMLQuantizationType(self.type_number)]
        except (ValueError, KeyError):
            return 1, 1

    @property
    def type_name(self) -> str:
        try:
            return GGMLQuantizationType(self.type_number).name
        except ValueError:
            return f"type {self.type_number}"


class GgufSource:
    """One memory-mapped GGUF file."""

    scheme = GGUF

    def __init__(self, path: Path) -> None:
        if path.stat().st_size < 24:
            raise CorruptFile(f"{path.name} has {path.stat().st_size} bytes, too few for a GGUF header", remedy=_AGAIN)
        self._data = np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
        self._entries = _Directory(path.name, self._data).read()
        self.shapes = {name: entry.shape for name, entry in self._entries.items()}

    def stored_bytes(self, name: str) -> int:
        """Bytes of a tensor in the file."""
        return self._entries[name].stored_bytes

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Dequantise some rows at a time."""
        entry = self._entries[name]
        block, size = entry.block
        columns = entry.shape[-1]
        raw = self._data[entry.offset : entry.offset + entry.stored_bytes].reshape(-1, columns // block * size)
        flat = out.view(len(raw), columns)
        rows = max(1, READ_ELEMENTS // columns)
        for start in range(0, len(raw), rows):
            values = self._convert(name, entry, raw[start : start + rows])
            flat[start : start + rows].copy_(torch.from_numpy(values))

    def _convert(self, name: str, entry: _Entry, raw: np.ndarray) -> np.ndarray:
        try:
            kind = GGMLQuantizationType(entry.type_number)
            values = np.array(dequantize(raw, kind), copy=None)
        except (NotImplementedError, ValueError, QuantError) as error:
            raise ModelError(
                f"tensor {name} is stored as {entry.type_name}, which cannot be converted to floats",
                remedy="use a file quantised to another type (Q4_0 ... Q8_0, K-quants, F16, BF16)",
            ) from error
        return values if values.flags.writeable else values.copy()


class _Directory:
    """Walks the header with every length checked, so that a damaged file ends in ``CorruptFile``."""

    def __init__(self, file_name: str, data: np.ndarray) -> None:
        self._name, self._data, self._at = file_name, data.data, 0
        self._alignment = 32

    def read(self) -> dict[str, _Entry]:
        magic, version = self._unpack("<II")
        if magic != 0x46554747:
            raise self._bad(f"does not begin with GGUF but with {magic:#x}")
        if version not in (2, 3):
            raise self._bad(f"has GGUF version {version}; 2 and 3 are known")
        tensors, pairs = self._unpack("<QQ")
        for _ in range(self._plausible(pairs, 13)):
            key = self._string()
            (kind,) = self._unpack("<I")
            if key == b"general.alignment" and kind == _UINT32:
                self._alignment = struct.unpack_from("<I", self._data, self._take(4))[0]
            else:
                self._skip(kind, _MAX_NESTING)
        found = [self._entry() for _ in range(self._plausible(tensors, 24))]
        if self._alignment < 1 or self._alignment & (self._alignment - 1) or self._alignment > 1 << 20:
            raise self._bad(f"has alignment {self._alignment}, not a power of two")
        base = -(-self._at // self._alignment) * self._alignment
        return self._placed(found, base)

    def _placed(self, found: list[tuple[str, _Entry]], base: int) -> dict[str, _Entry]:
        out: dict[str, _Entry] = {}
        for name, entry in found:
            placed = _Entry(entry.shape, entry.type_number, base + entry.offset)
            if name in out:
                raise self._bad(f"lists tensor {name} twice")
            if not entry.shape or entry.shape[-1] % entry.block[0]:
                raise self._bad(f"tensor {name} has shape {list(entry.shape)}, no whole {entry.type_name} blocks")
            end = placed.offset + placed.stored_bytes
            if end > len(self._data):
                raise CorruptFile(
                    f"{self._name} is cut off: tensor {name} ends at byte {end}, the file has {len(self._data)} bytes",
                    remedy=_AGAIN,
                )
            out[name] = placed
        return out

    def _entry(self) -> tuple[str, _Entry]:
        name = self._string().decode("utf-8", "replace")
        (dims,) = self._unpack("<I")
        if not 1 <= dims <= 4:
            raise self._bad(f"tensor {name} has {dims} dims")
        shape = self._unpack(f"<{dims}Q")
        kind, offset = self._unpack("<IQ")
        return name, _Entry(tuple(reversed(shape)), kind, offset)

    def _skip(self, kind: int, depth: int) -> None:
        if kind in _SCALAR_BYTES:
            self._take(_SCALAR_BYTES[kind])
        elif kind == _STRING:
            self._string()
        elif kind == _ARRAY and depth:
            inner, count = self._unpack("<IQ")
            if inner in _SCALAR_BYTES:
                self._take(count * _SCALAR_BYTES[inner])
            else:
                for _ in range(self._plausible(count, 8)):
                    self._skip(inner, depth - 1)
        else:
            raise self._bad(f"has a value of unknown type {kind}")

    def _string(self) -> bytes:
        (length,) = self._unpack("<Q")
        at = self._take(length)
        return bytes(self._data[at : at + length])

    def _unpack(self, layout: str) -> tuple[int, ...]:
        at = self._take(struct.calcsize(layout))
        return struct.unpack_from(layout, self._data, at)

    def _take(self, n_bytes: int) -> int:
        at = self._at
        if n_bytes > len(self._data) - at:
            raise CorruptFile(
                f"{self._name} ends inside its header: {n_bytes} bytes wanted at byte {at} of {len(self._data)}",
                remedy=_AGAIN,
            )
        self._at = at + n_bytes
        return at

    def _plausible(self, count: int, least_bytes: int) -> int:
        """A count of things that take at least ``least_bytes`` each must fit in the rest of the file."""
        if count * least_bytes > len(self._data) - self._at:
            raise self._bad(f"promises {count} entries in the {len(self._data) - self._at} bytes left")
        return count

    def _bad(self, what: str) -> CorruptFile:
        return CorruptFile(f"{self._name} {what}", remedy=_AGAIN)
