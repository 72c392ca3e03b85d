"""An engine under a stopwatch: the wall time of every step beside what it computed.

Engines of several KV formats share one set of weights, so that formats can be measured in turns.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvist.config import CacheConfig, EngineConfig
from kvist.cost.work import Chunk, ModelWork, Widths
from kvist.engine.event import Event
from kvist.engine.ports import Executor
from kvist.errors import StateError
from kvist.ids import RequestId, SeqId
from kvist.lab.host import Load
from kvist.model.weights import Weights, load_weights
from kvist.runtime.build import BuildOptions, build_engine
from kvist.runtime.packaged import packaged_model
from kvist.runtime.store import Store
from kvist.sched.request import Request
from kvist.spec.format import KVFormat
from kvist.spec.layout import plan_layout
from kvist.spec.model import ModelSpec
from kvist.spec.read import locate, read_spec
from kvist.spec.sampling import Sampling
from kvist.spec.weights import weight_elements
from kvist.step import StepPlan, StepResult

Prompt = tuple[int, ...]
GREEDY: Final = Sampling(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Model:
    """Weights in memory and what they are."""

    name: str
    spec: ModelSpec
    weights: Weights
    dtype: str

    @staticmethod
    def load(path: str | Path | None, dtype: str) -> Model:
        """From a GGUF file or a folder (None: the packaged model). Raises ``ModelError``."""
        place = locate(Path(path) if path is not None else packaged_model())
        spec = read_spec(place)
        return Model(place.stem, spec, load_weights(place, spec, dtype=dtype), dtype)

    @property
    def weight_bytes(self) -> float:
        """Of one weight in memory, the average of all."""
        return self.weights.total_bytes / weight_elements(self.spec).total

    def prompts(self, count: int, tokens: int, seed: int) -> list[Prompt]:
        """Random prompts that have nothing in common: no two may share a block."""
        draw = random.Random(seed)
        return [tuple(draw.randrange(self.spec.vocab) for _ in range(tokens)) for _ in range(count)]


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its chunks, the seconds a user waited for it, those of the model's forward pass, its events.

    ``others`` is the share of the processor that other processes took meanwhile.
    """

    chunks: tuple[Chunk, ...]
    wall_s: float
    forward_s: float
    events: tuple[Event, ...]
    others: float = 0.0

    @property
    def only_continues(self) -> bool:
        """True when every sequence computed the one token it had drawn."""
        return all(chunk.new_tokens == 1 for chunk in self.chunks)


class Watcher:
    """An executor that remembers the shape of the plan that passed."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self.chunks: tuple[Chunk, ...] = ()

    def execute(self, plan: StepPlan) -> StepResult:
        """Pass it on."""
        self.chunks = tuple(Chunk(len(c.tokens), c.start, len(c.logit_rows)) for c in plan.chunks)
        return self._inner.execute(plan)

    @property
    def counters(self) -> Mapping[str, int]:
        """The inner executor's."""
        return self._inner.counters


class Rig:
    """One engine over shared weights, with a pool of ``pool_tokens``. Greedy, past any end of text."""

    def __init__(self, model: Model, kv_format: str, pool_tokens: int, config: EngineConfig | None = None) -> None:
        given = config or EngineConfig()
        self.spec = model.spec
        self.format = KVFormat.parse(kv_format)
        each = model.weight_bytes
        self.work = ModelWork(model.spec, self.format, Widths(each, each, each, 4.0))
        layout = plan_layout(model.spec, self.format, block_tokens=given.cache.block_tokens)
        blocks = max(layout.blocks_for(pool_tokens), layout.blocks_for(1) * 4)
        cache = CacheConfig(blocks=blocks, block_tokens=given.cache.block_tokens, format=kv_format)
        options = BuildOptions(dtype=model.dtype, engine=EngineConfig(cache, given.sched))
        self.engine, self._executor = build_engine(model.spec, model.weights, Store(layout, blocks=blocks), options)
        self._watcher = Watcher(self.engine.executor)
        self.engine.executor = self._watcher
        self._asked = 0

    def add(self, prompts: Sequence[Prompt], max_tokens: int, **how: Any) -> list[SeqId]:
        """Queue prompts; all arrive at once."""
        seqs: list[SeqId] = []
        for prompt in prompts:
            self._asked += 1
            name = RequestId(f"lab-{self._asked}")
            seqs += self.engine.add(Request(name, prompt, max_tokens, sampling=GREEDY, ignore_eos=True, **how))
        return seqs

    def steps(self) -> Iterator[Step]:
        """Step until idle; stopping early leaves the sequences alive (see ``abort``). Raises ``StateError`` when a
        sequence fails: a step that was not done has no time.
        """
        while not self.engine.idle:
            forward, load = self._executor.spent.forward_s, Load.start()
            start = time.perf_counter()
            events = self.engine.step()
            wall = time.perf_counter() - start
            failed = [event.error for event in events if event.finish_reason == "error"]
            if failed:
                raise StateError(f"a timed step failed: {failed[0]}", remedy="free some memory, or report it")
            spent = self._executor.spent.forward_s - forward
            yield Step(self._watcher.chunks, wall, spent, tuple(events), load.share())

    def abort(self, seqs: Sequence[SeqId]) -> None:
        """End sequences; what they computed stays in the cache."""
        for seq in seqs:
            self.engine.abort(seq)
