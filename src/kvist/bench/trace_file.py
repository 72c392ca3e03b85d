"""Reads a trace of JSON lines: ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids`` (Mooncake)."""

from __future__ import annotations

import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

from kvist.errors import BadValue, UsageError

_OPENERS: Final[dict[str, Callable[..., IO[Any]]]] = {".gz": gzip.open, ".xz": lzma.open}


class Row(NamedTuple):
    """One request: when (s), how long, which blocks."""

    at_s: float
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]


@lru_cache(maxsize=2)
def read(path: str) -> tuple[Row, ...]:
    """All rows by time. Raises ``BadValue`` (no such file, nothing in it), ``UsageError`` naming a wrong line."""
    file = Path(path)
    if not file.is_file():
        raise BadValue("trace", path, "a file that exists")
    rows = sorted(_rows(file), key=lambda row: row.at_s)
    if not rows:
        raise BadValue("trace", path, "a file with at least one request")
    return tuple(rows)


@lru_cache(maxsize=2)
def digest(path: str) -> str:
    """Eight hex digits that the rows decide, wherever and however packed the file is. Raises as ``read``."""
    return f"{zlib.crc32(repr([tuple(row) for row in read(path)]).encode()):08x}"


def _rows(file: Path) -> Iterator[Row]:
    number = 0
    try:
        with _OPENERS.get(file.suffix, open)(file, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):  # noqa: B007  # the handler tells it
                if line.strip():
                    yield _row(json.loads(line))
    except (ValueError, KeyError, TypeError, AttributeError, EOFError, OSError, lzma.LZMAError) as error:
        raise UsageError(
            f"{file}, line {number}: {type(error).__name__}: {error}",
            remedy="each line is a JSON object with timestamp (ms), input_length, output_length and hash_ids",
        ) from error


def _row(fields: dict[str, Any]) -> Row:
    ids = fields.get("hash_ids", [])
    row = Row(fields["timestamp"] / 1000, fields["input_length"], fields["output_length"], tuple(ids))
    if not type(row.input_tokens) is type(row.output_tokens) is int:
        raise TypeError(f"lengths must be whole numbers: {row[1:3]}")
    if not (row.input_tokens >= 1 and row.output_tokens >= 0 and row.at_s >= 0):
        raise ValueError(f"a length or a time out of range: {row[:3]}")
    return row
