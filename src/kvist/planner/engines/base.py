"""The contract of an engine emulator: from how an engine is started to the numbers its log will print.

An emulator is one small file with one frozen dataclass. It knows the engine's rules (block sizes, padding, groups, what
a long request needs) and no model's name: every fact about a model comes from its ``ModelSpec``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kvist.errors import BadValue
from kvist.spec.format import F16, KVFormat
from kvist.spec.model import ModelSpec
from kvist.spec.place import Placement

Knob = str | int | bool


@dataclass(frozen=True, slots=True)
class Run:
    """How an engine is started. ``spec`` is the whole model; the emulator shards it.

    ``available_bytes`` is what one rank has for its cache (None: the question is asked the other way round, for a
    number of tokens). ``max_model_tokens`` is the longest request, ``sequences`` the most at a time, ``batched_tokens``
    the most tokens of a step. ``draft_layers`` layers of next-token prediction run beside the model and propose
    ``draft_tokens`` a step. ``knobs`` are the engine's own switches by name; an emulator refuses those it has not.
    """

    spec: ModelSpec
    kv_format: KVFormat = field(default_factory=lambda: KVFormat(F16, F16))
    place: Placement = field(default_factory=Placement)
    available_bytes: int | None = None
    max_model_tokens: int | None = None
    sequences: int | None = None
    block_tokens: int | None = None
    batched_tokens: int | None = None
    prefix_caching: bool = True
    draft_layers: int = 0
    draft_tokens: int = 0
    knobs: Mapping[str, Knob] = field(default_factory=dict)

    def text(self, name: str, default: str, among: tuple[str, ...]) -> str:
        """A knob that is one word of ``among``. Raises ``BadValue``."""
        value = self.knobs.get(name, default)
        if value not in among:
            raise BadValue(name, value, f"one of {', '.join(among)}")
        return str(value)

    def number(self, name: str, default: int, *, low: int = 0) -> int:
        """A knob that is a count of at least ``low``. Raises ``BadValue``."""
        value = self.knobs.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise BadValue(name, value, f"a whole number >= {low}")
        return value

    def switch(self, name: str, default: bool) -> bool:
        """A knob that is on or off. Raises ``BadValue``."""
        value = self.knobs.get(name, default)
        if not isinstance(value, bool):
            raise BadValue(name, value, "true or false")
        return value


@dataclass(frozen=True, slots=True)
class Line:
    """One number the engine prints: ``name`` (``kv_tokens``, ``kv_mib``...), its value, and the sum it came from.

    ``what`` tells lines of one name apart (``full layers``, ``windowed layers``, ``recurrent state``).
    """

    name: str
    value: float
    how: str
    what: str = ""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What fits, as the engine counts.

    ``tokens`` is the pool in the engine's own word; ``block_bytes`` what one block takes on a rank, all its layers
    (of the largest stage); ``concurrency`` how many requests of ``max_model_tokens`` fit;
    ``request_bytes`` what one such request takes on one rank; ``longest_tokens`` the longest single request that fits.
    Fields the engine's rules cannot give without more input are None. ``lines`` are all numbers its log prints.
    """

    tokens: int | None = None
    blocks: int | None = None
    block_tokens: int | None = None
    block_bytes: int | None = None
    concurrency: float | None = None
    request_bytes: int | None = None
    longest_tokens: int | None = None
    lines: tuple[Line, ...] = ()
    notes: tuple[str, ...] = ()

    def line(self, name: str, what: str = "") -> Line | None:
        """The line of that name (and kind), or None."""
        return next((x for x in self.lines if x.name == name and (not what or x.what == what)), None)


RequestSizes = Callable[[int], int]
"""Tokens of a request -> bytes that it holds on one rank."""


class Engine(Protocol):
    """An emulator. Frozen dataclass; ``knobs`` names what ``Run.knobs`` may hold, with a sentence each."""

    @property
    def name(self) -> str:
        """As the command line writes it."""
        ...

    @property
    def knobs(self) -> Mapping[str, str]:
        """Switches it understands."""
        ...

    def capacity(self, run: Run) -> Capacity:
        """What the engine will print. Raises ``BadValue`` for what it refuses to start with."""
        ...

    def request_bytes(self, run: Run, n_tokens: int) -> int:
        """Bytes of one rank that a request of ``n_tokens`` holds, block rounding included."""
        ...

    def request_sizes(self, run: Run) -> RequestSizes:
        """The same for many lengths: what does not depend on the length is worked out once."""
        ...


def require_known_knobs(engine: Engine, run: Run) -> None:
    """Refuse switches that the engine has not, and counts that mean nothing. Raises ``BadValue``."""
    for name in run.knobs:
        if name not in engine.knobs:
            raise BadValue(
                name, run.knobs[name], f"a knob of {engine.name}: {', '.join(engine.knobs) or 'it has none'}"
            )
    counts = {
        "available_bytes": run.available_bytes, "max_model_tokens": run.max_model_tokens, "sequences": run.sequences,
        "block_tokens": run.block_tokens, "batched_tokens": run.batched_tokens,
    }  # fmt: skip
    for name, value in counts.items():
        low = 0 if name == "available_bytes" else 1
        if value is not None and value < low:
            raise BadValue(name, value, f"a whole number >= {low}")
