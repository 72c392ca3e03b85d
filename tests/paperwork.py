"""A bench for the engine on paper: layouts, requests, and a driver that checks the books after every step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random

from kvist.config import CacheConfig, EngineConfig, SchedConfig, TierConfig
from kvist.cost.table import CostTable
from kvist.sched.request import Event, Request, Usage
from kvist.sim.draws import PaperModel
from kvist.sim.run import Paper, paper_engine
from kvist.spec.format import KVFormat
from kvist.spec.layer import Chunked, Full, Latent, LayerSpec, Window
from kvist.spec.layout import CacheLayout, plan_layout
from kvist.spec.model import ModelSpec
from kvist.spec.sampling import Sampling
from kvist.step import StepPlan, StepResult

B = 16
CONTEXT = 4096
GREEDY = Sampling(temperature=0.0)


def layout_of(*mixers, kv_heads=None) -> CacheLayout:
    heads = kv_heads or [2] * len(mixers)
    layers = tuple(LayerSpec(i, m, 4, h, 8, 8) for i, (m, h) in enumerate(zip(mixers, heads, strict=True)))
    model = ModelSpec(architecture="paper", hidden=32, layers=layers, vocab=1000, context_tokens=CONTEXT)
    return plan_layout(model, KVFormat(), block_tokens=B)


LAYOUTS = {
    "full": layout_of(Full(), Full()),
    "hybrid": layout_of(Full(), Window(40), Window(40), Full()),
    "uneven": layout_of(Full(), Window(48), kv_heads=[2, 1]),
    "window": layout_of(Window(40, sinks=4), Window(40, sinks=4)),
    "chunked": layout_of(Full(), Chunked(48)),
    "latent": layout_of(Latent(16, 8), Latent(16, 8)),
}


def paper(
    layout="full", blocks=64, budget=64, *, sequences=16, chunk=None, reuse=True, model=None, carry=None, **more
) -> Paper:
    config = EngineConfig(
        CacheConfig(blocks=blocks, block_tokens=B, reuse=reuse),
        SchedConfig(token_budget=budget, max_sequences=sequences, chunk_tokens=chunk),
        carry or TierConfig(),
    )
    more.setdefault("context_tokens", CONTEXT)
    return paper_engine(LAYOUTS[layout] if isinstance(layout, str) else layout, config, model=model, **more)


def ask(name, prompt, n_out=8, **more) -> Request:
    more.setdefault("sampling", GREEDY)
    return Request(name, tuple(prompt), n_out, **more)


def words(n, seed=0, vocab=900) -> tuple[int, ...]:
    rng = Random(seed)
    return tuple(rng.randrange(vocab) for _ in range(n))


def check(p: Paper) -> None:
    cache = p.engine.scheduler.cache
    cache.check()
    assert cache.free_blocks + cache.cached_blocks + cache.live_blocks == cache.total_blocks


def books(p: Paper) -> None:
    """At idle nobody holds a block and nobody is remembered but by name."""
    check(p)
    scheduler = p.engine.scheduler
    assert scheduler.idle
    assert scheduler.cache.live_blocks == 0
    assert not scheduler.waiting and not scheduler.running
    counters = scheduler.counters
    ended = sum(getattr(counters, f"finished_{r}") for r in ("stop", "length", "abort", "error"))
    assert ended == counters.sequences


@dataclass
class Outcome:
    tokens: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    last: dict[tuple[str, int], Event] = field(default_factory=dict)

    def note(self, events) -> None:
        for event in events:
            key = (event.request, event.sample)
            assert key not in self.last, f"{key} spoke after its end"
            tokens = self.tokens.setdefault(key, [])
            if event.token is not None:
                assert event.index == len(tokens), "a token is lost or doubled"
                tokens.append(event.token)
            if event.finish_reason is not None:
                assert event.usage is not None
                self.last[key] = event
            self.events.append(event)

    def usage(self, name, sample=0) -> Usage:
        return self.last[name, sample].usage

    def reason(self, name, sample=0) -> str:
        return self.last[name, sample].finish_reason


def drive(p: Paper, *requests, outcome=None, each_step=None, limit=100_000, audit=1) -> Outcome:
    """Add, run to the end, with the books checked after every ``audit``-th step (0: never)."""
    outcome = outcome or Outcome()
    for request in requests:
        p.engine.add(request)
    for _ in range(limit):
        if p.engine.idle:
            break
        if each_step is not None:
            outcome.note(each_step(p) or ())
        outcome.note(p.engine.step())
        if audit and p.engine.scheduler.counters.steps % audit == 0:
            check(p)
    assert p.engine.idle, f"not idle after {limit} steps"
    if audit:
        books(p)
    return outcome


@lru_cache(maxsize=4096)
def alone(layout, request: Request, sample=0, model=None) -> list[int]:
    """The reference: this sample as its own request on a fresh engine with everything off."""
    sampling = replace(request.sampling, seed=request.sampling.seed + sample)
    single = replace(request, n=1, sampling=sampling, reuse=False, prompt_logprobs=None)
    p = paper(layout, blocks=2000, budget=CONTEXT, sequences=1, reuse=False, model=model, check=False)
    out = drive(p, single, audit=0)
    return out.tokens[request.id, 0]


def same_as_alone(layout, outcome: Outcome, requests, model=None) -> None:
    for request in requests:
        for sample in range(request.n):
            got = outcome.tokens.get((request.id, sample), [])
            want = alone(layout, request, sample, model)
            if outcome.last[request.id, sample].token is not None:
                assert got == want, (request.id, sample)
            else:
                assert got == want[: len(got)], (request.id, sample)


class Recorder:
    """An executor that keeps the letters that pass, and may be told to fail."""

    def __init__(self, inner) -> None:
        self.inner = inner
        self.plans: list[StepPlan] = []
        self.results: list[StepResult] = []
        self.fail_at: set[int] = set()
        self.after = None

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        if plan.step in self.fail_at:
            raise RuntimeError("out of order")
        result = self.inner.execute(plan)
        self.results.append(result)
        if self.after is not None:
            self.after(plan)
        return result

    def __getattr__(self, name):
        return getattr(self.inner, name)


def recorded(p: Paper) -> Recorder:
    p.engine.executor = Recorder(p.engine.executor)
    return p.engine.executor


def computed_of(recorder: Recorder, seq: int) -> list[tuple[int, int]]:
    """[start, end) of every chunk of a sequence."""
    return [(c.start, c.end) for plan in recorder.plans for c in plan.chunks if c.seq == seq]


MODEL = PaperModel(vocab=1000)
EOS = PaperModel(vocab=1000, eos_id=7, eos_probability=0.08)
SLOW = CostTable.linear(1e-3, 1e-5, 1e-7)
