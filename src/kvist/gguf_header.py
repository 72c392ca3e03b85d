"""The header of a GGUF file, read with suspicion: key-value pairs and where each tensor lies. No library needed.

Every length is checked against the bytes that are left before anything is read or allocated, so that a truncated or
corrupt file costs a ``CorruptFile`` with the offset and the numbers, never memory, time or another exception. Long
arrays (a tokenizer's words) stay in the file as an ``ArrayRef`` until somebody asks.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvist.errors import CorruptFile

MAGIC: Final = b"GGUF"
MAX_STRINGS: Final = 2_000_000
MAX_TENSORS: Final = 1_000_000
_SHORT_ARRAY: Final = 16_384
_MAX_DIMS: Final = 4
_MAX_DEPTH: Final = 3
_SMALLEST_PAIR: Final = 13
_SMALLEST_TENSOR: Final = 32

_STRING: Final = 8
_ARRAY: Final = 9
_BOOL: Final = 7
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "B", 10: "Q", 11: "q", 12: "d"}

TENSOR_TYPES: Final[dict[int, tuple[str, int, int]]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip
"""Name, elements per block and bytes per block of every tensor type."""


@dataclass(frozen=True, slots=True)
class ArrayRef:
    """An array left in the file: ``count`` elements of GGUF type ``kind`` in ``[start, end)``."""

    kind: int
    count: int
    start: int
    end: int


Scalar = int | float | bool | str
Value = Scalar | tuple[Scalar, ...] | ArrayRef


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor's place. ``shape`` is in GGUF order (fastest dimension first), ``start`` absolute."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    start: int
    n_bytes: int

    @property
    def elements(self) -> int:
        """Number of weights."""
        n = 1
        for dim in self.shape:
            n *= dim
        return n


@dataclass(frozen=True, slots=True)
class Header:
    """Everything before the weights."""

    path: Path
    version: int
    values: dict[str, Value]
    tensors: dict[str, Tensor]
    data_start: int
    file_bytes: int

    def items(self, key: str) -> list[Scalar]:
        """The elements of an array, for instance a tokenizer's words; empty when there is no such array."""
        value = self.values.get(key)
        if isinstance(value, tuple):
            return list(value)
        if not isinstance(value, ArrayRef):
            return []
        with self.path.open("rb") as file:
            file.seek(value.start)
            data = file.read(value.end - value.start)
        if value.kind == _STRING:
            return list(_Cursor(data, self.path, value.start).strings(value.count))
        found = struct.unpack(f"<{value.count}{_SCALARS[value.kind]}", data)
        return [bool(x) for x in found] if value.kind == _BOOL else list(found)

    def strings(self, key: str) -> list[str]:
        """The elements of an array as strings."""
        return [str(v) for v in self.items(key)]

    def floats(self, tensor: str) -> tuple[float, ...]:
        """The values of a small F32 tensor; empty when absent or of another type."""
        found = self.tensors.get(tensor)
        if found is None or found.type_name != "F32" or found.elements > _SHORT_ARRAY:
            return ()
        with self.path.open("rb") as file:
            file.seek(found.start)
            return struct.unpack(f"<{found.elements}f", file.read(found.n_bytes))


class _Cursor:
    """A position in the header's bytes. Refuses to move past the end. ``base`` is where the bytes start in the file."""

    def __init__(self, data: bytes | mmap.mmap, path: Path, base: int = 0) -> None:
        self.data = data
        self.path = path
        self.base = base
        self.at = 0
        self.end = len(data)

    def corrupt(self, what: str) -> CorruptFile:
        return CorruptFile(
            f"{self.path.name}: {what} at byte {self.base + self.at:,} of {self.base + self.end:,}",
            remedy="the file is truncated or damaged: download it again",
        )

    def need(self, n_bytes: int, what: str) -> None:
        if n_bytes > self.end - self.at:
            raise self.corrupt(f"{what} needs {n_bytes:,} bytes, {self.end - self.at:,} are left")

    def number(self, code: str, what: str) -> int | float:
        size = struct.calcsize("<" + code)
        self.need(size, what)
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += size
        return value  # type: ignore[no-any-return]

    def count(self, what: str, smallest: int, most: int) -> int:
        """A length that must be plausible: ``smallest`` bytes each, and never above ``most``."""
        n = int(self.number("Q", what))
        if n > most or n * smallest > self.end - self.at:
            raise self.corrupt(f"{what} says {n:,}, {self.end - self.at:,} bytes are left")
        return n

    def string(self) -> str:
        n = self.count("a string's length", 1, 1 << 30)
        raw = bytes(self.data[self.at : self.at + n])
        self.at += n
        return raw.decode("utf-8", errors="replace")

    def strings(self, count: int) -> list[str]:
        """Strings one after the other, which must be UTF-8."""
        data, at, found = self.data, self.at, []
        unpack = struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                start = at + 8
                at = start + unpack(data, at)[0]
                if at > self.end:
                    raise self.corrupt(f"an array of {count:,} strings does not end within the file")
                found.append(str(data[start:at], "utf-8"))
        except (struct.error, OverflowError, UnicodeDecodeError) as error:
            raise self.corrupt(f"a string of an array breaks off or is not UTF-8 ({error})") from error
        self.at = at
        return found

    def skip_strings(self, count: int) -> None:
        """Walk over strings without looking at them; the hot loop of reading a header."""
        at, data = self.at, self.data
        unpack = struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                at += 8 + unpack(data, at)[0]
        except (struct.error, OverflowError):  # a length beyond the end, or beyond any offset
            at = self.end + 1
        if at > self.end:
            raise self.corrupt(f"an array of {count:,} strings does not end within the file")
        self.at = at


def _value(cursor: _Cursor, kind: int, depth: int = 0) -> Value:
    if kind == _STRING:
        return cursor.string()
    if kind in _SCALARS:
        value = cursor.number(_SCALARS[kind], "a value")
        return bool(value) if kind == _BOOL else value
    if kind != _ARRAY or depth >= _MAX_DEPTH:
        raise cursor.corrupt(f"value type {kind} is not known")
    inner = int(cursor.number("I", "an array's type"))
    if inner == _STRING:
        count = cursor.count("an array's length", 8, MAX_STRINGS)
        start = cursor.at
        cursor.skip_strings(count)
        return ArrayRef(inner, count, start, cursor.at)
    if inner not in _SCALARS:
        raise cursor.corrupt(f"arrays of type {inner} are not known")
    size = struct.calcsize("<" + _SCALARS[inner])
    count = cursor.count("an array's length", size, cursor.end)
    start = cursor.at
    cursor.at += count * size
    if count > _SHORT_ARRAY:
        return ArrayRef(inner, count, start, cursor.at)
    values = struct.unpack_from(f"<{count}{_SCALARS[inner]}", cursor.data, start)
    return tuple(bool(v) for v in values) if inner == _BOOL else values


def _tensor(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    dims = int(cursor.number("I", "a tensor's dimensions"))
    if not 1 <= dims <= _MAX_DIMS:
        raise cursor.corrupt(f"tensor {name[:60]!r} has {dims:,} dimensions")
    shape = tuple(int(cursor.number("Q", "a tensor's shape")) for _ in range(dims))
    kind = int(cursor.number("I", "a tensor's type"))
    return name, shape, kind, int(cursor.number("Q", "a tensor's offset"))


def _placed(cursor: _Cursor, raw: tuple[str, tuple[int, ...], int, int], data_start: int, file_bytes: int) -> Tensor:
    name, shape, kind, offset = raw
    if kind not in TENSOR_TYPES:
        raise cursor.corrupt(f"tensor {name[:60]!r} has type {kind}, which is not known")
    type_name, per_block, block_bytes = TENSOR_TYPES[kind]
    elements = 1
    for dim in shape:
        elements *= dim
    n_bytes = elements // per_block * block_bytes
    if not all(shape) or shape[0] % per_block or data_start + offset + n_bytes > file_bytes:
        raise cursor.corrupt(
            f"tensor {name[:60]!r} ({type_name}, shape {list(shape)}) would span bytes {data_start + offset:,} to "
            f"{data_start + offset + n_bytes:,} of {file_bytes:,}"
        )
    return Tensor(name, shape, type_name, data_start + offset, n_bytes)


def _parse(cursor: _Cursor, path: Path) -> Header:
    cursor.need(4, "the magic")
    if bytes(cursor.data[:4]) != MAGIC:
        raise cursor.corrupt(f"starts with {bytes(cursor.data[:4])!r} instead of {MAGIC!r}: no little-endian GGUF file")
    cursor.at = 4
    version = int(cursor.number("I", "the version"))
    if version not in (2, 3):
        raise cursor.corrupt(f"version {version} is not read: only little-endian GGUF files of version 2 or 3 are")
    n_tensors = cursor.count("the number of tensors", _SMALLEST_TENSOR, MAX_TENSORS)
    n_pairs = cursor.count("the number of key-value pairs", _SMALLEST_PAIR, MAX_TENSORS)
    values: dict[str, Value] = {}
    for _ in range(n_pairs):
        key = cursor.string()
        values[key] = _value(cursor, int(cursor.number("I", "a value's type")))
    raw = [_tensor(cursor) for _ in range(n_tensors)]
    alignment = values.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
        raise cursor.corrupt(f"an alignment of {alignment!r} is not a power of two")
    data_start = -(-cursor.at // alignment) * alignment
    tensors = {t[0]: _placed(cursor, t, data_start, cursor.end) for t in raw}
    return Header(path, version, values, tensors, data_start, cursor.end)


def parse_header(data: bytes | mmap.mmap, path: str | Path) -> Header:
    """Check the bytes of a whole file; ``path`` is where lazily read parts come from. Raises ``CorruptFile``."""
    return _parse(_Cursor(data, Path(path)), Path(path))


def read_header(path: str | Path) -> Header:
    """Read and check a GGUF header. Raises ``CorruptFile``."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise CorruptFile(f"{path.name} is empty", remedy="download it again")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return parse_header(data, path)
    except OSError as error:
        raise CorruptFile(f"{path} cannot be read: {error.strerror}", remedy="check the path") from error
