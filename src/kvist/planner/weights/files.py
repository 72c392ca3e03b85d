"""What weight files weigh, from their headers alone: safetensors, GGUF. Read with suspicion; no tensor is loaded."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kvist.errors import CorruptFile
from kvist.gguf_header import Header, read_header

MAX_HEADER_BYTES: Final = 100 << 20
"""What the format's own library accepts (huggingface/safetensors, 100 MB)."""

MAX_INDEX_BYTES: Final = 256 << 20
_BITS: Final = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F4": 4,
    "F6_E2M3": 6, "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip
_REMEDY: Final = "the file is truncated or damaged: download it again"


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Bytes of the tensors of a set of files. ``draft_bytes`` of them belong to layers of next-token prediction.

    ``exact`` is False when sizes of whole files stand for those of their tensors. ``stored``: type and shape of each
    tensor, where headers were read.
    """

    total_bytes: int
    draft_bytes: int
    how: str
    exact: bool = True
    stored: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Span:
    """One tensor: how it is stored, its shape (rows first), its bytes."""

    kind: str
    shape: tuple[int, ...]
    n_bytes: int


def safetensors_spans(path: Path) -> dict[str, Span]:
    """Every tensor of a safetensors file, from its header. Raises ``CorruptFile``."""
    try:
        n_file = path.stat().st_size
        with path.open("rb") as file:
            n_header = int.from_bytes(file.read(8), "little")
            if n_file < 8 or n_header > min(MAX_HEADER_BYTES, n_file - 8):
                raise CorruptFile(f"{path.name}: a header of {n_header:,} bytes in {n_file:,}", remedy=_REMEDY)
            header = json.loads(file.read(n_header))
    except OSError as error:
        raise CorruptFile(f"{path} cannot be read: {error.strerror}", remedy="check the path") from error
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{path.name}: the header is not JSON: {error}", remedy=_REMEDY) from error
    if not isinstance(header, dict):
        raise CorruptFile(f"{path.name}: the header is a {type(header).__name__}, not an object", remedy=_REMEDY)
    room = n_file - 8 - n_header
    return {name: _span(name, one, room, path.name) for name, one in header.items() if name != "__metadata__"}


def _span(name: str, one: object, room: int, label: str) -> Span:
    """One tensor, whose place, shape and type must agree."""
    given = one if isinstance(one, dict) else {}
    kind, shape, offsets = given.get("dtype"), _counts(given.get("shape")), _counts(given.get("data_offsets"))
    if isinstance(kind, str) and shape is not None and offsets is not None and len(offsets) == 2 and len(shape) <= 16:
        start, end = offsets
        fits = start <= end <= room
        if fits and (kind not in _BITS or math.prod(shape) * _BITS[kind] == 8 * (end - start)):
            return Span(kind, tuple(shape), end - start)
    raise CorruptFile(f"{label}: tensor {name[:60]!r} is not described right: {str(one)[:80]}", remedy=_REMEDY)


def _counts(value: object) -> list[int] | None:
    """A list of whole numbers from 0 to 2^48, or None."""
    if not isinstance(value, list) or not all(type(n) is int and 0 <= n < 1 << 48 for n in value):
        return None
    return value


def folder_facts(folder: Path, n_layers: int) -> FileFacts | None:
    """What the weights of a Hugging Face folder weigh; None when there are none. Raises ``CorruptFile``.

    Headers of safetensors files when all are there, else the total that their index states, else the sizes of ``.bin``
    files.
    """
    index = folder / "model.safetensors.index.json"
    listed = _index(index) if index.is_file() else None
    files = [folder / name for name in sorted(set(listed[0]))] if listed else _unlisted(folder)
    if files and all(file.is_file() for file in files):
        spans = [pair for file in files for pair in safetensors_spans(file).items()]
        total = sum(span.n_bytes for _, span in spans)
        draft = sum(span.n_bytes for name, span in spans if is_draft(name, n_layers))
        stored = {name: (span.kind, span.shape) for name, span in spans if not is_draft(name, n_layers)}
        how = f"headers of {len(files)} safetensors file{'s' if len(files) > 1 else ''}"
        return FileFacts(total, draft, how, stored=stored)
    if listed and listed[1]:
        return FileFacts(listed[1], 0, f"total_size in {index.name}")
    bins = sorted(folder.glob("pytorch_model*.bin"))
    if bins:
        return FileFacts(sum(file.stat().st_size for file in bins), 0, f"sizes of {len(bins)} .bin files", exact=False)
    return None


def _unlisted(folder: Path) -> list[Path]:
    """Files of a folder without an index: the one file, or all that are not second copies or adapters."""
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    copies = ("consolidated", "adapter", "training", "optimizer")
    return [file for file in sorted(folder.glob("*.safetensors")) if not file.name.startswith(copies)]


def _index(path: Path) -> tuple[list[str], int]:
    """File names and total bytes of an index. Raises ``CorruptFile``; names that leave the folder are refused."""
    try:
        if path.stat().st_size > MAX_INDEX_BYTES:
            raise CorruptFile(f"{path.name} has {path.stat().st_size:,} bytes", remedy="fetch it again")
        return index_facts(json.loads(path.read_bytes()), path.name)
    except OSError as error:
        raise CorruptFile(f"{path} cannot be read: {error.strerror}", remedy="check the path") from error
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{path.name} is not JSON: {error}", remedy="fetch it again") from error


def index_facts(data: object, label: str) -> tuple[list[str], int]:
    """File names and total bytes out of a parsed index. Raises ``CorruptFile``."""
    names = data.get("weight_map") if isinstance(data, dict) else None
    meta = data.get("metadata") if isinstance(data, dict) else None
    total = meta.get("total_size", 0) if isinstance(meta, Mapping) else 0
    total = int(total) if isinstance(total, float) and total.is_integer() else total
    good = isinstance(names, dict) and all(isinstance(n, str) and re.fullmatch(r"[\w.-]+", n) for n in names.values())
    if not good or type(total) is not int or not 0 <= total < 1 << 60:
        raise CorruptFile(f"{label} is not an index of safetensors files", remedy="fetch it again")
    assert isinstance(names, dict)
    return list(names.values()), total


def is_draft(name: str, n_layers: int) -> bool:
    """True for a tensor of a next-token-prediction layer: named so, or of a layer behind the model's last one."""
    number = re.search(r"(?:^|\.)layers\.(\d+)\.", name)
    return re.search(r"(?:^|[._])mtp", name) is not None or (number is not None and int(number[1]) >= n_layers)


def gguf_headers(path: Path) -> tuple[Header, ...]:
    """Headers of a GGUF file and of the other parts it was split into, as far as they lie beside it."""
    found = re.fullmatch(r"(.+)-(\d{5})-of-(\d{5})\.gguf", path.name)
    if not found:
        return (read_header(path),)
    parts = [path.with_name(f"{found[1]}-{i:05d}-of-{found[3]}.gguf") for i in range(1, min(int(found[3]), 999) + 1)]
    return tuple(read_header(part) for part in parts if part.is_file())


def gguf_parts(headers: Iterable[Header]) -> dict[str, Counter[str]]:
    """Elements by tensor type (lower case) of every part of a model, norms and biases left out."""
    parts: dict[str, Counter[str]] = {}
    for header in headers:
        for tensor in header.tensors.values():
            part = _gguf_part(tensor.name)
            if part and len(tensor.shape) > 1:
                parts.setdefault(part, Counter())[tensor.type_name.lower()] += tensor.elements
    return parts


def _gguf_part(name: str) -> str:
    if name.startswith("token_embd"):
        return "embedding"
    if name.startswith("output."):
        return "head"
    if "_exps" in name:
        return "experts"
    if ".ffn_" in name and "norm" not in name and "gate_inp" not in name:
        return "ffn"
    return "attention" if re.search(r"\.(attn|ssm)_(?!norm)", name) else ""
