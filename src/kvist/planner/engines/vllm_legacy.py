"""Older vLLM: the block log of version 0, and what version 1 printed before 0.21."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from kvist.planner.engines.base import Capacity, Line, RequestSizes, Run, require_known_knobs
from kvist.planner.engines.vllm import KNOBS, Vllm, flight_tokens, how_blocks, longest_request
from kvist.planner.engines.vllm_groups import pool_of
from kvist.units import GIB

_OWN: Final = {
    "count": "blocks (version 0), groups (blocks over groups, 0.10 to 0.20), or layers (every layer charged in full)",
    "swap_gib": "host memory for swapped blocks, per rank (version 0)",
}


@dataclass(frozen=True, slots=True)
class VllmLegacy:
    """vLLM before 0.21. ``count=groups`` divides blocks by groups; the others charge every layer in full."""

    name: str = "vllm-legacy"
    knobs: Mapping[str, str] = field(default_factory=lambda: {**KNOBS, **_OWN})

    def capacity(self, run: Run) -> Capacity:
        """What the engine will print. Raises ``BadValue`` or ``ModelError`` for what it refuses."""
        require_known_knobs(self, run)
        count = run.text("count", "groups", ("blocks", "groups", "layers"))
        inner = _inner(run)
        pool = pool_of(inner)
        swap = run.number("swap_gib", 4) * GIB
        lines = [Line("cpu_blocks", pool.blocks(swap), f"{swap // GIB} GiB of blocks of {pool.largest_block_bytes} B")]
        lines += [line for line in Vllm().capacity(inner).lines if line.name in ("required_kv_gib", "block_tokens")]
        request_bytes = self.request_bytes(run, run.max_model_tokens) if run.max_model_tokens else None
        empty = Capacity(
            block_tokens=pool.block_tokens,
            block_bytes=pool.largest_block_bytes,
            request_bytes=request_bytes,
            lines=tuple(lines),
        )
        if run.available_bytes is None:
            return empty
        blocks = pool.blocks(run.available_bytes)
        tokens = blocks // len(pool.groups) * pool.block_tokens * run.place.cp
        how = f"{blocks} blocks of {pool.largest_block_bytes} B ({how_blocks(pool)})"
        lines += [Line("gpu_blocks", blocks, how), Line("kv_tokens", tokens, f"{how}, over {len(pool.groups)} groups")]
        concurrency = None
        if run.max_model_tokens:
            held = pool.blocks_for(run.max_model_tokens, inner, flight_tokens(inner))
            concurrency = tokens / run.max_model_tokens if count == "blocks" else blocks / held
            lines.append(Line("max_concurrency", concurrency, how))
        fit = longest_request(pool, inner)
        lines.append(Line("est_max_len", fit, "longest request whose blocks fit"))
        return replace(
            empty, tokens=tokens, blocks=blocks, concurrency=concurrency, longest_tokens=fit, lines=tuple(lines)
        )

    def request_bytes(self, run: Run, n_tokens: int) -> int:
        """Bytes of one rank that a request of ``n_tokens`` holds at most."""
        return self.request_sizes(run)(n_tokens)

    def request_sizes(self, run: Run) -> RequestSizes:
        """Bytes held by length."""
        return Vllm().request_sizes(_inner(run))


def _inner(run: Run) -> Run:
    """The same run without this engine's own knobs."""
    knobs = {k: v for k, v in run.knobs.items() if k not in _OWN}
    if run.knobs.get("count", "groups") != "groups":
        knobs["hybrid"] = False
    return replace(run, knobs=knobs)
