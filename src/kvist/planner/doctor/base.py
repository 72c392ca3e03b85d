"""What a start-up log says: the numbers it prints (terms) and the facts it states (settings).

Units are meant, not printed: SGLang writes ``GB`` and means GiB, and so did vLLM before 0.8. A term keeps both, and how
far rounding lets the true value lie from the printed one, so that comparisons can be exact instead of tolerant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kvist.errors import KvistError
from kvist.planner.doctor.lines import LogLine

Setting = str | int | float | bool


class NothingRecognised(KvistError):
    """No line of an engine's start was found. ``lines`` is how many were read, ``bound`` why no more were."""

    def __init__(self, lines: int, engines: tuple[str, ...], bound: str = "") -> None:
        self.lines = lines
        read = bound or f"{lines:,} lines"
        super().__init__(
            f"nothing of an engine's start was recognised in {read}",
            remedy=f"pass the part of the log from the start of the process (known: {', '.join(engines)}); "
            "some engines print their memory at log level INFO only",
        )


@dataclass(frozen=True, slots=True)
class Term:
    """One printed number. ``value`` is in ``unit`` (bytes, tokens, blocks, cells, layers, slots, requests or ratio).

    ``step`` is the size of the last printed digit in the same unit (0: printed in full). ``printed`` is the number and
    its unit as the log has them. ``what`` tells terms of one name apart (``draft``, ``windowed layers``, a device).
    ``rank`` is as the log names it, empty when it does not; ``line`` counts from 1.
    """

    name: str
    value: float
    unit: str
    printed: str
    line: int
    text: str
    step: float = 0.0
    rank: str = ""
    what: str = ""

    @property
    def low(self) -> float:
        """Least value that prints like this."""
        return self.value - self.step / 2

    @property
    def high(self) -> float:
        """Greatest value that prints like this."""
        return self.value + self.step / 2


@dataclass(frozen=True, slots=True)
class EngineLog:
    """A parsed log. ``engine`` is the emulator's name; ``lines`` is how many lines were read.

    ``settings`` use one vocabulary for all engines: ``model``, ``max_model_tokens``, ``tp``, ``pp``, ``dp``, ``cp``,
    ``kv_dtype``, ``utilization``, ``prefix_caching``, ``batched_tokens``, ``block_tokens``, ``sequences``...
    ``metadata`` holds what the log shows of a GGUF header. ``notes`` are sentences about the reading itself.
    """

    engine: str
    version: str = ""
    settings: Mapping[str, Setting] = field(default_factory=dict)
    terms: tuple[Term, ...] = ()
    lines: int = 0
    metadata: Mapping[str, Setting] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def all(self, name: str, what: str | None = None) -> tuple[Term, ...]:
        """Every print of ``name`` (and kind), in order."""
        return tuple(t for t in self.terms if t.name == name and (what is None or t.what == what))

    def by_rank(self, name: str, what: str | None = None) -> dict[str, Term]:
        """The last print of ``name`` by every rank that printed it."""
        return {t.rank: t for t in self.all(name, what)}

    def least(self, name: str, what: str | None = None) -> Term | None:
        """The smallest of the ranks' last prints: what an engine that must agree over ranks can use."""
        return _best(min, self.by_rank(name, what).values())

    def most(self, name: str, what: str | None = None) -> Term | None:
        """The largest of the ranks' last prints: what the tightest rank pays."""
        return _best(max, self.by_rank(name, what).values())

    def last(self, name: str, what: str | None = None) -> Term | None:
        """The last print, whatever the rank."""
        found = self.all(name, what)
        return found[-1] if found else None

    def number(self, name: str) -> float | None:
        """A numeric setting, or None (also when the log states it as a word)."""
        value = self.settings.get(name)
        return None if isinstance(value, bool | str) or value is None else float(value)

    def count(self, name: str) -> int | None:
        """A whole-number setting, or None."""
        value = self.number(name)
        return int(value) if value is not None and value == int(value) else None

    def word(self, name: str) -> str:
        """A setting as text, empty when absent."""
        value = self.settings.get(name)
        return "" if value is None else str(value)


def _best(choose: Callable[..., Term], terms: Iterable[Term]) -> Term | None:
    found = list(terms)
    return choose(found, key=lambda t: t.value) if found else None


class Format(Protocol):
    """One engine's way of writing its start. ``parse`` never raises: a log it cannot read gives no terms."""

    @property
    def engines(self) -> tuple[str, ...]:
        """Names of the engines that write like this."""
        ...

    def parse(self, lines: list[LogLine]) -> EngineLog:
        """Terms and settings of the last start in ``lines``."""
        ...
