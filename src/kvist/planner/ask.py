"""From a person's words to a plan: names are looked up, what was left open is settled by rules that are said aloud."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from kvist.cost.catalogue import device as device_named
from kvist.cost.device import Device
from kvist.cost.interval import Interval
from kvist.cost.roofline import Roofline, StepCost
from kvist.cost.work import Widths
from kvist.errors import BadValue, KvistError
from kvist.planner.engines.registry import cache_types
from kvist.planner.engines.registry import engine as engine_named
from kvist.planner.models.find import Found, find
from kvist.planner.plan import Plan, plan, run_of
from kvist.planner.setup import MOST_DRAFTS, Load, Setup
from kvist.planner.weights.facts import WeightFacts, WeightFormat, countable, rank_weight_bytes, widths_of
from kvist.spec.format import KVFormat
from kvist.spec.model import ModelSpec
from kvist.spec.place import Placement
from kvist.spec.shard import shard, with_drafts
from kvist.units import GIB, format_bytes

if TYPE_CHECKING:
    from kvist.cost.measured import MeasuredMachine

HERE: Final = "here"
DEFAULT_CONTEXT: Final = 8192
DEFAULT_OUTPUT: Final = 256
MOST_DEVICES: Final = 16_384
FEWEST_BATCHED_TOKENS: Final = 16
BIG_BYTES: Final = 70 * GIB
"""From this memory on servers size their steps generously (the rule of vLLM's defaults)."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. None and ``auto`` are settled by ``resolve``, which says how."""

    model: str
    device: str = ""
    count: int = 1
    context: int | None = None
    output: int | None = None
    users: int = 1
    hit_rate: float = 0.0
    kv_format: str = "auto"
    weights: str = "auto"
    engine: str = "auto"
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    ep: int = 1
    cp: int = 1
    attention_dp: bool = False
    batched_tokens: int | None = None
    sequences: int | None = None
    memory_fraction: float | None = None
    block_tokens: int | None = None
    draft_layers: int = 0
    draft_tokens: int = 0
    shape_only: bool = False
    online: bool = True
    knobs: Mapping[str, str | int | bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Habits:
    """What an engine does when nobody says otherwise: tokens of a step, sequences at a time, share of the memory."""

    batched_tokens: int
    sequences: int
    memory_fraction: float
    kv_format: str


def habits(engine: str, device: Device) -> Habits:
    """An engine's defaults on a device: what its own documentation says."""
    big = device.memory_bytes >= BIG_BYTES
    if engine == "kvist":
        return Habits(512, 64, 0.9, "f16")
    if engine == "sglang":
        return Habits(8192 if big else 2048, 256, 0.88, "bf16")
    if engine in ("llama.cpp", "ik_llama.cpp", "ipex-llm"):
        return Habits(512, 1, 1.0, "f16")
    return Habits(8192 if big else 2048, 1024 if big else 256, 0.9, "bf16")


def answer(question: Question, machine: MeasuredMachine | None = None) -> Plan:
    """The plan for a question. Raises ``KvistError`` for what cannot be: see ``resolve`` and ``plan``."""
    setup, load = resolve(question, machine)
    return plan(setup, load)


def resolve(question: Question, machine: MeasuredMachine | None = None) -> tuple[Setup, Load]:
    """Settle every open point. ``machine`` is a measured one, planned for by the device name ``here``.

    Raises ``BadValue`` for an unknown model or device, counts that do not fit together, heads that do not divide.
    """
    _check(question)
    found = find(question.model, online=question.online, shape_only=question.shape_only)
    device, notes = _device(question, machine)
    engine = question.engine if question.engine != "auto" else "vllm" if device.kind in ("gpu", "npu") else "kvist"
    usual = habits(engine, device)
    place, more = _place(question, found.spec)
    _check_experts(place, found.spec)
    fmt = _cache_format(question, usual, engine)
    facts, said = _weights(question, found, engine)
    widths = _widths(facts, found.spec, device)
    if machine is not None and question.device in ("", HERE):
        notes.extend((*machine.using(fmt).caveats, *machine.other_weights(widths.dense)))
    setup = Setup(
        spec=found.spec,
        device=device,
        weights=_with_drafts(_on_ranks(facts, found.spec, place), question, facts, found.spec, place),
        weights_how=facts.how,
        widths=widths,
        compute=_compute(facts.format),
        cost=_cost(question, device, machine, facts.format, fmt),
        place=place,
        kv_format=fmt,
        engine=engine,
        batched_tokens=usual.batched_tokens if question.batched_tokens is None else question.batched_tokens,
        sequences=usual.sequences if question.sequences is None else question.sequences,
        sequences_fixed=question.sequences is not None,
        memory_fraction=usual.memory_fraction if question.memory_fraction is None else question.memory_fraction,
        block_tokens=question.block_tokens,
        draft_layers=question.draft_layers,
        draft_tokens=question.draft_tokens,
        knobs=question.knobs,
        notes=tuple(dict.fromkeys((*notes, *more, *said, *_of_drafts(question, (*found.notes, *found.spec.notes))))),
    )
    return _able(setup) if question.engine == "auto" else setup, _load(question, found.spec)


def _check(question: Question) -> None:
    """Counts that are refused before anything is looked up."""
    if not 0 <= question.draft_layers <= MOST_DRAFTS:
        raise BadValue("draft_layers", question.draft_layers, f"a count from 0 to {MOST_DRAFTS}")
    if question.batched_tokens is not None and question.batched_tokens < FEWEST_BATCHED_TOKENS:
        raise BadValue("batched_tokens", question.batched_tokens, f"a count >= {FEWEST_BATCHED_TOKENS}")
    if question.attention_dp and question.tp == 1:
        raise BadValue("attention_dp", True, "a tensor-parallel group of two ranks or more (tp is 1)")


def _check_experts(place: Placement, spec: ModelSpec) -> None:
    if place.ep > 1 and not any(x.ffn is not None and x.ffn.experts for x in spec.layers):
        raise BadValue("ep", place.ep, "1: the model has no experts to deal out")


def _cache_format(question: Question, usual: Habits, engine: str) -> KVFormat:
    """The cache's format, one that the engine has. Raises ``BadValue`` naming those."""
    if question.kv_format == "auto":
        return KVFormat.planned(usual.kv_format)
    fmt, known = KVFormat.planned(question.kv_format), cache_types(engine)
    if fmt.k.name not in known or fmt.v.name not in known:
        raise BadValue("kv_format", question.kv_format, f"one that {engine} has: {', '.join(known)}, or K/V of them")
    return fmt


def _of_drafts(question: Question, notes: tuple[str, ...]) -> list[str]:
    """A model's notes, with what is and is not planned of its draft layers."""
    if not question.draft_layers:
        return list(notes)
    kept = [note for note in notes if "multi-token-prediction" not in note]
    return [*kept, "draft layers take weights and cache here; their time and the tokens they save are not planned"]


def _able(setup: Setup) -> Setup:
    """The setup with an engine that can hold this model: kvist's own layout where the usual one's is not known."""
    try:
        engine_named(setup.engine).request_bytes(run_of(setup), 1)
    except KvistError as error:
        if setup.engine == "kvist":
            raise
        return replace(
            setup, engine="kvist", notes=(*setup.notes, f"planned with kvist's own block layout: {error.what}")
        )
    return setup


def _load(question: Question, spec: ModelSpec) -> Load:
    limit = spec.context_tokens or DEFAULT_CONTEXT
    context = question.context if question.context is not None else min(DEFAULT_CONTEXT, limit)
    output = min(DEFAULT_OUTPUT, context) if question.output is None else question.output
    return Load(context, output, question.users, question.hit_rate)


def _device(question: Question, machine: MeasuredMachine | None) -> tuple[Device, list[str]]:
    if question.device and question.device != HERE:
        found = device_named(question.device)
        unknown = found.kind in ("gpu", "npu") and not found.usable_bytes
        said = (
            f"{found.name}: what its driver leaves of {format_bytes(found.memory_bytes)} is not known, all is counted"
        )
        return found, [said] if unknown else []
    if machine is None:
        raise BadValue(
            "device",
            question.device or None,
            "the name of a device, such as H100",
            remedy="name one (--devices lists them), or measure this machine first (--measure)",
        )
    return machine.device(), ["times come from this machine's own measurement"]


def _cost(
    question: Question, device: Device, machine: MeasuredMachine | None, weights: WeightFormat, fmt: KVFormat
) -> StepCost:
    if machine is not None and question.device in ("", HERE):
        return machine.using(fmt)
    return Roofline(device, _compute(weights))


def _place(question: Question, spec: ModelSpec) -> tuple[Placement, list[str]]:
    """Degrees of parallelism: as asked, or the widest tensor parallelism that divides the heads, then replicas."""
    if not 1 <= question.count <= MOST_DEVICES:
        raise BadValue("count", question.count, f"a count from 1 to {MOST_DEVICES:,}")
    asked = {"tp": question.tp, "pp": question.pp, "dp": question.dp}
    given = {name: n for name, n in asked.items() if n is not None}
    fixed = {"ep": question.ep, "cp": question.cp, "attention_dp": question.attention_dp}
    if not given:
        return _auto(question.count, spec, fixed)
    product = 1
    for name, n in given.items():
        if n < 1:
            raise BadValue(name, n, "a count >= 1")
        product *= n
    count = question.count if question.count > 1 else product
    if count % product:
        said = " * ".join(f"{name} {n}" for name, n in given.items())
        raise BadValue("count", count, f"a multiple of {said} = {product}")
    rest = next((name for name in ("dp", "tp", "pp") if name not in given), None)
    if rest is not None:
        given[rest] = count // product
    elif count != product:
        raise BadValue("count", count, f"tp * pp * dp = {product}")
    place = Placement(**given, **fixed)  # type: ignore[arg-type]
    _try(spec, place)
    return place, []


def _auto(count: int, spec: ModelSpec, fixed: dict[str, int | bool]) -> tuple[Placement, list[str]]:
    failure: KvistError | None = None
    for tp in sorted((n for n in range(1, count + 1) if count % n == 0), reverse=True):
        try:
            place = Placement(tp=tp, dp=count // tp, **fixed)  # type: ignore[arg-type]
            _try(spec, place)
        except KvistError as error:
            failure = failure or error
            continue
        notes = [] if count == 1 else [f"{count} devices as {place.name}: the widest that divides the model's heads"]
        return place, notes
    assert failure is not None
    raise failure


def _try(spec: ModelSpec, place: Placement) -> None:
    for stage in range(place.pp):
        shard(spec, place, stage)


def _weights(question: Question, found: Found, engine: str) -> tuple[WeightFacts, list[str]]:
    """What the weights weigh, in the format that is asked for, or as the files have them and the engine loads them."""
    if not countable(found.spec) and not found.weights.total_bytes:
        return found.weights, ["only the cache is planned: nothing says what the weights weigh"]
    if question.weights == "auto":
        return (found.weights.as_loaded() if engine == "kvist" else found.weights), []
    return found.weights.packed_as(found.spec, WeightFormat.parse(question.weights)), []


def _on_ranks(facts: WeightFacts, spec: ModelSpec, place: Placement) -> tuple[Interval, ...]:
    if not countable(spec) and not facts.total_bytes:
        return tuple(Interval.exactly(0.0) for _ in range(place.pp))
    return tuple(facts.on_rank(spec, place, stage) for stage in range(place.pp))


def _with_drafts(
    ranks: tuple[Interval, ...], question: Question, facts: WeightFacts, spec: ModelSpec, place: Placement
) -> tuple[Interval, ...]:
    """The weights of draft layers added to the last stage: each weighs what the layer it is like does."""
    if question.draft_layers < 1 or not countable(spec):
        return ranks
    alone = replace(place, pp=1)
    with_, without = (
        rank_weight_bytes(s, facts.format, alone) for s in (with_drafts(spec, question.draft_layers), spec)
    )
    more = Interval(with_.low - without.low, with_.best - without.best, with_.high - without.high)
    return (*ranks[:-1], ranks[-1] + more)


def _widths(facts: WeightFacts, spec: ModelSpec, device: Device) -> Widths:
    """Bytes of a weight when read; activations are floats on a CPU, half as wide elsewhere."""
    w, more = widths_of(spec, facts.format) if countable(spec) else Widths(), facts.repacked
    return Widths(w.dense * more, w.expert * more, w.head * more, 4.0 if device.kind == "cpu" else 2.0)


_COMPUTE: Final = {"fp8": "fp8", "int8": "int8", "nvfp4": "fp4", "mxfp8": "fp8", "f32": "f32", "f16": "f16"}


def _compute(weights: WeightFormat) -> str:
    """Format of the products: weights that are only stored narrow are widened to 16 bit first."""
    return _COMPUTE.get(weights.name, "bf16")


def with_format(setup: Setup, fmt: KVFormat) -> Setup:
    """The same setup with another KV format."""
    return replace(setup, kv_format=fmt)
