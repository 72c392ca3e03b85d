"""The engine on paper, and a trace run through it: the twin of ``runtime/build.py``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvist.config import EngineConfig
from kvist.cost.table import CostTable
from kvist.engine.assemble import assemble
from kvist.engine.engine import Engine
from kvist.engine.event import Event, Timeline
from kvist.errors import KvistError
from kvist.ids import RequestId
from kvist.sched.request import Request
from kvist.sim.clock import VirtualClock
from kvist.sim.draws import PaperModel
from kvist.sim.executor import PaperExecutor
from kvist.sim.tiers import PaperTier
from kvist.spec.layout import CacheLayout


@dataclass(frozen=True, slots=True)
class Paper:
    """An engine whose executor is paper, with its clock."""

    engine: Engine
    executor: PaperExecutor
    clock: VirtualClock


def paper_engine(
    layout: CacheLayout,
    config: EngineConfig,
    *,
    context_tokens: int,
    model: PaperModel | None = None,
    cost: CostTable | None = None,
    check: bool = True,
    tiers: Sequence[PaperTier] = (),
    fingerprint: bytes = b"",
) -> Paper:
    """The same cache, scheduler and loop as for torch. ``check``: every read is verified (slower).

    ``tiers`` may be shared by engines, one after another or at once, as a folder is.
    """
    clock = VirtualClock()
    executor = PaperExecutor(
        layout,
        blocks=config.cache.pool_blocks(layout.block_bytes),
        clock=clock,
        cost=cost or CostTable.linear(0.0, 0.0),
        model=model or PaperModel(),
        check=check,
        tiers=tiers,
    )
    names = tuple(tier.name for tier in tiers)
    engine = assemble(
        layout, executor, clock, config, context_tokens=context_tokens, fingerprint=fingerprint, tiers=names
    )
    return Paper(engine, executor, clock)


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request and the moment it comes."""

    at_s: float
    request: Request


@dataclass(slots=True)
class Outcome:
    """What became of a trace: timelines in order of ending, requests that were refused and why, output tokens."""

    timelines: list[Timeline] = field(default_factory=list)
    refused: dict[RequestId, KvistError] = field(default_factory=dict)
    outputs: dict[tuple[RequestId, int], list[int]] = field(default_factory=dict)


def replay(paper: Paper, arrivals: Iterable[Arrival]) -> Outcome:
    """Run a trace in virtual time until everything has ended."""
    outcome = Outcome()
    pending = sorted(arrivals, key=lambda a: a.at_s)
    at = 0
    while at < len(pending) or not paper.engine.idle:
        if paper.engine.idle:
            paper.clock.advance_to(pending[at].at_s)
        while at < len(pending) and pending[at].at_s <= paper.clock.now():
            request = pending[at].request
            at += 1
            try:
                paper.engine.add(request)
            except KvistError as error:
                outcome.refused[request.id] = error
        for event in paper.engine.step():
            _note(outcome, paper.engine, event)
    return outcome


def _note(outcome: Outcome, engine: Engine, event: Event) -> None:
    output = outcome.outputs.setdefault((event.request, event.sample), [])
    if event.token is not None:
        output.append(event.token)
    if event.finish_reason is not None:
        outcome.timelines.append(engine.timeline(event.seq))
