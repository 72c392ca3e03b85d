"""What is planned: a model, on devices, under an engine; and what is asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kvist.cost.device import Device
from kvist.cost.interval import Interval
from kvist.cost.roofline import StepCost
from kvist.cost.work import Widths
from kvist.errors import BadValue
from kvist.planner.budget import Overheads
from kvist.spec.format import F16, KVFormat
from kvist.spec.model import ModelSpec
from kvist.spec.place import Placement
from kvist.units import ceil_div

MOST_USERS: Final = 1_000_000
MOST_DRAFTS: Final = 64


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked: ``users`` sequences at a time, each of ``context_tokens`` (prompt and answer together).

    ``output_tokens`` of them are generated; ``hit_rate`` of the prompt is in the cache and shared by all users.
    """

    context_tokens: int
    output_tokens: int = 256
    users: int = 1
    hit_rate: float = 0.0

    def __post_init__(self) -> None:
        if self.context_tokens < 1:
            raise BadValue("context", self.context_tokens, "a count >= 1")
        if not 0 <= self.output_tokens <= self.context_tokens:
            raise BadValue("output", self.output_tokens, f"0 to the context of {self.context_tokens:,} tokens")
        if not 1 <= self.users <= MOST_USERS:
            raise BadValue("users", self.users, f"a count from 1 to {MOST_USERS:,}")
        if not 0.0 <= self.hit_rate <= 1.0:
            raise BadValue("hit_rate", self.hit_rate, "a share from 0 to 1")

    @property
    def prompt_tokens(self) -> int:
        """Tokens before the answer, at least one."""
        return max(1, self.context_tokens - self.output_tokens)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that are shared and cached; the last one is always computed."""
        return min(int(self.prompt_tokens * self.hit_rate), self.prompt_tokens - 1)


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything a plan depends on except the load. ``weights`` are bytes on one rank of each stage.

    ``widths`` and ``compute`` say how wide weights are when read and in which format they are multiplied. ``cost``
    prices a step (a roofline, or a measured machine). ``sequences`` is the engine's cap on running sequences; unless it
    is ``fixed``, whoever serves more users raises it.
    """

    spec: ModelSpec
    device: Device
    weights: tuple[Interval, ...]
    cost: StepCost
    widths: Widths = field(default_factory=Widths)
    weights_how: str = ""
    compute: str = "bf16"
    place: Placement = field(default_factory=Placement)
    kv_format: KVFormat = field(default_factory=lambda: KVFormat(F16, F16))
    engine: str = "kvist"
    batched_tokens: int = 2048
    sequences: int = 256
    sequences_fixed: bool = False
    memory_fraction: float = 0.9
    block_tokens: int | None = None
    draft_layers: int = 0
    draft_tokens: int = 0
    overheads: Overheads | None = None
    knobs: Mapping[str, str | int | bool] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0.0 < self.memory_fraction <= 1.0:
            raise BadValue("memory_fraction", self.memory_fraction, "a share above 0, up to 1")
        if self.batched_tokens < 1:
            raise BadValue("batched_tokens", self.batched_tokens, "a count >= 1")
        if self.sequences < 1:
            raise BadValue("sequences", self.sequences, "a count >= 1")
        for name in ("draft_layers", "draft_tokens"):
            if not 0 <= getattr(self, name) <= MOST_DRAFTS:
                raise BadValue(name, getattr(self, name), f"a count from 0 to {MOST_DRAFTS}")

    def sequences_for(self, users: int) -> int:
        """Sequences that one replica is started for when all users run at a time."""
        return self.sequences if self.sequences_fixed else max(self.sequences, ceil_div(users, self.replicas))

    @property
    def replicas(self) -> int:
        """Groups of ranks that hold caches of different sequences."""
        return self.place.dp * self.place.sequence_ranks
