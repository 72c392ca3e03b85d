"""The table of bundled models for docs/catalogue.md."""

from collections import Counter

from kvist.planner.models.catalogue import Entry, Evidence, names, spec_named
from kvist.planner.weights.facts import WeightFormat, assumed_weights
from kvist.spec.format import BF16, KVFormat
from kvist.spec.layer import LayerSpec
from kvist.spec.weights import weight_elements
from kvist.units import format_bytes

HALF = KVFormat(BF16, BF16)
CONTEXTS = (1024, 32_768, 131_072)
HOW: dict[Evidence, str] = {"config": "", "facts": ", *facts*", "log": ", *log*"}


def kept(layer: LayerSpec) -> str:
    """What one layer keeps, in words."""
    parts = []
    for part in layer.cache_parts:
        rule = part.retention
        span = f"window {rule.window_tokens:,}" if rule.window_tokens else ""
        span = span or (f"chunk {rule.chunk_tokens:,}" if rule.chunk_tokens else "full")
        rows = "+".join(str(row.dim) for row in part.rows)
        every = f" per {part.every_tokens} tokens" if part.every_tokens > 1 else ""
        parts.append(f"{span} {part.heads} x {rows}{every}")
    if layer.state_elements and not parts:
        parts.append(f"state {format_bytes(4 * layer.state_elements)}")
    return " and ".join(parts) or ("shared" if layer.q_heads else "nothing")


def row(entry: Entry, others: list[Entry]) -> str:
    """One model, with the other names of its shape."""
    spec = entry.spec
    kinds = Counter(kept(layer) for layer in spec.layers)
    per_token = [f"{round(spec.kv_bytes(n, HALF) / n):,}" for n in CONTEXTS]
    weights = entry.weights_format
    facts = assumed_weights(
        spec,
        WeightFormat.parse(entry.weights_format),
        beside_elements=entry.tower_elements,
        elements=entry.elements,
    )
    if facts.total_bytes:
        elements = entry.elements or weight_elements(spec).total + entry.tower_elements
        weights = f"{elements / 1e9:.4g} B, {entry.weights_format}, {format_bytes(facts.total_bytes)}"
    else:
        weights = "not known"
    named = "<br>".join([f"**{entry.name}**", *(also(other, entry) for other in others)])
    source = entry.source.partition("; ")[2] or entry.source
    cells = [named, str(len(spec.layers)), "<br>".join(f"{n}: {what}" for what, n in kinds.items()), *per_token]
    return "| " + " | ".join([*cells, weights, source.replace("|", "/") + HOW[entry.evidence]]) + " |"


def also(other: Entry, first: Entry) -> str:
    """Another name, with its weights' format where that differs."""
    return other.name + (f" ({other.weights_format})" if other.weights_format != first.weights_format else "")


def catalogue_table() -> str:
    """All bundled models, one line for each distinct shape."""
    groups: dict[object, list[Entry]] = {}
    for name in names():
        entry = spec_named(name)
        groups.setdefault((entry.spec.layers, entry.spec.vocab, entry.spec.context_tokens), []).append(entry)
    lines = [
        f"{len(groups)} models under {len(names())} names.",
        "",
        "| model | layers | what the cache keeps | at 1K | at 32K | at 128K | weights | read from |",
        "|---|---:|---|---:|---:|---:|---|---|",
    ]
    lines += [row(entries[0], entries[1:]) for entries in groups.values()]
    return "\n".join(lines)
