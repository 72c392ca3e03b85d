"""The tokenizer's part of a GGUF header."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kvist.errors import CorruptFile
from kvist.gguf_header import ArrayRef, read_header

_WANTED: Final = ("tokenizer.", "general.architecture")


def read_metadata(source: Any) -> dict[str, Any]:
    """``tokenizer.*`` and ``general.architecture`` of a GGUF file, by its path or an open ``gguf.GGUFReader``.

    What this returned may be given instead of the path, to read a file once for its tokenizer and its template.
    """
    if isinstance(source, Mapping):
        return dict(source)
    fields = getattr(source, "fields", None)
    if fields is not None:
        return {key: field.contents() for key, field in fields.items() if key.startswith(_WANTED)}
    path = Path(source)
    if not path.is_file():
        raise CorruptFile(f"there is no file {path}", remedy="give the path of a .gguf file")
    header = read_header(path)
    return {
        key: header.items(key) if isinstance(value, tuple | ArrayRef) else value
        for key, value in header.values.items()
        if key.startswith(_WANTED)
    }
