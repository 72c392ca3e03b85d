"""The contract of a workload: which requests, in which order, with what in common.

A workload is a frozen dataclass; its fields are its knobs (flags of the same names). It gives ``Script``s: a script is
one client's requests in sequence, a generator that yields an ``Ask`` and is sent the server's ``Answer``. Prompts are
named, not written: a ``Part`` with a name and a length means the same tokens wherever that name appears in a run, so
two prompts share a prefix exactly when their first parts are equal. In a run of another ``recipe`` it means others.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, fields
from random import Random
from typing import Any, ClassVar, Final, Protocol, TypeVar

from kvist.bench.infer import Fit
from kvist.bench.record import Answer, Record
from kvist.errors import BadValue

Item = TypeVar("Item")
ORDERS = ("grouped", "round-robin", "shuffled")
_NOT_SIZES: Final = ("order", "think_s", "speedup", "trace")
"""Knobs that say when or from where, not what or how much."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a prompt: ``tokens`` tokens that ``name`` decides, or what the server ``said``."""

    role: str
    name: str = ""
    tokens: int = 0
    said: Answer | None = None

    @property
    def length_tokens(self) -> int:
        """Tokens of the piece, as far as known before it is sent."""
        return self.tokens if self.said is None else self.said.output_tokens


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. ``turn`` counts from 1 within its script; ``role`` is what the workload's verdict looks for."""

    name: str
    parts: tuple[Part, ...]
    output_tokens: int
    turn: int = 1
    role: str = ""
    pause_s: float = 0.0


Play = Generator[Ask, Answer, None]


@dataclass(frozen=True, slots=True)
class Script:
    """One client's requests. ``at_s``: when it starts by the workload's own clock, if it has one."""

    name: str
    requests: int
    play: Callable[[], Play]
    at_s: float | None = None


class Workload(Protocol):
    """One variant of the shelf."""

    name: ClassVar[str]
    about: ClassVar[str]
    scaled: ClassVar[tuple[str, ...]]
    """Knobs that ``--scale`` multiplies."""
    needs_answers: ClassVar[bool]
    """Whether later prompts hold what the server said."""

    @property
    def clients_at_once(self) -> int:
        """Requests in flight when nobody says how many."""
        ...

    @property
    def longest_prompt_tokens(self) -> int:
        """About as long as a prompt gets."""
        ...

    @property
    def by_turns(self) -> bool:
        """Whether scripts take turns request by request; else each is played to its end."""
        ...

    def scripts(self, seed: int) -> Sequence[Script]:
        """All of them, in the order in which they start."""
        ...

    def verdict(self, records: Sequence[Record], fit: Fit) -> dict[str, Any] | None:
        """What this workload asks of the numbers beyond the common report, or None."""
        ...


def recipe(workload: Workload) -> str:
    """A workload's name and sizes: with the seed, what decides the tokens of its prompts.

    So runs of another workload, or of another size, under the same seed share nothing: a shorter prefix would else be
    the beginning of a longer one of the same name.
    """
    knobs = asdict(workload)  # type: ignore[call-overload]  # every variant is a dataclass
    return "/".join([workload.name, *(f"{k}={v}" for k, v in knobs.items() if k not in _NOT_SIZES)])


def once(ask: Ask) -> Callable[[], Play]:
    """The script of a single request."""

    def play() -> Play:
        yield ask

    return play


def check_counts(workload: Any, *, zero: Sequence[str] = ()) -> None:
    """Whole-number knobs are at least 1, those in ``zero`` at least 0. Raises ``BadValue``."""
    for f in fields(workload):
        value = getattr(workload, f.name)
        low = 0 if f.name in zero else 1
        if isinstance(value, int) and value < low:
            raise BadValue(f.name, value, f"a count >= {low}")


def check_order(order: str, allowed: Sequence[str] = ORDERS) -> None:
    """Raises ``BadValue`` naming the orders there are."""
    if order not in allowed:
        raise BadValue("order", order, f"one of {', '.join(allowed)}")


def arranged(groups: Sequence[Sequence[Item]], order: str, seed: int) -> list[Item]:
    """Members of equally large groups, one after another, group by group, in rounds, or in the seed's order."""
    if order == "round-robin":
        return [member for members in zip(*groups, strict=True) for member in members]
    flat = [member for members in groups for member in members]
    if order == "shuffled":
        Random(f"order/{seed}").shuffle(flat)
    return flat
