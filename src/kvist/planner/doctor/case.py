"""What every cause looks at: the log, the run it describes, and what the emulator makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from kvist.cost.interval import Interval
from kvist.errors import KvistError
from kvist.planner.doctor.base import EngineLog, Term
from kvist.planner.doctor.compare import Predictions, answer, may_predict, meets, pool_run
from kvist.planner.doctor.diagnosis import Finding
from kvist.planner.engines.base import Capacity, Engine, Run
from kvist.planner.engines.stages import rank_layers
from kvist.spec.format import KVFormat
from kvist.spec.layer import LayerSpec


@dataclass(frozen=True, slots=True)
class Case:
    """``available`` is what a rank had for its cache; ``found`` the emulator's lines for ``run``."""

    log: EngineLog
    run: Run
    engine: Engine
    available: Term | None
    found: Predictions = field(default_factory=dict)

    @property
    def layers(self) -> tuple[LayerSpec, ...]:
        """Layers of one rank, all stages one after the other."""
        return tuple(layer for stage in rank_layers(self.run) for layer in stage)

    def bytes_per_token(self, fmt: KVFormat | None = None) -> int:
        """Bytes one token takes on a rank of the fullest stage, nothing capped."""
        fmt = fmt or self.run.kv_format
        return max(sum(x.kv_bytes_per_token(fmt) for x in stage) for stage in rank_layers(self.run))

    def predicted(self, term: Term, found: Predictions | None = None) -> Interval | None:
        """The emulator's answer to a term."""
        return answer(term, self.log, self.found if found is None else found)

    def agrees(self, term: Term | None, found: Predictions | None = None) -> bool:
        """True when a prediction exists and meets what was printed."""
        if term is None:
            return False
        answered = self.predicted(term, found)
        return answered is not None and meets(Interval(term.low, term.value, term.high), answered)

    def differs(self, term: Term | None) -> bool:
        """True when a prediction exists and does not meet what was printed."""
        return term is not None and self.predicted(term) is not None and not self.agrees(term)

    def capacity(self) -> Capacity | None:
        """What the emulator says of the run, at the printed bytes; None for what it refuses."""
        run = self.run
        if self.available is not None:
            run = replace(run, available_bytes=max(0, int(self.available.value)))
        try:
            return self.engine.capacity(run)
        except KvistError:
            return None

    def pool(self) -> Term | None:
        """The term that says how much fits: tokens where printed, else blocks."""
        return self.log.least("kv_tokens", "" if self.log.engine == "sglang" else None) or self.log.least("gpu_blocks")

    def disputed(self) -> Term | None:
        """The first term about capacity that differs from its prediction."""
        names = (
            "kv_tokens",
            "gpu_blocks",
            "block_tokens",
            "concurrency",
            "needed",
            "longest_tokens",
            "kv",
            "k",
            "state",
            "kv_cells",
        )
        terms = [t for n in names for t in self.log.all(n) if t.what != "draft"]
        return next((t for t in terms if self.differs(t)), None)

    def if_(self, engine: Engine | None = None, knobs: dict[str, Any] | None = None, **changes: Any) -> Predictions:
        """What the emulator (or another) would have said of a run that differs in ``changes``. Empty when refused."""
        one = engine or self.engine
        kept = {k: v for k, v in {**self.run.knobs, **(knobs or {})}.items() if k in one.knobs}
        return predictions(one, replace(self.run, knobs=kept, **changes), self.log, self.available)


Cause = Callable[[Case], Finding | None]


def predictions(engine: Engine, run: Run, log: EngineLog, available: Term | None) -> Predictions:
    """The emulator's lines for a run; where an engine prints sizes of a pool, for the pool it printed."""
    by_pool = log.engine in ("sglang", "tensorrt-llm")
    out = {} if by_pool and available is None else dict(may_predict(engine, run, available))
    tokens = log.least("kv_tokens", "full layers") or log.least("kv_tokens", "") or log.least("kv_tokens")
    if by_pool and tokens is not None and tokens.value >= 1:
        sizes = may_predict(engine, pool_run(run, tokens.value), None)
        out.update({key: line for key, line in sizes.items() if key[0] != "kv_tokens"})
    return out
