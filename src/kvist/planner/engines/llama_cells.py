"""Cells of llama.cpp: how many rows each kind of layer gets, and what a row weighs.

Sources: ``src/llama-kv-cache.cpp``, ``src/llama-kv-cache-iswa.cpp``, ``src/llama-memory-recurrent.cpp``,
``src/llama-model.cpp`` (the split over devices).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvist.errors import BadValue
from kvist.planner.engines.base import Line, Run
from kvist.spec.format import F16, Element
from kvist.spec.layer import Latent, LayerSpec
from kvist.units import MIB, ceil_div, round_up

UBATCH_TOKENS: Final = 512
F32_BYTES: Final = 4

KNOBS: Final = {
    "n_ctx": "cells of all sequences together (-c); without it: the longest request times the sequences",
    "pad": "cells are rounded up to this: 256, in older versions 32",
    "ubatch": "tokens of one physical batch (-ub), which a windowed cache has room for beside its window",
    "unified": "true: all sequences share one stream of cells (--kv-unified)",
    "windows": "own: a smaller cache; full: all cells (--swa-full); none: one cache for all layers",
    "window_format": "same, or f16: what windowed layers hold when the rest is packed",
    "mla": "latent (stored once), twice (as K and again as V), or expanded (all heads)",
    "rollback": "states kept beside the last one, so that drafts can be taken back (rs_seq)",
    "devices": "GPUs that share the layers evenly, the output layer counting as one",
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of one kind of layers: keys, values, and the cells they were counted with (all streams)."""

    what: str
    k: int
    v: int
    cells: int
    layers: tuple[int, ...]

    @property
    def all(self) -> int:
        """Keys and values."""
        return self.k + self.v


def streams(run: Run) -> int:
    """Separate runs of cells: one for each sequence, or one for all."""
    return 1 if run.switch("unified", False) else (run.sequences or 1)


def cells(run: Run, n_ctx: int) -> int:
    """Cells of one stream for ``n_ctx`` tokens of all sequences."""
    return round_up(max(ceil_div(n_ctx, streams(run)), 1), run.number("pad", 256, low=1))


def window_cells(run: Run, size_tokens: int, whole: int) -> int:
    """Cells of one stream of a windowed layer: windows of all its sequences and one micro-batch, at most ``whole``."""
    if run.text("windows", "own", ("own", "full", "none")) == "full":
        return whole
    sharing = (run.sequences or 1) if run.switch("unified", False) else 1
    wanted = size_tokens * sharing + run.number("ubatch", UBATCH_TOKENS, low=1)
    return min(round_up(min(whole, wanted), run.number("pad", 256, low=1)), whole)


def n_ctx(run: Run) -> int:
    """Tokens of all sequences together."""
    if "n_ctx" in run.knobs:
        return run.number("n_ctx", 0, low=1)
    if run.max_model_tokens is None:
        raise BadValue("max_model_tokens", None, "the longest request, or the knob n_ctx")
    return run.max_model_tokens * (run.sequences or 1)


def row_bytes(layer: LayerSpec, run: Run, *, windowed: bool) -> tuple[int, int]:
    """Bytes of one cell of one layer: keys and values. A latent counts as key."""
    k, v = run.kv_format.k, run.kv_format.v
    if windowed and run.text("window_format", "same", ("same", "f16")) == "f16":
        k = v = F16
    mode = run.text("mla", "latent", ("latent", "twice", "expanded"))
    if isinstance(layer.mixer, Latent) and mode != "latent":
        return _latent_rows(layer, layer.mixer, mode, k, v)
    side = {"k": k, "v": v}
    keys = values = 0
    for part in layer.cache_parts:
        for row in part.rows:
            n = part.heads * side[row.side].row_bytes(row.dim)
            keys += n if row.name != "v" else 0
            values += n if row.name == "v" else 0
    return keys, values


def _latent_rows(layer: LayerSpec, latent: Latent, mode: str, k: Element, v: Element) -> tuple[int, int]:
    if mode == "twice":
        return k.row_bytes(latent.rank + latent.rope_dim), v.row_bytes(latent.rank)
    return layer.q_heads * k.row_bytes(layer.key_dim), layer.q_heads * v.row_bytes(layer.value_dim)


def sizes(layers: tuple[LayerSpec, ...], run: Run, whole: int) -> list[Sizes]:
    """Full layers, windowed layers and recurrent state, each where there is any. ``whole``: cells of one stream."""
    out: list[Sizes] = []
    n_streams = streams(run)
    kinds: dict[int, list[LayerSpec]] = {}
    apart = run.text("windows", "own", ("own", "full", "none")) != "none"
    for layer in layers:
        if layer.owns_cache:
            kept = layer.retention
            limit = (kept.window_tokens or kept.chunk_tokens or 0) if apart else 0
            kinds.setdefault(limit, []).append(layer)
    for limit in sorted(kinds):
        n = window_cells(run, limit, whole) if limit else whole
        rows = [row_bytes(layer, run, windowed=bool(limit)) for layer in kinds[limit]]
        k, v = (n * n_streams * sum(row[i] for row in rows) for i in (0, 1))
        what = "windowed layers" if limit else "full layers"
        out.append(Sizes(what, k, v, n * n_streams, tuple(layer.index for layer in kinds[limit])))
    recurrent = [layer for layer in layers if layer.state_elements]
    if recurrent:
        seqs = run.sequences or 1
        held = seqs * (1 + run.number("rollback", 0))
        filters = sum(getattr(layer.mixer, "conv_elements", 0) for layer in recurrent)
        states = sum(layer.state_elements for layer in recurrent) - filters
        index = tuple(layer.index for layer in recurrent)
        out.append(Sizes("recurrent state", states * F32_BYTES * held, filters * F32_BYTES * held, seqs, index))
    return out


def device_of(layer: int, n_layers: int, devices: int) -> int:
    """The GPU of a layer when layers and the output layer are dealt out evenly."""
    return min(layer * devices // (n_layers + 1), devices - 1)


def lines_of(found: list[Sizes], how: str) -> list[Line]:
    """Total, K and V of every kind, as the log prints them; for a recurrent state K is S and V is R."""
    lines: list[Line] = []
    for s in found:
        said = f"{s.cells} cells, {len(s.layers)} layers{how}"
        lines += [
            Line("kv_mib", s.all / MIB, said, s.what),
            Line("kv_mib_k", s.k / MIB, said, s.what),
            Line("kv_mib_v", s.v / MIB, said, s.what),
            Line("cells", s.cells, said, s.what),
        ]
    return lines
