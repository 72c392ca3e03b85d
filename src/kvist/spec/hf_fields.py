"""Typed, suspicious access to the fields of one Hugging Face ``config.json``.

A field name may be several spellings joined by ``|``; the first one present (and not null) counts. What is absent
raises ``MissingField``, what has the wrong type or an absurd size raises ``CorruptFile``. Values that a model family
implies and that do not touch the shape of the cache may be assumed; they are remembered in ``assumed``, so that the
reader can say so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from kvist.errors import CorruptFile, MissingField

MAX_LAYERS: Final = 2048
MAX_INT: Final = 1 << 40


class Fields:
    """One config dict. ``source`` names it in messages; ``outer`` is the wrapper of a multimodal model, if any."""

    def __init__(self, raw: Mapping[str, object], source: str, outer: Mapping[str, object] | None = None) -> None:
        self.raw = raw
        self.source = source
        self.outer = outer if outer is not None else raw
        self.assumed: list[str] = []

    def get(self, name: str) -> object:
        """The first spelling of ``name`` that is present and not null; None otherwise."""
        for spelling in name.split("|"):
            value = self.raw.get(spelling)
            if value is not None:
                return value
        return None

    def has(self, name: str) -> bool:
        """True when a spelling of ``name`` is present and not null."""
        return self.get(name) is not None

    def require(self, *names: str, remedy: str = "") -> None:
        """Raise ``MissingField`` that lists every absent name at once."""
        absent = tuple(name.replace("|", " or ") for name in names if not self.has(name))
        if absent:
            raise MissingField(absent, source=self.source, remedy=remedy)

    def bad(self, name: str, value: object, expected: str) -> CorruptFile:
        """The error for a field whose value cannot be right."""
        shown = repr(value)
        return CorruptFile(
            f"{self.source}: {name} = {shown if len(shown) < 80 else shown[:77] + '...'} is not {expected}",
            remedy="check the file, or fetch it again",
        )

    def integer(self, name: str, *, low: int = 1, high: int = MAX_INT) -> int:
        """A required integer within ``[low, high]``."""
        self.require(name)
        return self._int(name, self.get(name), low, high)

    def integer_or(self, name: str, default: int, *, low: int = 0) -> int:
        """An integer whose absence (or null) means ``default`` by the format itself, not by guess."""
        value = self.get(name)
        return default if value is None else self._int(name, value, low, MAX_INT)

    def _int(self, name: str, value: object, low: int, high: int) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.bad(name, value, f"a whole number in [{low}, {high}]")
        return value

    def number_or(self, name: str, default: float) -> float:
        """A finite number, or ``default`` when absent or null."""
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self.bad(name, value, "a finite number")
        return float(value)

    def assume(self, name: str, default: float) -> float:
        """A number that the family implies when the file is silent. Never used for the shape of the cache."""
        if not any(spelling in self.raw for spelling in name.split("|")):
            self.assumed.append(name.split("|")[0])
        return self.number_or(name, default)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean, or ``default`` when absent or null."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool) and value not in (0, 1):
            raise self.bad(name, value, "true or false")
        return bool(value)

    def text_or(self, name: str, default: str) -> str:
        """A string, or ``default`` when absent or null."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise self.bad(name, value, "a string")
        return value if value is not None else default

    def mapping(self, name: str) -> Mapping[str, object]:
        """A nested object; empty when absent or null."""
        value = self.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise self.bad(name, value, "an object")
        return value if value is not None else {}

    def sub(self, name: str) -> Fields:
        """A nested object as fields of its own (sharing ``assumed``)."""
        inner = Fields(self.mapping(name), f"{self.source} ({name})")
        inner.assumed = self.assumed
        return inner

    def sequence(self, name: str, length: int) -> list[object] | None:
        """A list with at least ``length`` entries, cut to it (MTP layers come last); None when absent or null."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) < length:
            raise self.bad(name, value, f"a list with one entry for each of {length} layers")
        return value[:length]

    def integers(self, name: str, length: int, *, low: int = 0) -> list[int] | None:
        """``sequence`` of integers."""
        values = self.sequence(name, length)
        return None if values is None else [self._int(name, v, low, MAX_INT) for v in values]

    def texts(self, name: str, length: int) -> list[str] | None:
        """``sequence`` of strings."""
        values = self.sequence(name, length)
        if values is None:
            return None
        if not all(isinstance(v, str) for v in values):
            raise self.bad(name, values, "a list of strings")
        return [str(v) for v in values]

    def layers(self) -> int:
        """Number of decoder layers."""
        return self.integer("num_hidden_layers|n_layer|n_layers|num_layers", high=MAX_LAYERS)
