"""Seconds of steps for a whole placement: every stage's work, the traffic between ranks, one cost model for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from kvist.cost.collective import traffic
from kvist.cost.interval import Interval, loosest
from kvist.cost.roofline import Seconds, StepCost, Traffic
from kvist.cost.work import Chunk, Chunks, ModelWork, Widths, Work
from kvist.planner.schedule import Burst, StepSeconds, burst
from kvist.spec.format import KVFormat
from kvist.spec.model import ModelSpec
from kvist.spec.place import Placement
from kvist.spec.shard import shard
from kvist.units import ceil_div


@dataclass(frozen=True)
class Timing:
    """One replica's clock. ``users`` are the sequences of one replica; ``cost`` says how long a rank's work takes."""

    spec: ModelSpec
    fmt: KVFormat
    place: Placement
    widths: Widths
    cost: StepCost
    budget_tokens: int
    link_bytes_per_s: float = 0.0

    @cached_property
    def stages(self) -> tuple[ModelWork, ...]:
        """The arithmetic of one rank of each pipeline stage."""
        head = ceil_div(self.spec.vocab, self.place.tp) * self.spec.hidden
        last = self.place.pp - 1
        place = self.place
        return tuple(
            ModelWork(
                shard(self.spec, place, i),
                self.fmt,
                self.widths,
                head_elements=head if i == last else 0,
                expert_share=1 / place.ep,
                cp=place.cp,
                ffn_ranks=place.sequence_ranks,
                expert_ranks=place.sequence_ranks * max(1, place.ep // place.tp),
            )
            for i in range(place.pp)
        )

    def works(self, chunks: Chunks) -> tuple[tuple[Work, Traffic], ...]:
        """Work and traffic of each stage for one step."""
        counted = chunks if isinstance(chunks, Mapping) else Counter(chunks)
        tokens = sum(n * c.new_tokens for c, n in counted.items())
        bandwidth = self.link_bytes_per_s
        return tuple(
            (stage.step(counted), traffic(stage.spec, self.place, tokens, link_bytes_per_s=bandwidth))
            for stage in self.stages
        )

    def step(self, chunks: Chunks) -> Interval:
        """Seconds of one step through all stages, one after the other."""
        total = Interval.exactly(0.0)
        for work, wire in self.works(chunks):
            total = total + self.cost.step(work, wire)
        return total

    def parts(self, chunks: Chunks) -> tuple[Seconds, ...]:
        """Seconds by part, one entry for each stage."""
        return tuple(self.cost.parts(work, wire) for work, wire in self.works(chunks))

    def local(self, users: int) -> int:
        """Sequences that one rank's attention serves of ``users``."""
        return ceil_div(users, self.place.sequence_ranks)

    def decode(self, users: int, context_tokens: int) -> Interval:
        """Seconds between two tokens of each of ``users`` sequences at ``context_tokens``.

        With pipeline stages the batch is split into as many parts that follow each other where that is faster.
        """
        users = self.local(users)
        whole = self.step({Chunk(1, context_tokens): users})
        if self.place.pp == 1 or users < self.place.pp:
            return whole
        part = {Chunk(1, context_tokens): ceil_div(users, self.place.pp)}
        slowest = max((self.cost.step(w, t) for w, t in self.works(part)), key=lambda s: s.best)
        piped = slowest.times(self.place.pp)
        return piped if piped.best < whole.best else whole

    def prefill(self, prompt_tokens: int, cached_tokens: int, answering: int, context_tokens: int) -> Interval:
        """Seconds to the first token of one prompt that arrives while ``answering`` sequences take their tokens."""
        beside = Counter({Chunk(1, context_tokens): answering} if answering else {})
        room = max(1, self.budget_tokens - answering)

        def first_token(seconds: StepSeconds) -> float:
            return burst(lambda chunks: seconds(beside + chunks), 1, prompt_tokens, cached_tokens, room).mean_s

        return self._each(first_token)

    def bound_of_decode(self, users: int, context_tokens: int) -> str:
        """The largest part of a decode step and what limits it."""
        parts = self.parts({Chunk(1, context_tokens): self.local(users)})
        return max(parts, key=lambda p: p.total_s).bound

    def bound_of_prefill(self, prompt_tokens: int, cached_tokens: int) -> str:
        """The same of the middle chunk of a prompt."""
        fresh = max(1, prompt_tokens - cached_tokens)
        new = min(fresh, self.budget_tokens)
        parts = self.parts([Chunk(new, cached_tokens + (fresh - new) // 2)])
        return max(parts, key=lambda p: p.total_s).bound

    def burst(self, users: int, prompt_tokens: int, cached_tokens: int) -> Burst:
        """First tokens when ``users`` prompts arrive together, best guess.

        Pipeline stages work on chunks of different prompts at once: a step costs what its slowest stage does, and every
        prompt passes the other stages once.
        """
        users = self.local(users)
        found = burst(self._paced(users), users, prompt_tokens, cached_tokens, self.budget_tokens)
        if self.place.pp == 1 or users == 1:
            return found
        fresh = min(self.budget_tokens, max(1, prompt_tokens - cached_tokens))
        parts = self.parts([Chunk(fresh, prompt_tokens - fresh)])
        behind = sum(p.total_s for p in parts) - max(p.total_s for p in parts)
        return Burst(found.first_s + behind, found.mean_s + behind, found.last_s + behind, found.steps)

    def _paced(self, users: int) -> StepSeconds:
        """Seconds between two steps' ends: of all stages for one prompt, of the slowest one for several."""
        if self.place.pp == 1 or users == 1:
            return lambda chunks: self.step(chunks).best
        return lambda chunks: max(self.cost.step(work, wire).best for work, wire in self.works(chunks))

    def _each(self, ask: Callable[[StepSeconds], float]) -> Interval:
        """The same question asked with the low, the best and the high seconds of every step."""
        seen: dict[frozenset[tuple[Chunk, int]], Interval] = {}

        def step(chunks: Counter[Chunk]) -> Interval:
            key = frozenset(chunks.items())
            if key not in seen:
                seen[key] = self.step(chunks)
            return seen[key]

        best = ask(lambda chunks: step(chunks).best)
        low = ask(lambda chunks: step(chunks).low)
        high = ask(lambda chunks: step(chunks).high)
        return Interval(low, best, high, loosest(found.tag for found in seen.values()))
