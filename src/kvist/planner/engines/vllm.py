"""vLLM V1, as versions from 0.21 on print it: tokens are concurrency times the longest request.

Sources: ``vllm/v1/core/kv_cache_utils.py``, ``vllm/v1/kv_cache_interface.py``, ``vllm/platforms/interface.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from kvist.planner.engines.base import Capacity, Line, RequestSizes, Run, require_known_knobs
from kvist.planner.engines.search import most
from kvist.planner.engines.vllm_groups import Pool, padding_layers, pool_of
from kvist.units import GIB

BATCHED_TOKENS: Final = 2048
"""A server's default tokens of a step on devices under 70 GiB; 8192 on larger ones (``--max-num-batched-tokens``)."""

KNOBS: Final = {
    "hybrid": "false: windows and chunks are charged in full (--disable-hybrid-kv-cache-manager)",
    "steps_in_flight": "steps whose tokens a window keeps beside itself: 1, or 2 with asynchronous scheduling (0.27)",
    "draft_slots": "extra tokens a step may hold for every sequence's drafts",
    "state_cache": "none, align (default with prefix caching) or all: recurrent states kept per request",
    "state_type": "f32, bf16, f16: recurrent state; auto: as the config says, else 16 bits for Mamba-2 and f32",
    "state_chunk": "tokens of a chunk of the state kernel (state_cache=all)",
    "filter_steps": "past steps a recurrent filter keeps (kernel width less one)",
    "latent_row": "plain, or fp8_ds_mla: latents packed as sparse MLA kernels want them",
}


@dataclass(frozen=True, slots=True)
class Vllm:
    """vLLM V1: groups of layers share one pool of equal pages; windows and states cost what they hold."""

    name: str = "vllm"
    knobs: Mapping[str, str] = field(default_factory=lambda: KNOBS)

    def capacity(self, run: Run) -> Capacity:
        """What the engine will print. Raises ``BadValue`` or ``ModelError`` for what it refuses."""
        require_known_knobs(self, run)
        pool = pool_of(run)
        longest = run.max_model_tokens
        lines = [Line("block_tokens", pool.block_tokens, how_blocks(pool))]
        request_bytes = _request_bytes(pool, run, longest) if longest else None
        if request_bytes is not None:
            lines.append(Line("required_kv_gib", request_bytes / GIB, how_request(pool, run)))
        empty = Capacity(
            block_tokens=pool.block_tokens,
            block_bytes=pool.largest_block_bytes,
            request_bytes=request_bytes,
            lines=tuple(lines),
            notes=notes(pool),
        )
        if run.available_bytes is None:
            return empty
        blocks = pool.blocks(run.available_bytes)
        fit = longest_request(pool, run)
        concurrency = blocks / pool.blocks_for(longest, run, flight_tokens(run)) if longest else None
        tokens = (
            int(concurrency * longest)
            if concurrency and longest
            else blocks // len(pool.groups) * pool.block_tokens * run.place.cp
        )
        lines += _lines(pool, run, blocks, tokens, concurrency)
        lines.append(Line("est_max_len", fit, "longest request whose blocks fit"))
        return replace(
            empty, tokens=tokens, blocks=blocks, concurrency=concurrency, longest_tokens=fit, lines=tuple(lines)
        )

    def request_bytes(self, run: Run, n_tokens: int) -> int:
        """Bytes of one rank (of the fullest stage) that a request of ``n_tokens`` holds at most."""
        return self.request_sizes(run)(n_tokens)

    def request_sizes(self, run: Run) -> RequestSizes:
        """Bytes held by length; the groups are cut once."""
        pool = pool_of(run)
        return lambda n_tokens: _request_bytes(pool, run, n_tokens)


def _request_bytes(pool: Pool, run: Run, n_tokens: int) -> int:
    return pool.blocks_for(n_tokens, run, flight_tokens(run)) * pool.charged_block_bytes


def flight_tokens(run: Run) -> int:
    """Tokens computed but not yet settled: what a window keeps beside itself."""
    step = (run.batched_tokens or BATCHED_TOKENS) + (run.sequences or 0) * run.number("draft_slots", 0)
    return step * run.number("steps_in_flight", 1, low=1)


def longest_request(pool: Pool, run: Run) -> int:
    """The longest request that the memory holds, up to the longest asked for or the model's context."""
    available = run.available_bytes or 0
    blocks = pool.blocks(available)
    limit = max(run.max_model_tokens or 0, run.spec.context_tokens) or blocks * pool.block_tokens * run.place.cp
    flight = flight_tokens(run)
    return most(lambda n: pool.fits(pool.blocks_for(n, run, flight), available), limit)


def _lines(pool: Pool, run: Run, blocks: int, tokens: int, concurrency: float | None) -> list[Line]:
    how = f"{blocks} blocks of {pool.largest_block_bytes} B ({how_blocks(pool)})"
    lines = [Line("gpu_blocks", blocks, how)]
    if concurrency is None:
        return [*lines, Line("kv_tokens", tokens, f"{how}, over {len(pool.groups)} groups")]
    each = f"{how}; a request takes {how_request(pool, run)}"
    return [
        *lines,
        Line("max_concurrency", concurrency, each),
        Line("kv_tokens", tokens, f"concurrency x {run.max_model_tokens}: {each}"),
    ]


def how_blocks(pool: Pool) -> str:
    """The groups in words: ``1 x 10 full layers of 2096 tokens, 3 x 10 state``."""
    kinds: dict[tuple[str, int, int], int] = {}
    for group in pool.groups:
        key = (group.page.kind, group.page.block_tokens, len(group.pages))
        kinds[key] = kinds.get(key, 0) + 1
    parts = [
        f"{n} x {size} {kind}" + ("" if kind == "state" else f" of {block}") for (kind, block, size), n in kinds.items()
    ]
    return "groups " + ", ".join(parts)


def how_request(pool: Pool, run: Run) -> str:
    """Blocks of one longest request, group by group."""
    n, flight = run.max_model_tokens or 0, flight_tokens(run)
    kinds: dict[tuple[str, int], int] = {}
    for group in pool.groups:
        key = (group.page.kind, group.page.blocks_for(n, run, flight))
        kinds[key] = kinds.get(key, 0) + 1
    return (
        " + ".join(f"{count} x {blocks} {kind}" for (kind, blocks), count in kinds.items()) + f" blocks for {n} tokens"
    )


def notes(pool: Pool) -> tuple[str, ...]:
    """What people should know of the grouping."""
    padded = padding_layers(pool)
    return (f"groups are filled up with {padded} empty places",) if padded else ()
