"""The state of one sequence. Owner: the scheduler; nobody else changes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from kvist.cache.cache import Match
from kvist.cache.keys import Space
from kvist.ids import SeqId
from kvist.sched.choice import Choice
from kvist.sched.request import FinishReason, Request, Usage
from kvist.spec.sampling import Sampling
from kvist.step import TokenLogprob


class State(Enum):
    """Where a sequence stands. ``PENDING``: on no list (one of n samples, until the first has computed the prompt)."""

    PENDING = "pending"
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


Stem = tuple[Space, tuple[int, ...]]
"""A namespace and the first span of tokens: what sequences have in common that share anything."""


@dataclass(slots=True)
class Turn:
    """One stay in the queue: a new one whenever a sequence comes to wait.

    ``reason``: it waits for its turn or budget (``queue``), for blocks (``capacity``), for somebody who computes its
    prefix (``leader``), for what tiers say (``tier``). ``overtaken`` counts admissions past it; ``urgent``: nobody of
    its tenant is admitted before it. Then what the gate and the lookups found last, and when: -1 is never.
    ``led_tokens`` is what was cached when it first waited for a leader; ``leader``, ``leader_computed`` and
    ``leader_step`` are who it waits for, how far that was and when; ``goes_alone``: it has waited for one long enough.
    """

    reason: Literal["queue", "capacity", "leader", "tier"] = "queue"
    overtaken: int = 0
    urgent: bool = False
    tried_step: int = -1
    tries: int = 0
    tried_blocks: int = 0
    asked_step: int = -1
    asked_version: tuple[int, int] = (0, 0)
    cached_tokens: int = 0
    led_tokens: int | None = None
    leader: SeqId | None = None
    leader_computed: int = 0
    leader_step: int = -1
    goes_alone: bool = False
    common: dict[SeqId, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Sequence:
    """``tokens`` (prompt, then output) and how many of them are ``computed``; every step lets the second catch up.

    A sample that waits for another has no ``tokens`` yet (``wake``). ``limit_tokens`` is the length at which it ends.
    ``drafts`` are guesses that follow ``tokens``. ``entered`` is what it had computed when it last got its tables, by a
    hit or a fork: until it goes beyond, it has nothing of its own to publish, and copies it was promised may not have
    been made. ``seen_tokens`` is the most positions that ever were in the cache for it: below it, computing is
    recomputing and a hit is a self-hit. ``siblings`` are samples that wait for
    this one to compute their common prompt. ``counts_lookup``: its first admission is the request's lookup in the
    cache. ``match`` is what its first admission found, ``led``: it waited for a leader. ``known``: the executor was
    introduced to it. ``load`` is the load that is out for it: it runs without rows until that ends; ``choice`` what
    was decided about loading, ``loaded_tokens`` of its ``cached_tokens`` came from tiers.
    """

    id: SeqId
    request: Request
    sample: int
    arrival: int
    sampling: Sampling
    limit_tokens: int
    tokens: list[int]
    state: State = State.PENDING
    computed: int = 0
    entered: int = 0
    seen_tokens: int = 0
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0
    held_blocks: int = 0
    admitted: bool = False
    counts_lookup: bool = False
    known: bool = False
    led: bool = False
    match: Match | None = None
    load: int | None = None
    choice: Choice | None = None
    loaded_tokens: int = 0
    stem: Stem | None = None
    turn: Turn = field(default_factory=Turn)
    drafts: list[int] = field(default_factory=list)
    siblings: list[Sequence] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=lambda: [None])
    finish_reason: FinishReason | None = None
    kept_tokens: int | None = None
    """Output tokens left by a cut from above; None when nothing was cut."""

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.prompt)

    @property
    def output_tokens(self) -> int:
        """Tokens drawn so far."""
        n_tokens = len(self.tokens)
        return n_tokens - len(self.request.prompt) if n_tokens else 0

    @property
    def lacking(self) -> int:
        """Tokens not computed yet: 1 while it merely continues."""
        return len(self.tokens) - self.computed

    @property
    def has_news(self) -> bool:
        """True when the cache may learn something from what it computed."""
        return self.computed > self.entered

    @property
    def wants_prompt_logprobs(self) -> bool:
        """True while log-probabilities of prompt tokens are still missing."""
        return self.request.prompt_logprobs is not None and len(self.prompt_logprobs) < self.prompt_tokens

    @property
    def hit_limit(self) -> int:
        """Most tokens to take from the cache: all but the last, and none whose row must yet give a log-probability."""
        return len(self.prompt_logprobs) - 1 if self.wants_prompt_logprobs else len(self.tokens) - 1

    def yields_to(self, other: Sequence) -> bool:
        """True when ``other`` is more important: of the same tenant, at a higher priority."""
        mine, its = self.request, other.request
        return mine.tenant == its.tenant and mine.priority < its.priority

    def wake(self) -> None:
        """A sample gets its tokens, now that it draws or queues: a hundred that wait do not hold a hundred prompts."""
        if not self.tokens:
            self.tokens = list(self.request.prompt)

    def note_prompt_logprobs(self, start: int, items: tuple[TokenLogprob, ...]) -> None:
        """Keep those not known yet (a recomputed row gives them again)."""
        known = len(self.prompt_logprobs)
        assert start <= known, f"log-probabilities of prompt tokens [{known}, {start}) never came"
        self.prompt_logprobs.extend(items[known - start :])

    def usage(self) -> Usage:
        """The bill, as things stand."""
        return Usage(
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens if self.kept_tokens is None else self.kept_tokens,
            cached_tokens=self.cached_tokens,
            loaded_tokens=self.loaded_tokens,
            computed_tokens=self.computed,
            recomputed_tokens=self.recomputed_tokens,
            preemptions=self.preemptions,
            held_blocks=self.held_blocks,
        )
