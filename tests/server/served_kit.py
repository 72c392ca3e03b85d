"""A server for tests: the real application, scheduler and cache over a model on paper that says what it is told to.

``served()`` has SmolLM2's tokenizer and chat template; ``Script`` decides every token. ``running()`` serves it on a
free port in a thread. Nothing is computed, so that thousands of requests take seconds.
"""

import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache

import pytest

from kvist.config import CacheConfig, EngineConfig, SchedConfig
from kvist.cost.table import CostTable
from kvist.engine.assemble import assemble
from kvist.server.config import ServeConfig
from kvist.server.run import Host
from kvist.server.served import Served
from kvist.sim.draws import PaperModel
from kvist.sim.executor import PaperExecutor
from kvist.spec.format import KVFormat
from kvist.spec.layout import plan_layout
from kvist.spec.read import read_spec
from real_model import packaged


class Steady:
    """The machine's clock; virtual seconds are slept."""

    def now(self):
        return time.perf_counter()

    def advance(self, seconds):
        if seconds > 0:
            time.sleep(seconds)


@dataclass(frozen=True)
class Script:
    """``answer(prompt ids) -> output ids``; after them the end token. Scores are the paper model's."""

    answer: Callable
    eos_id: int
    paper: PaperModel = field(default_factory=lambda: PaperModel(vocab=49152))

    def draw(self, cell, new, index):
        told = self.answer(new.prompt)
        token = told[index] if index < len(told) else self.eos_id
        return token, self.paper.logprob(cell, token, new.sampling)

    def score(self, cell, token, alternatives):
        return self.paper.score(cell, token, alternatives)


@cache
def parts():
    from kvist.runtime.build import read_text_side

    path = packaged()
    return path, read_spec(path), *read_text_side(path)


def served(
    answer=None, *, blocks=2000, block_tokens=16, step_s=0.0, token_s=0.0, check=True, grammars=None, **sched
) -> Served:
    """A paper model. ``answer``: text, ids, or a function of the prompt ids to ids (None: made-up tokens for ever)."""
    path, spec, tokenizer, template = parts()
    layout = plan_layout(spec, KVFormat.parse("f16"), block_tokens=block_tokens)
    config = EngineConfig(CacheConfig(blocks=blocks, block_tokens=block_tokens), SchedConfig(**sched))
    clock = Steady()
    model = PaperModel(vocab=tokenizer.vocab_size)
    if answer is not None:
        model = Script(_answering(answer, tokenizer), tokenizer.eos_ids[0])
    cost = CostTable.linear(step_s, token_s)
    executor = PaperExecutor(layout, blocks=blocks, clock=clock, cost=cost, model=model, check=check)
    engine = assemble(layout, executor, clock, config, context_tokens=spec.context_tokens)
    return Served(engine, tokenizer, template, spec, layout, str(path), 1_700_000_000, grammars)


def _answering(answer, tokenizer):
    if callable(answer):
        return answer
    ids = tokenizer.encode(answer, add_bos=False) if isinstance(answer, str) else list(answer)
    return lambda prompt: ids


@dataclass
class Running:
    url: str
    host: Host

    @property
    def service(self):
        return self.host.service

    def books(self):
        """Everything given back: call it when nothing is open."""
        deadline = time.time() + 5
        while self.service.open and time.time() < deadline:
            time.sleep(0.01)
        assert self.service.open == 0
        cache = self.service.served.engine.scheduler.cache
        while not self.service.served.engine.idle and time.time() < deadline:
            time.sleep(0.01)
        cache.check()
        assert cache.live_blocks == 0
        assert cache.free_blocks + cache.cached_blocks == cache.total_blocks


@contextmanager
def running(what: Served | Callable[..., Served], config: ServeConfig | None = None, loader=None, **changes):
    """The server, ready, as ``Running``; drained and stopped at the end."""
    config = replace(config or ServeConfig(port=0, names=("tiny",), drain_s=2.0), **changes)
    ready = threading.Event()
    load = what if callable(what) else lambda progress: what
    host = Host(load, config, now=time.perf_counter, loader=loader, on_ready=lambda *_: ready.set())
    thread = threading.Thread(target=_run, args=(host, ready), daemon=True)
    thread.start()
    if not ready.wait(60):
        pytest.fail("the server did not start")
    try:
        yield Running(host.address, host)
    finally:
        host.stop()
        thread.join(20)
        assert not thread.is_alive(), "the server did not stop"


def _run(host, ready):
    try:
        host.run()
    finally:
        ready.set()
