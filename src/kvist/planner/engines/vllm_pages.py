"""Pages of vLLM V1: what one layer keeps in one block, and how many blocks of it a request holds.

A *page* is one layer's share of a block. Rules as in ``vllm/v1/kv_cache_interface.py`` (versions 0.10 to 0.28).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import Final, Literal

from kvist.planner.engines.base import Run
from kvist.spec.layer import CachePart, Latent, LayerSpec
from kvist.units import ceil_div

STATE_TYPES: Final = {"f32": 4, "bf16": 2, "f16": 2}
HALF_BYTES: Final = 2
"""Filters of recurrent layers, and rotated parts of packed latents, stay in the model's own 16 bits."""


@dataclass(frozen=True, slots=True)
class Page:
    """One layer's share of a block. ``limit_tokens`` is the window or chunk; a state's page holds no tokens."""

    kind: Literal["full", "window", "chunk", "state"]
    block_tokens: int
    bytes: int
    limit_tokens: int = 0

    def blocks_for(self, n_tokens: int, run: Run, flight_tokens: int) -> int:
        """Blocks that a request of ``n_tokens`` holds at most while ``flight_tokens`` are being computed.

        A window may start inside a block: one more. Only full layers are split by context parallelism.
        """
        if self.kind == "state":
            return self._states(n_tokens, run)
        if self.kind == "full":
            return ceil_div(ceil_div(n_tokens, run.place.cp), self.block_tokens)
        if self.kind == "chunk":
            return ceil_div(min(self.limit_tokens + flight_tokens, n_tokens), self.block_tokens)
        return ceil_div(min(self.limit_tokens - 1 + flight_tokens, n_tokens), self.block_tokens) + 1

    def _states(self, n_tokens: int, run: Run) -> int:
        mode = state_mode(run)
        held = {"none": 1, "align": 2, "all": ceil_div(n_tokens, self.block_tokens)}[mode]
        return held + run.draft_tokens


def state_mode(run: Run) -> str:
    """How states are cached: ``none`` (one a request), ``align`` (the last two) or ``all`` (one a block)."""
    return run.text("state_cache", "align" if run.prefix_caching else "none", ("none", "align", "all"))


def pages_of(layers: tuple[LayerSpec, ...], run: Run) -> list[tuple[int, Page]]:
    """(layer, page) of everything the layers keep, in layer order; an indexer's keys are a page of their own."""
    block = block_tokens(layers, run)
    grown = run.switch("hybrid", True)
    out: list[tuple[int, Page]] = []
    for layer in layers:
        for part in layer.cache_parts:
            kept = part.retention
            limit = kept.window_tokens or kept.chunk_tokens or 0
            kind: Literal["full", "window", "chunk"] = "full"
            if limit and grown:
                kind = "window" if kept.window_tokens else "chunk"
            out += [
                (layer.index, Page(kind, block, n * block, limit if kind != "full" else 0))
                for n in _rows(layer, part, run)
            ]
        if layer.state_elements:
            out.append((layer.index, Page("state", block, state_bytes(layer, run))))
    return out


def state_bytes(layer: LayerSpec, run: Run) -> int:
    """Bytes of one recurrent state and its filter; drafts make the filter longer by a step each."""
    steps = run.number("filter_steps", getattr(layer.mixer, "conv_steps", 3), low=1)
    asked = run.text("state_type", "auto", ("auto", *STATE_TYPES))
    if asked == "auto":
        asked = run.spec.state_type or ("bf16" if getattr(layer.mixer, "kind", "") == "mamba2" else "f32")
    conv, width = getattr(layer.mixer, "conv_elements", 0), STATE_TYPES[asked]
    return (layer.state_elements - conv) * width + conv // steps * (steps + run.draft_tokens) * HALF_BYTES


def block_tokens(layers: tuple[LayerSpec, ...], run: Run) -> int:
    """Tokens per block of attention layers: as asked, or 16, or 64 where a latent has the width of FlashMLA's kernel.

    Beside recurrent states it grows until one attention page is at least one state.
    """
    latents = [layer.mixer for layer in layers if isinstance(layer.mixer, Latent)]
    base = run.block_tokens or (64 if any(m.rank + m.rope_dim == 576 for m in latents) else 16)
    state = max((state_bytes(layer, run) for layer in layers if layer.state_elements), default=0)
    rows = [max(_rows(layer, part, run)) for layer in layers for part in layer.cache_parts]
    if not state or not rows:
        return base
    per_token = max(rows)
    if state_mode(run) == "all":
        step = lcm(run.number("state_chunk", run.spec.state_chunk_tokens or 256, low=1), base)
        return step * ceil_div(ceil_div(state, per_token), step)
    return base * ceil_div(state, base * per_token)


def _rows(layer: LayerSpec, part: CachePart, run: Run) -> list[int]:
    """Bytes per token: of K and V (or the latent), and apart from it of an indexer's key."""
    side = {"k": run.kv_format.k, "v": run.kv_format.v}
    main = sum(side[r.side].row_bytes(r.dim) for r in part.rows if r.name != "index") * part.heads
    if isinstance(layer.mixer, Latent) and run.text("latent_row", "plain", ("plain", "fp8_ds_mla")) == "fp8_ds_mla":
        main = packed_latent_bytes(layer.mixer)
    return [main, *(index_row_bytes(r.dim) for r in part.rows if r.name == "index")]


def packed_latent_bytes(latent: Latent) -> int:
    """``fp8_ds_mla``: the latent in fp8 with an f32 scale for every 128, the rest in 16 bits (656 for 512 + 64)."""
    return latent.rank + 4 * ceil_div(latent.rank, 128) + HALF_BYTES * latent.rope_dim


def index_row_bytes(dim: int) -> int:
    """An indexer's key: fp8 with an f32 scale for every 128 (132 bytes for 128)."""
    return dim + 4 * ceil_div(dim, 128)
