"""One line of a sweep's record: what ran, on what, and what came out. JSON lines, written as they are measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from kvist.errors import UsageError
from kvist.lab import host
from kvist.spec.model import ModelSpec

VERSION = 1


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One length, with the cache or without it. Times in seconds (means over the batch), sizes in bytes.

    ``kv_bytes_held`` is what the allocator had given the batch's sequences at their end, ``kv_bytes_formula`` what the
    layout's arithmetic says for ``computed_tokens`` of each, ``kv_bytes_kept`` what stayed between two tokens.
    ``flops_times_cached`` is how many times the FLOPs with a cache this way of generating takes, by arithmetic.
    """

    seq_tokens: int
    batch: int
    cache: str
    new_tokens: int
    ttft_s: float
    tpot_s: float
    computed_tokens: int
    kv_bytes_held: int
    kv_bytes_formula: int
    kv_bytes_kept: int
    flops_times_cached: float
    others: float

    @property
    def equal(self) -> bool:
        """Whether the allocator and the formula agree to the byte."""
        return self.kv_bytes_held == self.kv_bytes_formula


@dataclass(frozen=True, slots=True)
class Setting:
    """What all rows of a sweep have in common."""

    model: str
    spec: ModelSpec
    dtype: str
    kv_format: str
    block_tokens: int
    threads: int

    def fields(self) -> dict[str, Any]:
        """As plain JSON. Head counts and dims are those of the first layer that keeps a cache, and how many differ."""
        owners = [layer for layer in self.spec.layers if layer.owns_cache]
        first = owners[0] if owners else self.spec.layers[0]
        shape = (first.kv_heads, first.key_dim, first.value_dim)
        unlike = sum((x.kv_heads, x.key_dim, x.value_dim) != shape for x in owners)
        return {
            "version": VERSION,
            "model": self.model,
            "architecture": self.spec.architecture,
            "layers": len(self.spec.layers),
            "layers_with_cache": len(owners),
            "layers_of_another_shape": unlike,
            "q_heads": first.q_heads,
            "kv_heads": first.kv_heads,
            "key_dim": first.key_dim,
            "value_dim": first.value_dim,
            "dtype": self.dtype,
            "kv_format": self.kv_format,
            "block_tokens": self.block_tokens,
            "machine": host.cpu_name(),
            "cores": host.cores(),
            "threads": self.threads,
            "framework": host.versions(),
            "commit": host.commit(),
        }


def line(setting: dict[str, Any], row: SweepRow) -> str:
    """One line of JSON."""
    return json.dumps({**setting, **asdict(row), "equal": row.equal, "at": host.now()}, ensure_ascii=False)


@contextmanager
def opened(folder: Path, name: str) -> Iterator[TextIO]:
    """``folder/name`` to append to, the folder made if need be. Raises ``UsageError`` when that cannot be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / name).open("a", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"nothing can be written to {folder} ({error.strerror})", remedy="name a folder of yours with --out"
        ) from error
    with file:
        yield file
