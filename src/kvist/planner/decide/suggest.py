"""What stands beside every plan: where its limits turn, and what would help most, worked out from the question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kvist.cost.measured import MeasuredMachine
from kvist.planner.ask import HERE, Question, resolve
from kvist.planner.decide.advice import Suggestion, advise
from kvist.planner.decide.crossover import batch_turns, decode_turns, linear_batch_turns, prefill_turns
from kvist.planner.decide.slo import Slo
from kvist.planner.decide.tiers import usual_tiers
from kvist.planner.decide.turns import Turn
from kvist.planner.decide.variants import (
    Offloaded,
    SharedPrefix,
    Variant,
    narrower_kv,
    narrower_weights,
    other_places,
    smaller_steps,
    wider_places,
)
from kvist.planner.plan import Plan
from kvist.planner.setup import Setup
from kvist.spec.format import KVFormat
from kvist.spec.place import Placement

_CACHES: Final = {
    "kvist": ("f32", "f16", "int8t"),
    "sglang": ("bf16", "fp8"),
    "tensorrt-llm": ("bf16", "fp8", "nvfp4"),
    "vllm": ("bf16", "fp8"),
    "vllm-legacy": ("bf16", "fp8"),
}
_GGML: Final = ("f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
_WEIGHTS: Final = {"kvist": ("bf16",)}
_NARROW: Final = ("fp8", "int4")
_SHARED: Final = (0.5, 0.9)


def cache_formats(engine: str) -> tuple[KVFormat, ...]:
    """What an engine's cache can hold, widest first; engines not listed hold llama.cpp's formats."""
    return tuple(KVFormat.planned(name) for name in _CACHES.get(engine, _GGML))


def turning_points(plan: Plan) -> tuple[tuple[str, Turn], ...]:
    """Where one limit gives way to another, by name."""
    setup, load = plan.setup, plan.load
    return (
        ("cache over weights", decode_turns(setup, load.users)),
        ("attention over linear", prefill_turns(setup)),
        ("compute over bytes", batch_turns(setup, load.context_tokens)),
        ("linear layers alone", linear_batch_turns(setup)),
    )


def suggestions(
    question: Question, plan: Plan, machine: MeasuredMachine | None = None, promise: Slo | None = None
) -> tuple[Suggestion, ...]:
    """Alternatives to the answer ``plan`` that gain something, the best first: see ``advise``."""
    return advise(plan.setup, plan.load, _variants(question, plan.setup, machine), slo=promise)


def _variants(question: Question, setup: Setup, machine: MeasuredMachine | None) -> tuple[Variant, ...]:
    tiers = [tier for tier in usual_tiers(setup.device) if tier.name == "host"]

    def at_place(place: Placement) -> Setup:
        cut = {"tp": place.tp, "pp": place.pp, "dp": place.dp, "count": place.devices}
        return resolve(replace(question, **cut, attention_dp=place.attention_dp), machine)[0]  # type: ignore[arg-type]

    def weighed(name: str) -> Callable[[Setup], Setup]:
        return lambda _: resolve(replace(question, weights=name), machine)[0]

    def narrower(name: str) -> bool:
        """True when the weights in that format take clearly fewer bytes than they do."""
        other = weighed(name)(setup)
        return max(w.best for w in other.weights) < 0.9 * max(w.best for w in setup.weights)

    return (
        *narrower_kv([fmt.name for fmt in cache_formats(setup.engine)]),
        *narrower_weights({name: weighed(name) for name in _WEIGHTS.get(setup.engine, _NARROW) if narrower(name)}),
        *(() if question.device in ("", HERE) else other_places(at_place, wider_places(setup))),
        *smaller_steps(setup),
        *(SharedPrefix(rate) for rate in _SHARED),
        *(Offloaded(tier, setup.kv_format) for tier in tiers),
    )
