"""Two plans side by side: first what was changed, then what follows from it, each with its cause and the numbers.

Consequences stand in causal order: what a token takes, what memory is left for it, how much fits, how long a step is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kvist.cost.device import Device
from kvist.planner.decide.consequences import CONSEQUENCES, Consequence
from kvist.planner.plan import Plan
from kvist.spec.format import KVFormat
from kvist.units import format_bytes, format_seconds

Value = str | float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs. ``ratio`` is after over before for numbers, None for words or from nothing.

    ``setting``: somebody changed it; otherwise it follows from what stands above it, as ``why`` says.
    """

    name: str
    before: Value
    after: Value
    unit: str
    ratio: float | None
    why: str
    setting: bool = False


def compare(a: Plan, b: Plan) -> tuple[Difference, ...]:
    """What differs from ``a`` to ``b``, settings first. Empty for equal plans."""
    found = {d.name: d for d in _settings(a, b)}
    for fact in CONSEQUENCES:
        before, after = fact.of(a), fact.of(b)
        if before == after:
            continue
        ratio = after / before if before > 0 and after >= 0 else None
        why = _why(before, after, fact, found)
        found[fact.name] = Difference(fact.name, before, after, fact.unit, ratio, why)
    if a.verdict.fits != b.verdict.fits:
        said = ["fits" if p.verdict.fits else "does not fit" for p in (a, b)]
        found["verdict"] = Difference("verdict", said[0], said[1], "", None, b.verdict.sentence)
    return tuple(found.values())


_SETTINGS: Final = (
    ("engine", "engine", ""), ("batched_tokens", "tokens of a step", "tokens"), ("sequences", "sequences", "sequences"),
    ("memory_fraction", "memory fraction", "share"), ("block_tokens", "tokens of a block", "tokens"),
    ("draft_layers", "draft layers", "layers"), ("draft_tokens", "draft tokens", "tokens"),
    ("weights_how", "weights' source", ""), ("compute", "format of products", ""),
)  # fmt: skip
_LOAD: Final = (
    ("context_tokens", "context", "tokens"), ("output_tokens", "output", "tokens"), ("users", "users", "users"),
    ("hit_rate", "hit rate", "share"),
)  # fmt: skip


def _settings(a: Plan, b: Plan) -> list[Difference]:
    """What was asked for, and differs."""
    return [
        Difference(name, before, after, unit, _ratio(before, after), why or f"changed: {before} -> {after}", True)
        for name, before, after, unit, why in _asked(a, b)
        if before != after
    ]


def _ratio(before: Value, after: Value) -> float | None:
    if isinstance(before, int | float) and isinstance(after, int | float) and before > 0:
        return after / before
    return None


def _asked(a: Plan, b: Plan) -> Iterator[tuple[str, Value, Value, str, str]]:
    """(name, before, after, unit, why) of every setting; why is empty where the values say it all."""
    x, y = a.setup, b.setup
    if x.spec != y.spec:
        first, second = (s.name or s.architecture for s in (x.spec, y.spec))
        other = second if second != first else f"{second} (changed)"
        yield "model", first, other, "", f"changed: {len(x.spec.layers)} -> {len(y.spec.layers)} layers"
    if x.device != y.device:
        same = x.device.name == y.device.name
        yield "device", x.device.name, y.device.name + " (changed)" * same, "", _device_why(x.device, y.device)
    yield "placement", x.place.name, y.place.name, "", f"changed: {x.place.name} -> {y.place.name}"
    yield "KV format", x.kv_format.name, y.kv_format.name, "", _format_why(x.kv_format, y.kv_format)
    for name, before, after in (
        ("bytes of a weight", x.widths.dense, y.widths.dense),
        ("bytes of an expert", x.widths.expert, y.widths.expert),
        ("bytes of a weight of the head", x.widths.head, y.widths.head),
    ):
        yield name, before, after, "bytes", f"changed: {before:.4g} B -> {after:.4g} B in each weight"
    for field_name, name, unit in _SETTINGS:
        yield name, getattr(x, field_name), getattr(y, field_name), unit, ""
    knobs = [", ".join(f"{k}={v}" for k, v in sorted(s.knobs.items())) or "defaults" for s in (x, y)]
    yield "knobs", knobs[0], knobs[1], "", ""
    given = ["assumed" if s.overheads is None else "given" for s in (x, y)]
    again = given[1] + " (changed)" * (x.overheads != y.overheads and given[0] == given[1])
    yield "overheads", given[0], again, "", ""
    yield "clock", type(x.cost).__name__, type(y.cost).__name__, "", "changed: what seconds are counted with"
    for field_name, name, unit in _LOAD:
        yield name, getattr(a.load, field_name), getattr(b.load, field_name), unit, ""


def _format_why(before: KVFormat, after: KVFormat) -> str:
    """``KV halves: 2 B -> 1 B per element``, scales included."""
    narrow, wide = (_element_bytes(f) for f in (after, before))
    ratio = narrow / wide
    verb = {0.5: "halves", 0.25: "is a quarter", 1.0: "stays", 2.0: "doubles"}.get(ratio, f"is x{ratio:.3g}")
    return f"KV {verb}: {wide:.4g} B -> {narrow:.4g} B per element"


def _element_bytes(fmt: KVFormat) -> float:
    """Bytes of one element of K and V on average, over a row long enough that scales are counted as they come."""
    n = 1 << 10
    return (fmt.k.row_bytes(n) + fmt.v.row_bytes(n)) / 2 / n


def _device_why(x: Device, y: Device) -> str:
    return (
        f"changed: {format_bytes(x.capacity_bytes)} at {x.bandwidth_bytes_per_s / 1e9:.4g} GB/s -> "
        f"{format_bytes(y.capacity_bytes)} at {y.bandwidth_bytes_per_s / 1e9:.4g} GB/s"
    )


def _why(before: float, after: float, fact: Consequence, found: Mapping[str, Difference]) -> str:
    """The nearest causes that differ, each with its numbers."""
    said = [_cause(found[name]) for name in fact.causes if name in found]
    because = "; ".join(said) or "figures of the setup changed that have no name here"
    return f"{shown(before, fact.unit)} -> {shown(after, fact.unit)}: {because}"


def _cause(d: Difference) -> str:
    if d.setting:
        return f"{d.name} {d.why}" if d.why.startswith("changed") else d.why
    return f"{d.name} {shown(d.before, d.unit)} -> {shown(d.after, d.unit)}"


def shown(value: Value, unit: str) -> str:
    """A value as people read it."""
    if value is None:
        return "none"
    if isinstance(value, str):
        return value
    if unit == "bytes":
        return format_bytes(value)
    if unit == "seconds":
        return format_seconds(value)
    return f"{value:,.0f} {unit}" if float(value).is_integer() else f"{value:,.4g} {unit}"
