"""What ``kvist model PATH`` says, as plain data: what a model is, what its cache costs, how a block is cut."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any, Final

from kvist.errors import ModelError
from kvist.spec.format import F16, F32, INT8T, KVFormat
from kvist.spec.layer import Chunked, Compressed, Full, Latent, LayerSpec, NoMixer, Recurrent, Shared, Window
from kvist.spec.layout import CacheLayout, Group
from kvist.spec.model import ModelSpec
from kvist.spec.weights import weight_elements
from kvist.units import format_bytes

LENGTHS: Final = (1024, 8192, 32_768)
FORMATS: Final = (KVFormat(F32, F32), KVFormat(F16, F16), KVFormat(INT8T, INT8T))
STATE_ELEMENT_BYTES: Final = 4


def ranges(numbers: list[int]) -> str:
    """``[0, 1, 2, 4]`` -> ``0-2, 4``; an evenly spaced list -> ``5, 11, ... 59``."""
    steps = {b - a for a, b in zip(numbers, numbers[1:], strict=False)}
    if len(numbers) > 3 and len(steps) == 1 and steps != {1}:
        return f"{numbers[0]}, {numbers[1]}, ... {numbers[-1]}"
    runs: list[str] = []
    for _, members in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        run = [n for _, n in members]
        runs.append(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}")
    return ", ".join(runs) if len(runs) <= 6 else f"{', '.join(runs[:4])}, ... {runs[-1]}"


def _sees(layer: LayerSpec) -> str:
    match layer.mixer:
        case Full():
            return "everything"
        case Window(size, sinks):
            return f"the last {size:,}" + (f" and the first {sinks}" if sinks else "")
        case Chunked(size):
            return f"its chunk of {size:,}"
        case Latent():
            return "everything, as one latent row"
        case Compressed(window, ratio):
            return f"the last {window:,}" + (f", and 1 row for every {ratio} before" if ratio else "")
        case Shared(owner, window):
            return f"layer {owner}'s cache" + (f", the last {window:,}" if window else "")
        case Recurrent(kind):
            return f"a state ({kind.replace('_', ' ')})"
        case NoMixer():
            return "only the token itself"


def _keeps(layer: LayerSpec) -> str:
    """Streams and their widths, or what is kept instead."""
    if layer.state_elements and not layer.owns_cache:
        return f"{format_bytes(layer.state_elements * STATE_ELEMENT_BYTES)} a sequence"
    parts = []
    for part in layer.cache_parts:
        rows = " + ".join(f"{r.name} {r.dim}" for r in part.rows)
        heads = f"{part.heads} x ({rows})" if part.heads > 1 else rows
        parts.append(heads + (f" every {part.every_tokens}" if part.every_tokens > 1 else ""))
    return "; ".join(parts) or "nothing"


def _runs(spec: ModelSpec, fmt: KVFormat, n_tokens: int) -> list[dict[str, Any]]:
    """Layers that are alike, in order of first appearance."""
    alike: dict[tuple[object, ...], list[LayerSpec]] = {}
    for layer in spec.layers:
        mixer = ("shared",) if isinstance(layer.mixer, Shared) else (layer.mixer,)
        look = (*mixer, _sees(layer), layer.q_heads, layer.kv_heads, layer.key_dim, layer.value_dim)
        alike.setdefault(look, []).append(layer)
    out = []
    for layers in alike.values():
        first, n = layers[0], len(layers)
        held = sum(layer.kv_bytes(n_tokens, fmt) for layer in layers)
        state = sum(layer.state_elements for layer in layers) * STATE_ELEMENT_BYTES
        out.append(
            {
                "layers": [layer.index for layer in layers],
                "span": ranges([layer.index for layer in layers]),
                "count": n,
                "mixer": type(first.mixer).__name__.lower(),
                "sees": _sees(first),
                "q_heads": first.q_heads,
                "kv_heads": first.cache_heads,
                "key_dim": first.key_dim,
                "value_dim": first.value_dim,
                "keeps": _keeps(first),
                "bytes_per_token": sum(layer.kv_bytes_per_token(fmt) for layer in layers),
                "state_bytes": state,
                "sequence_bytes": held + state,
            }
        )
    return out


def _group(group: Group, layout: CacheLayout) -> dict[str, Any]:
    padding = layout.padding_bytes_per_block(group)
    retention = group.retention
    keeps = "everything"
    if retention.window_tokens is not None:
        keeps = f"the last {retention.window_tokens:,}" + (f" + {retention.sinks} sinks" if retention.sinks else "")
    elif retention.chunk_tokens is not None:
        keeps = f"chunks of {retention.chunk_tokens:,}"
    return {
        "id": int(group.id),
        "layers": list(group.layers),
        "span": ranges(list(group.layers)),
        "places": group.places,
        "keeps": keeps,
        "tokens_per_block": group.tokens_per_block,
        "rows_per_block": group.rows_per_block,
        "kv_heads": group.kv_heads,
        "record_bytes": group.layer_bytes,
        "head_bytes": group.head_bytes,
        "used_bytes": group.used_bytes,
        "padding_bytes": padding,
        "padding_percent": round(100 * padding / layout.block_bytes, 2),
        "streams": [
            {"name": s.row.name, "dim": s.row.dim, "element": s.element.name, "offset_bytes": s.offset_bytes}
            | {"bytes": s.tile_bytes}
            for s in group.streams
        ],
    }


def _lengths(spec: ModelSpec) -> list[int]:
    lengths = [n for n in LENGTHS if not spec.context_tokens or n < spec.context_tokens]
    return [*lengths, spec.context_tokens] if spec.context_tokens else lengths


def _growth(spec: ModelSpec, fmt: KVFormat) -> int:
    """Bytes that one more token adds when every window and chunk is full."""
    parts = [part for layer in spec.layers for part in layer.cache_parts if not part.retention.bounded]
    return sum(-(-part.row_bytes(fmt) // part.every_tokens) for part in parts)


def _rollback(spec: ModelSpec) -> str:
    states = [layer.index for layer in spec.layers if not layer.can_rollback]
    windows = sorted(
        {x.retention.window_tokens or 0 for x in spec.layers if x.owns_cache and x.retention.window_tokens}
    )
    if states:
        return f"drafts and edits need a snapshot first: layers {ranges(states)} keep a state that only moves forward"
    if windows:
        last = " and ".join(f"{w:,}" for w in windows)
        return f"drafts can be cut again; a deeper cut recomputes what windows of {last} tokens have let go"
    return "any tail can be cut, at once and for nothing"


def _sharing(spec: ModelSpec, layout: CacheLayout) -> str:
    if spec.state_elements:
        return "prefixes are shared where a state was kept: at its exact position, not between"
    bounded = any(g.retention.bounded for g in layout.groups)
    tail = "; windows need only their own last blocks of it" if bounded else ""
    return f"prefixes are shared in runs of {layout.span_tokens:,} tokens{tail}"


def describe(spec: ModelSpec, layout: CacheLayout, kinds: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Everything the table shows, as JSON-able data. Sizes in bytes; per-layer numbers in the layout's format.

    ``kinds``: bytes of each kind of matrix that loading makes of the files at hand.
    """
    try:
        weights = weight_elements(spec)
        counted: dict[str, int] | None = {"total": weights.total, "active": weights.active}
    except ModelError:
        counted = None
    lengths = _lengths(spec)
    state = spec.state_elements * STATE_ELEMENT_BYTES
    return {
        "name": spec.name,
        "architecture": spec.architecture,
        "layers": len(spec.layers),
        "hidden": spec.hidden,
        "vocab": spec.vocab,
        "context_tokens": spec.context_tokens,
        "shape_only": spec.shape_only,
        "weights": counted,
        "weight_bytes": spec.weight_bytes,
        "loaded_bytes": dict(kinds or {}),
        "bytes_per_token": {fmt.name: spec.kv_bytes_per_token(fmt) for fmt in FORMATS},
        "bytes_per_later_token": {fmt.name: _growth(spec, fmt) for fmt in FORMATS},
        "state_bytes": state,
        "sequence_bytes": {fmt.name: {str(n): spec.kv_bytes(n, fmt) + state for n in lengths} for fmt in FORMATS},
        "runs": _runs(spec, layout.format, lengths[-1]),
        "format": layout.format.name,
        "block_bytes": layout.block_bytes,
        "span_tokens": layout.span_tokens,
        "state_blocks": layout.state_blocks,
        "groups": [_group(group, layout) for group in layout.groups],
        "rollback": _rollback(spec),
        "sharing": _sharing(spec, layout),
        "runnable": not spec.unsupported and not spec.shape_only,
        "unsupported": list(spec.unsupported),
        "notes": list(spec.notes),
    }
