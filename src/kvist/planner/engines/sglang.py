"""SGLang: one pool of tokens, K and V apart; a pool of slots for recurrent state. Its "GB" are GiB.

Source: ``python/sglang/srt/mem_cache/memory_pool.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kvist.planner.engines.base import Capacity, Line, RequestSizes, Run, require_known_knobs
from kvist.planner.engines.search import most
from kvist.planner.engines.stages import rank_layers, refuse_compressed
from kvist.planner.engines.vllm_pages import HALF_BYTES, STATE_TYPES, index_row_bytes
from kvist.spec.layer import LayerSpec
from kvist.units import GIB, ceil_div, round_up

SWA_PERCENT: Final = 80
"""``--swa-full-tokens-ratio`` when nobody gives one (as start-up logs of 2026 show it)."""

KNOBS: Final = {
    "state_slots": "max_mamba_cache_size: sequences whose recurrent state is kept; the pool has one slot more",
    "state_type": "f32, bf16 or f16: elements of recurrent state (--mamba-ssm-dtype)",
    "window_pool_percent": "tokens of the windowed layers' own pool, percent of the full one (80; 0: charged in full)",
}


@dataclass(frozen=True, slots=True)
class Row:
    """Bytes one token takes on a rank in one pool: of keys, of values, and of latents or indexers that have neither."""

    k: int = 0
    v: int = 0
    other: int = 0

    @property
    def all(self) -> int:
        """Keys, values and the rest."""
        return self.k + self.v + self.other


@dataclass(frozen=True, slots=True)
class Sglang:
    """A flat pool of tokens (``max_total_num_tokens``); windowed layers may have a smaller one of their own."""

    name: str = "sglang"
    knobs: Mapping[str, str] = field(default_factory=lambda: KNOBS)

    def capacity(self, run: Run) -> Capacity:
        """What the engine will print. Without ``available_bytes``: sizes of a pool of ``max_model_tokens`` tokens."""
        require_known_knobs(self, run)
        refuse_compressed(self.name, run)
        page = run.block_tokens or 1
        stages = rank_layers(run)
        lines = [line for stage in stages[:1] for line in _state_lines(stage, run)]
        tokens = run.max_model_tokens or 0
        if run.available_bytes is not None:
            tokens = min(_tokens(stage, run) for stage in stages) // page * page * run.place.cp
            lines.append(Line("kv_tokens", tokens, f"{run.available_bytes} B less states, over the bytes of a token"))
        lines += _pool_lines(stages[0], run, tokens)
        known = run.max_model_tokens if run.available_bytes is not None else None
        request = self.request_bytes(run, run.max_model_tokens) if run.max_model_tokens else None
        return Capacity(
            tokens=tokens or None,
            block_tokens=page,
            block_bytes=page * max(_rate(stage, run) for stage in stages),
            concurrency=tokens / known if known else None,
            request_bytes=request,
            longest_tokens=min(tokens, run.spec.context_tokens or tokens) if run.available_bytes is not None else None,
            lines=tuple(lines),
        )

    def request_bytes(self, run: Run, n_tokens: int) -> int:
        """Bytes of one rank that a request of ``n_tokens`` holds: its rows and one slot of state."""
        return self.request_sizes(run)(n_tokens)

    def request_sizes(self, run: Run) -> RequestSizes:
        """Rows of whole pages and one slot of state, by length."""
        page, cp = run.block_tokens or 1, run.place.cp
        stages = [(_rate(stage, run), sum(_state(stage, run))) for stage in rank_layers(run)]
        return lambda n: max(rate * round_up(ceil_div(n, cp), page) + state for rate, state in stages)


def _row(layers: tuple[LayerSpec, ...], run: Run, *, windowed: bool | None = None) -> Row:
    """Bytes of a token over layers; ``windowed`` picks those with (without) a window."""
    k = v = other = 0
    for layer in layers:
        for part in layer.cache_parts:
            if windowed is not None and part.retention.bounded != windowed:
                continue
            for row in part.rows:
                side = run.kv_format.k if row.side == "k" else run.kv_format.v
                n = part.heads * side.row_bytes(row.dim)
                k += n if row.name == "k" else 0
                v += n if row.name == "v" else 0
                other += n if row.name == "latent" else 0
                other += index_row_bytes(row.dim) if row.name == "index" else 0
    return Row(k, v, other)


def _share(layers: tuple[LayerSpec, ...], run: Run) -> int:
    """Percent of the full pool that windowed layers have; only models with both kinds have two pools."""
    kinds = {part.retention.bounded for layer in layers for part in layer.cache_parts}
    return run.number("window_pool_percent", SWA_PERCENT) if len(kinds) == 2 else 0


def _rate(layers: tuple[LayerSpec, ...], run: Run) -> int:
    """Bytes per token of the pool; a windowed pool counts with its share."""
    share = _share(layers, run)
    if not share:
        return _row(layers, run).all
    return _row(layers, run, windowed=False).all + _row(layers, run, windowed=True).all * share // 100


def _state(layers: tuple[LayerSpec, ...], run: Run) -> tuple[int, int]:
    """Bytes of one slot on a rank: state and filters."""
    width = STATE_TYPES[run.text("state_type", "f32", tuple(STATE_TYPES))]
    conv = sum(getattr(layer.mixer, "conv_elements", 0) for layer in layers)
    return (sum(layer.state_elements for layer in layers) - conv) * width, conv * HALF_BYTES


def _tokens(layers: tuple[LayerSpec, ...], run: Run) -> int:
    rate = _rate(layers, run)
    left = (run.available_bytes or 0) - sum(_state(layers, run)) * _slots(run)
    return most(lambda n: n * rate <= left, max(left, 0) // rate) if rate else 0


def _slots(run: Run) -> int:
    """Slots of state: one more than sequences (slot 0 takes the writes of padding)."""
    asked = run.number("state_slots", run.sequences or 0)
    return asked + 1 if asked else 0


def _state_lines(layers: tuple[LayerSpec, ...], run: Run) -> list[Line]:
    state, conv = _state(layers, run)
    if not state:
        return []
    n = _slots(run) or 1
    return [
        Line("ssm_gib", state * n / GIB, f"{n} slots of {state} B"),
        Line("conv_gib", conv * n / GIB, f"{n} slots of {conv} B"),
    ]


def _pool_lines(layers: tuple[LayerSpec, ...], run: Run, tokens: int) -> list[Line]:
    rows = ceil_div(tokens, run.place.cp) + (run.block_tokens or 1)  # page 0 takes the writes of padding
    pools = [("", _row(layers, run), rows)]
    share = _share(layers, run)
    if share:
        small = rows * share // 100
        pools = [
            ("full layers", _row(layers, run, windowed=False), rows),
            ("windowed layers", _row(layers, run, windowed=True), small),
        ]
    lines: list[Line] = []
    for what, row, n in pools:
        sizes = {"k_gib": row.k, "v_gib": row.v, "kv_gib": row.all}
        lines += [Line(name, size * n / GIB, f"{n} rows of {size} B", what) for name, size in sizes.items() if size]
    return lines
