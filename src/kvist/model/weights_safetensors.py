"""Weights from safetensors: one file, or shards listed by an index. Names are Hugging Face's."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from kvist.errors import BadValue, CorruptFile, ModelError
from kvist.kernels.packing import GroupedRows, quantised_rows
from kvist.model.names import HF
from kvist.model.source import READ_ELEMENTS
from kvist.units import format_bytes

_BYTES: Final = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_HEADER_LIMIT_BYTES: Final = 100_000_000
_AGAIN: Final = "download the file again"


class SafetensorsSource:
    """Opened and memory-mapped files of one model."""

    scheme = HF

    def __init__(self, path: Path) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._types: dict[str, str] = {}
        self._file_of: dict[str, Any] = {}
        for file, names in _files(path):
            self._add(file, names)

    def _add(self, path: Path, names: set[str] | None) -> None:
        header = _checked_header(path)
        try:
            opened = safe_open(path, framework="pt")
        except (SafetensorError, OSError, ValueError) as error:
            raise CorruptFile(f"{path.name} cannot be opened: {error}", remedy=_AGAIN) from error
        lacking = sorted((names or set()) - header.keys())
        if lacking:
            raise CorruptFile(f"the index promises tensor {lacking[0]} in {path.name}, which lacks it", remedy=_AGAIN)
        for name in header if names is None else names:
            self.shapes[name] = tuple(header[name]["shape"])
            self._types[name] = header[name]["dtype"]
            self._file_of[name] = opened

    def stored_bytes(self, name: str) -> int:
        """Bytes of a tensor in its file."""
        return math.prod(self.shapes[name]) * _BYTES.get(self._types[name], 1)

    def type_of(self, name: str) -> str:
        """The format's name of a tensor's type."""
        return self._types[name]

    def read_into(self, name: str, out: torch.Tensor) -> None:
        """Copy and convert, some rows at a time."""
        stored = self._stored(name)
        rows = max(1, READ_ELEMENTS * len(out) // max(out.numel(), 1))
        for start in range(0, len(out), rows):
            out[start : start + rows].copy_(stored[start : start + rows])

    def grouped(self, name: str, rows: np.ndarray, kind: str) -> GroupedRows:
        """Rows quantised to 8 bits."""
        assert kind == "w8", kind
        first = int(rows.min())
        floats = self._stored(name)[first : int(rows.max()) + 1].float().numpy()[rows - first]
        try:
            return quantised_rows(floats)
        except BadValue as error:
            raise CorruptFile(f"tensor {name} cannot be packed: {error}", remedy=_AGAIN) from error

    def _stored(self, name: str) -> Any:
        """A tensor of which rows can be taken."""
        if self._types[name] not in _BYTES:
            raise ModelError(
                f"tensor {name} is stored as {self._types[name]}, which kvist cannot convert",
                remedy="use a checkpoint in F32, F16 or BF16, or a GGUF file",
            )
        return self._file_of[name].get_slice(name)


def _files(path: Path) -> list[tuple[Path, set[str] | None]]:
    """Files to open and the names to take from each (None: all)."""
    if path.is_file():
        return [(path, None)]
    index = path / "model.safetensors.index.json"
    if index.is_file():
        return _shards(index)
    single = path / "model.safetensors"
    found = [single] if single.is_file() else sorted(path.glob("*.safetensors"))
    if len(found) != 1:
        raise CorruptFile(
            f"{path} holds {len(found)} safetensors files and no model.safetensors.index.json",
            remedy="download the index, or leave exactly one file",
        )
    return [(found[0], None)]


def _shards(index: Path) -> list[tuple[Path, set[str] | None]]:
    try:
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"].items()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptFile(f"{index.name} is not an index of shards: {error!r}", remedy=_AGAIN) from error
    names: dict[str, set[str]] = {}
    for name, shard in places:
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise CorruptFile(f"{index.name} places tensor {name} in {shard!r}, not a file of its folder")
        names.setdefault(shard, set()).add(name)
    for shard in names:
        if not (index.parent / shard).is_file():
            raise CorruptFile(f"{index.name} lists {shard} ({len(names[shard])} tensors), which is missing")
    return [(index.parent / shard, wanted) for shard, wanted in sorted(names.items())]


def _checked_header(path: Path) -> dict[str, dict[str, Any]]:
    """The table of contents, checked against the size of the file."""
    if not path.is_file():
        raise CorruptFile(
            f"{path} is not a file", remedy="a model folder holds model.safetensors, or an index with shards"
        )
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if not 2 <= length <= min(size - 8, _HEADER_LIMIT_BYTES):
            raise CorruptFile(f"{path.name} ({size} bytes) has no room for a header of {length} bytes", remedy=_AGAIN)
        raw = file.read(length)
    try:
        header: dict[str, dict[str, Any]] = json.loads(raw)
        header.pop("__metadata__", None)
        end = max((int(t["data_offsets"][1]) for t in header.values()), default=0)
        for t in header.values():
            t["shape"] = [int(n) for n in t["shape"]]
            t["dtype"] = str(t["dtype"])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise CorruptFile(f"{path.name} has an unreadable header: {error!r}", remedy=_AGAIN) from error
    if 8 + length + end != size:
        raise CorruptFile(
            f"{path.name} is cut off or damaged: its header describes {format_bytes(8 + length + end)} "
            f"({8 + length + end} bytes), the file has {size} bytes",
            remedy=_AGAIN,
        )
    return header
