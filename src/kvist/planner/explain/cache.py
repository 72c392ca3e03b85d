"""How a model's cache adds up: bytes of a token, of a sequence, of all users, and what its heads save."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from kvist.cost.interval import Interval
from kvist.planner.explain.derivation import Equation, Section, exact
from kvist.planner.plan import Plan
from kvist.spec.format import Element, KVFormat
from kvist.spec.layer import CachePart, StreamRow
from kvist.spec.model import ModelSpec
from kvist.spec.shard import shard, with_drafts
from kvist.units import ceil_div

STATE_BYTES: Final = 4
_WIDTHS: Final = {"k": "d_k b_k", "v": "d_v b_v", "latent": "d_c b_k", "index": "d_i b_k"}


def parts_of(spec: ModelSpec) -> tuple[tuple[str, CachePart, int], ...]:
    """``(label, part, layers)`` for every kind of rows that layers keep, in order of first appearance."""
    counted: dict[CachePart, int] = {}
    for layer in spec.layers:
        for part in layer.cache_parts:
            counted[part] = counted.get(part, 0) + 1
    labels = [label_of(part) for part in counted]
    return tuple(
        (label if labels.count(label) == 1 else f"{label} {labels[:i].count(label) + 1}", part, n)
        for i, (label, (part, n)) in enumerate(zip(labels, counted.items(), strict=True))
    )


def label_of(part: CachePart) -> str:
    """``full``, ``window 512``, ``chunk 8,192``, ``latent``, ``latent / 4``."""
    if part.retention.window_tokens is not None:
        return f"window {part.retention.window_tokens:,}"
    if part.retention.chunk_tokens is not None:
        return f"chunk {part.retention.chunk_tokens:,}"
    name = "latent" if part.rows[0].name == "latent" else "full"
    return name + (f" / {part.every_tokens}" if part.every_tokens > 1 else "")


def rank_spec(plan: Plan) -> ModelSpec:
    """What one rank of the tightest stage keeps, draft layers included."""
    return shard(with_drafts(plan.setup.spec, plan.setup.draft_layers), plan.setup.place, plan.tightest)


def per_token(spec: ModelSpec, fmt: KVFormat, title: str) -> Section:
    """``s_token``: the sum over kinds of layers that keep rows."""
    equations = [
        exact(
            f"s({label})", _formula(part), _numbers(part, n, fmt), n * ceil_div(part.row_bytes(fmt), part.every_tokens)
        )
        for label, part, n in parts_of(spec)
    ]
    total = spec.kv_bytes_per_token(fmt)
    terms = " + ".join(f"{int(e.value.best):,}" for e in equations) or "0"
    equations.append(exact("s_token", "sum over kinds of layers", terms, total))
    return Section(
        title,
        tuple(equations),
        "n layers, h heads that are kept, d widths of K and V (d_c a latent, d_i an index), b bytes of an element",
    )


def _formula(part: CachePart) -> str:
    inner = " + ".join(_WIDTHS[row.name] for row in part.rows)
    whole = f"n h ({inner})" if part.rows[0].name != "latent" else f"n ({inner})"
    return whole + (" / r" if part.every_tokens > 1 else "")


def _numbers(part: CachePart, layers: int, fmt: KVFormat) -> str:
    inner = " + ".join(_row(row, fmt) for row in part.rows)
    heads = "" if part.rows[0].name == "latent" else f" x {part.heads}"
    return f"{layers}{heads} x ({inner})" + (f" / {part.every_tokens}" if part.every_tokens > 1 else "")


def _row(row: StreamRow, fmt: KVFormat) -> str:
    element = fmt.k if row.side == "k" else fmt.v
    width = bytes_of(element)
    return (
        f"{row.dim} x {width:.6g}" if row.dim * width == element.row_bytes(row.dim) else f"{element.row_bytes(row.dim)}"
    )


def bytes_of(element: Element) -> float:
    """Bytes of one element, its share of the scales included."""
    return (element.bits + (element.scale_bits / element.scale_group if element.scale_group else 0)) / 8


def sequence(spec: ModelSpec, fmt: KVFormat, n_tokens: int, title: str) -> Section:
    """Bytes of one sequence of ``n_tokens``: windows capped, states once."""
    equations = []
    for label, part, n in parts_of(spec):
        rows = part.retention.held_tokens(n_tokens) // part.every_tokens
        bounded = part.retention.bounded
        formula = (
            f"s min(n_tokens, {part.retention.window_tokens or part.retention.chunk_tokens:,})"
            if bounded
            else "s n_tokens"
        )
        each = n * part.row_bytes(fmt)
        equations.append(exact(f"S({label})", formula, f"{each:,} x {rows:,}", rows * each))
    if spec.state_elements:
        held = spec.state_elements * STATE_BYTES
        numbers = f"{spec.state_elements:,} x {STATE_BYTES}"
        note = "whatever the length; most engines keep it in 32 bit"
        equations.append(exact("S(state)", "elements b_s", numbers, held, note=note, known=False))
    total = spec.kv_bytes(n_tokens, fmt) + spec.state_elements * STATE_BYTES
    terms = " + ".join(f"{int(e.value.best):,}" for e in equations) or "0"
    equations.append(exact("S", "sum over kinds of layers", terms, total, known=not spec.state_elements))
    return Section(title, tuple(equations))


def users(plan: Plan) -> Section:
    """From one user to all of them, and how many fit. All numbers are of one rank."""
    setup, load = plan.setup, plan.load
    each, own, shared = ceil_div(load.users, setup.replicas), plan.request_bytes, plan.shared_bytes
    line = plan.capacity.line("required_kv_gib")
    how = line.how if line is not None and not shared else "whole blocks, windows with a step's tokens beside them"
    raw = rank_spec(plan).kv_bytes(load.context_tokens, setup.kv_format) + rank_spec(plan).state_elements * STATE_BYTES
    rest = own + shared - raw
    found = [
        exact("S_held", "S in blocks", how, own + shared, note=f"as {setup.engine} holds it: {rest:+,} B of rounding")
    ]
    if shared:
        hit = f"{load.cached_tokens:,} of {load.prompt_tokens:,} prompt tokens"
        found += [
            exact("S_shared", "held once by all users of a rank", hit, shared),
            exact("S_own", "S_held - S_shared", f"{own + shared:,} - {shared:,}", own),
        ]
    name, tail = ("S_own", " + S_shared") if shared else ("S_held", "")
    numbers = f"{each:,} x {own:,}" + (f" + {shared:,}" if shared else "")
    found.append(exact("need", f"users {name}{tail}", numbers, each * own + shared))
    low, best, high = plan.users_fit
    room = plan.budget.available
    whole = (
        f"({max(0.0, room.best):,.0f} - {shared:,}) / {own:,}" if shared else f"{max(0.0, room.best):,.0f} / {own:,}"
    )
    found.append(
        Equation(
            "users_fit",
            f"floor(available / {name})" if not shared else "floor((available - S_shared) / S_own)",
            whole + (f", x {setup.replicas} replicas" if setup.replicas > 1 else ""),
            Interval(low, best, high, room.tag),
            "users",
        )
    )
    title = f"{load.users:,} user{'s' * (load.users > 1)}" + (f", {each:,} on each rank" if setup.replicas > 1 else "")
    return Section(title, tuple(found))


def heads(spec: ModelSpec, fmt: KVFormat) -> Section:
    """What sharing K and V between query heads saves: one KV head for each of them (MHA), as it is, and one (MQA)."""
    shapes = _shapes(spec, fmt)
    found: list[Equation] = []
    for shape, n in shapes.items():
        widths = f"({shape.key_dim} x {bytes_of(fmt.k):.6g} + {shape.value_dim} x {bytes_of(fmt.v):.6g})"
        sizes = {"MHA": (shape.q_heads, shape.every_bytes), "MQA": (1, shape.pair_bytes)}
        sizes[shape.name] = (shape.kv_heads, shape.kept_bytes)
        tail = f" of {n} layers" if len(shapes) > 1 else ""
        for name, (count, size) in sorted(sizes.items(), key=lambda item: -item[1][1]):
            numbers = f"{n} x {shape.kept_bytes}" if name == "latent" else f"{n} x {count} x {widths}"
            note = f"{ratio_text(Fraction(size, shape.every_bytes))} of MHA" + (", this model" * (name == shape.name))
            found.append(exact(name + tail, "", numbers, n * size, note=note))
    about = "every query head its own K and V (MHA), groups of heads share (GQA), all share one (MQA)"
    if len(shapes) == 1:
        shape = next(iter(shapes))
        middle = "latent" if shape.name == "latent" else str(shape.kv_heads)
        ratio = ratio_text(Fraction(shape.kept_bytes, shape.every_bytes))
        about = (
            f"KV heads {shape.q_heads} : {middle} : 1 of {shape.q_heads} query heads "
            f"= 1 : {ratio} : {ratio_text(Fraction(shape.pair_bytes, shape.every_bytes))}"
        )
    return Section("MHA : GQA : MQA, bytes of one token", tuple(found), about)


@dataclass(frozen=True, slots=True)
class _Shape:
    """Heads and widths of a layer, and what it keeps of a token."""

    q_heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    kept_bytes: int
    pair_bytes: int
    latent: bool

    @property
    def every_bytes(self) -> int:
        """A K and a V of its own for every query head."""
        return self.q_heads * self.pair_bytes

    @property
    def name(self) -> str:
        """What people call it."""
        return "latent" if self.latent else {self.q_heads: "MHA", 1: "MQA"}.get(self.kv_heads, "GQA")


def _shapes(spec: ModelSpec, fmt: KVFormat) -> dict[_Shape, int]:
    """How many layers that keep something for their query heads have each shape."""
    counted: dict[_Shape, int] = {}
    for layer in spec.layers:
        if layer.cache_parts and layer.q_heads and layer.key_dim:
            shape = _Shape(
                layer.q_heads,
                layer.cache_heads,
                layer.key_dim,
                layer.value_dim,
                layer.kv_bytes_per_token(fmt),
                fmt.k.row_bytes(layer.key_dim) + fmt.v.row_bytes(layer.value_dim),
                layer.stream_rows[0].name == "latent",
            )
            counted[shape] = counted.get(shape, 0) + 1
    return counted


def ratio_text(ratio: Fraction) -> str:
    """``1/4``; a decimal where the fraction says less."""
    return str(ratio) if ratio.denominator <= 256 and ratio.numerator <= 16 else f"{float(ratio):.3g}"
