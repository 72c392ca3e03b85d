"""kvist itself: the block layout that its store really allocates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvist.errors import BadValue
from kvist.planner.engines.base import Capacity, Line, RequestSizes, Run, require_known_knobs
from kvist.planner.engines.search import most
from kvist.planner.engines.stages import rank_layers
from kvist.spec.layout import CacheLayout, plan_layout
from kvist.units import GIB

_KNOBS = {"state_bytes_per_element": "width of recurrent state (4)"}


@dataclass(frozen=True, slots=True)
class Kvist:
    """Blocks of equal bytes for every group; windows hold what they may read, a step at a time."""

    name: str = "kvist"
    knobs: Mapping[str, str] = field(default_factory=lambda: _KNOBS)

    def capacity(self, run: Run) -> Capacity:
        """What the pool will hold. Raises ``BadValue`` for what the engine refuses."""
        layouts = _layouts(self, run)
        block_bytes = max(x.block_bytes for x in layouts)
        longest = run.max_model_tokens
        request_bytes = _request_bytes(layouts, longest, run) if longest else None
        lines = [Line("block_bytes", block_bytes, f"{len(layouts[0].groups)} groups of layers")]
        if request_bytes is not None:
            lines.append(Line("required_kv_gib", request_bytes / GIB, f"peak of one request of {longest} tokens"))
        span = max(x.span_tokens for x in layouts)
        if run.available_bytes is None:
            return Capacity(block_tokens=span, block_bytes=block_bytes, request_bytes=request_bytes, lines=tuple(lines))
        held = [(x, run.available_bytes // x.block_bytes) for x in layouts]
        blocks = min(n for _, n in held)
        fit = min(_longest(x, n, run) for x, n in held)
        concurrency = min(n / _peak(x, longest, run) for x, n in held) if longest else None
        tokens = int(concurrency * longest) if concurrency is not None and longest else fit
        lines += [
            Line("gpu_blocks", blocks, f"{run.available_bytes} B over blocks of {block_bytes} B"),
            Line("kv_tokens", tokens, "concurrency x longest request" if longest else "one request alone"),
            Line("est_max_len", fit, "longest request whose blocks fit"),
        ]
        if concurrency is not None:
            lines.append(Line("max_concurrency", concurrency, f"requests of {longest} tokens"))
        return Capacity(tokens, blocks, span, block_bytes, concurrency, request_bytes, fit, tuple(lines))

    def request_bytes(self, run: Run, n_tokens: int) -> int:
        """Bytes of one rank that a request holds at its peak, on the stage where it is most."""
        return self.request_sizes(run)(n_tokens)

    def request_sizes(self, run: Run) -> RequestSizes:
        """Bytes at their peak by length."""
        layouts = _layouts(self, run)
        return lambda n_tokens: _request_bytes(layouts, n_tokens, run)


def _layouts(engine: Kvist, run: Run) -> tuple[CacheLayout, ...]:
    """The layout of each stage that keeps anything."""
    require_known_knobs(engine, run)
    if run.place.cp > 1:
        raise BadValue("cp", run.place.cp, "1: kvist keeps every token of a sequence on each of its ranks")
    width = run.number("state_bytes_per_element", 4, low=1)
    held = [s for s in rank_layers(run) if any(x.owns_cache or x.state_elements for x in s)] or [run.spec.layers]
    return tuple(
        plan_layout(
            replace(run.spec, layers=s), run.kv_format, block_tokens=run.block_tokens or 32, state_element_bytes=width
        )
        for s in held
    )


def _request_bytes(layouts: tuple[CacheLayout, ...], n_tokens: int, run: Run) -> int:
    return max(_peak(x, n_tokens, run) * x.block_bytes for x in layouts)


def _peak(layout: CacheLayout, n_tokens: int, run: Run) -> int:
    """Blocks of one request at its peak, its recurrent state included."""
    return layout.peak_blocks_for(n_tokens, min(run.batched_tokens or 1, n_tokens)) + layout.state_blocks


def _longest(layout: CacheLayout, blocks: int, run: Run) -> int:
    limit = max(run.max_model_tokens or 0, run.spec.context_tokens) or blocks * layout.span_tokens
    return most(lambda n: _peak(layout, n, run) <= blocks, limit)
