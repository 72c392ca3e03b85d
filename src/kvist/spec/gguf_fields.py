"""Typed access to one architecture's keys in a GGUF header. Defaults are those of the format, never guesses."""

from __future__ import annotations

import math
from typing import Final

from kvist.errors import CorruptFile, MissingField
from kvist.gguf_header import ArrayRef, Header, Value

MAX_LAYERS: Final = 2048
MAX_INT: Final = 1 << 40


class Keys:
    """Keys below ``ARCH.``. ``name`` is the architecture's name in the file."""

    def __init__(self, header: Header, name: str) -> None:
        self.header = header
        self.name = name
        self.source = header.path.name

    def get(self, key: str) -> Value | None:
        """The value of ``ARCH.key``, or None."""
        return self.header.values.get(f"{self.name}.{key}")

    def has(self, key: str) -> bool:
        """True when the key is present."""
        return self.get(key) is not None

    def require(self, *keys: str) -> None:
        """Raise ``MissingField`` that lists every absent key at once."""
        absent = tuple(f"{self.name}.{key}" for key in keys if not self.has(key))
        if absent:
            raise MissingField(absent, source=self.source, remedy="convert the model again with a current tool")

    def bad(self, key: str, value: object, expected: str) -> CorruptFile:
        """The error for a value that cannot be right."""
        return CorruptFile(
            f"{self.source}: {self.name}.{key} = {str(value)[:60]} is not {expected}", remedy="download the file again"
        )

    def _int(self, key: str, value: object, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.bad(key, value, f"a whole number in [{low}, {high}]")
        return value

    def integer(self, key: str, *, low: int = 1, high: int = MAX_INT) -> int:
        """A required integer."""
        self.require(key)
        return self._int(key, self.get(key), low, high)

    def integer_or(self, key: str, default: int, *, low: int = 0) -> int:
        """An integer, or the format's default."""
        value = self.get(key)
        return default if value is None else self._int(key, value, low, MAX_INT)

    def number_or(self, key: str, default: float) -> float:
        """A finite number, or the format's default."""
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.bad(key, value, "a finite number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """A boolean, or the format's default."""
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.bad(key, value, "true or false")
        return value

    def text_or(self, key: str, default: str) -> str:
        """A string, or the format's default."""
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.bad(key, value, "a string")
        return default if value is None else value

    def layers(self) -> int:
        """Number of blocks."""
        return self.integer("block_count", high=MAX_LAYERS)

    def per_layer(self, key: str, default: int | None = None, *, low: int = 0) -> list[int]:
        """One integer per layer: a list in the file, or one number for all. ``default`` None: required."""
        if default is None:
            self.require(key)
        value = self.get(key)
        n = self.layers()
        if value is None:
            return [default or 0] * n
        if isinstance(value, tuple):
            if len(value) < n:
                raise self.bad(key, f"{len(value)} entries", f"one for each of {n} layers")
            return [self._int(key, v, low, MAX_INT) for v in value[:n]]
        return [self._int(key, value, low, MAX_INT)] * n

    def tensor(self, name: str) -> bool:
        """True when the file has a tensor of that name."""
        return name in self.header.tensors

    def vocab(self) -> int:
        """Size of the vocabulary: stated, or the number of words, or the rows of the embedding."""
        if self.has("vocab_size"):
            return self.integer("vocab_size")
        words = self.header.values.get("tokenizer.ggml.tokens")
        if isinstance(words, ArrayRef):
            return words.count
        table = self.header.tensors.get("token_embd.weight")
        if table is None or len(table.shape) < 2:
            self.require("vocab_size")
        return table.shape[1] if table is not None else 0
