"""What every screen has beside the plan itself: where the limits turn, and what would help most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite
from typing import Any, Final

from kvist.cli.plan_parts import Asked
from kvist.planner.advice import Suggestion, advise
from kvist.planner.ask import resolve
from kvist.planner.crossover import batch_turns, decode_turns, linear_batch_turns, prefill_turns
from kvist.planner.setup import Setup
from kvist.planner.tiers import usual_tiers
from kvist.planner.turns import Turn
from kvist.planner.variants import (
    Offloaded,
    SharedPrefix,
    Variant,
    narrower_kv,
    narrower_weights,
    other_places,
    smaller_steps,
    wider_places,
)
from kvist.spec.format import KVFormat
from kvist.spec.place import Placement

_CACHES: Final = {
    "kvist": ("f32", "f16"),
    "sglang": ("bf16", "fp8"),
    "tensorrt-llm": ("bf16", "fp8", "nvfp4"),
    "vllm": ("bf16", "fp8"),
    "vllm-legacy": ("bf16", "fp8"),
}
_GGML: Final = ("f16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
_WEIGHTS: Final = ("fp8", "int4")
_GOALS: Final = {
    "users": "What would help most: more users",
    "ttft": "What would help most: earlier first tokens",
    "tpot": "What would help most: faster answers",
}


def cache_formats(engine: str) -> tuple[KVFormat, ...]:
    """What an engine's cache can hold, widest first; engines not listed hold llama.cpp's formats."""
    return tuple(KVFormat.planned(name) for name in _CACHES.get(engine, _GGML))


def turns(asked: Asked) -> tuple[tuple[str, Turn], ...]:
    """Where one limit gives way to another, by name."""
    setup, load = asked.plan.setup, asked.plan.load
    return (
        ("cache over weights", decode_turns(setup, load.users)),
        ("attention over linear", prefill_turns(setup)),
        ("compute over bytes", batch_turns(setup, load.context_tokens)),
        ("linear layers alone", linear_batch_turns(setup)),
    )


def turns_as_list(found: tuple[tuple[str, Turn], ...]) -> list[dict[str, Any]]:
    """For ``--json``."""
    return [
        {
            "name": name,
            "at": turn.at,
            "unit": turn.unit,
            "before": turn.before,
            "after": turn.after,
            "for_good": turn.for_good,
            "reached": turn.reached,
            "how": turn.how,
        }
        for name, turn in found
    ]


def turn_rows(found: tuple[tuple[str, Turn], ...]) -> list[tuple[str, str]]:
    """For the end of the table, a line each."""
    at = {name: _at(turn) for name, turn in found}
    return [
        ("turns", f"cache outweighs weights in a step: {at['cache over weights']}"),
        ("", f"attention outweighs linear layers in a prompt: {at['attention over linear']}"),
        ("", f"arithmetic outweighs bytes: {at['compute over bytes']} (linear layers {at['linear layers alone']})"),
    ]


def _at(turn: Turn) -> str:
    if turn.at is None:
        return "never"
    return f"from {turn.at:,} {turn.unit}" + ("" if turn.reached else " (beyond the model)")


def suggestions(asked: Asked) -> tuple[Suggestion, ...]:
    """Alternatives that gain something, the best first."""
    return advise(asked.plan.setup, asked.plan.load, _variants(asked), slo=asked.promise)


def _variants(asked: Asked) -> tuple[Variant, ...]:
    setup = asked.plan.setup
    tiers = [tier for tier in usual_tiers(setup.device) if tier.name == "host"]

    def at_place(place: Placement) -> Setup:
        cut = {"tp": place.tp, "pp": place.pp, "dp": place.dp, "count": place.devices}
        return resolve(replace(asked.question, **cut, attention_dp=place.attention_dp), asked.machine)[0]  # type: ignore[arg-type]

    def weighed(name: str) -> Callable[[Setup], Setup]:
        def build(before: Setup) -> Setup:
            other = resolve(replace(asked.question, weights=name), asked.machine)[0]
            return replace(other, place=before.place)

        return build

    narrow = {name: weighed(name) for name in _WEIGHTS if _narrower(asked, name)}
    here = asked.question.device in ("", "here")
    return (
        *narrower_kv([fmt.name for fmt in cache_formats(setup.engine)]),
        *narrower_weights(narrow),
        *(() if here else other_places(at_place, wider_places(setup))),
        *smaller_steps(setup),
        *(SharedPrefix(rate) for rate in (0.5, 0.9)),
        *(Offloaded(tier, setup.kv_format) for tier in tiers),
    )


def _narrower(asked: Asked, name: str) -> bool:
    """True when the model's weights in that format take clearly fewer bytes than they do."""
    other = resolve(replace(asked.question, weights=name), asked.machine)[0]
    return max(w.best for w in other.weights) < 0.9 * max(w.best for w in asked.plan.setup.weights)


def advice_as_list(found: tuple[Suggestion, ...]) -> list[dict[str, Any]]:
    """For ``--json``: gains without bound (from none to some) are null."""
    return [
        {
            "name": s.name,
            "goal": s.goal,
            "gain": s.gain if isfinite(s.gain) else None,
            "users_ratio": s.users_ratio if isfinite(s.users_ratio) else None,
            "ttft_ratio": s.ttft_ratio,
            "tpot_ratio": s.tpot_ratio,
            "devices_ratio": s.devices_ratio,
            "settles": s.settles,
            "price": s.price,
            "how": s.how,
        }
        for s in found
    ]


def advice_lines(found: tuple[Suggestion, ...]) -> tuple[str, list[str]]:
    """A title and a line for each of the best; of several that differ in a number only, the best stands."""
    if not found:
        return "", []
    kept: dict[str, str] = {}
    for s in found:
        kept.setdefault(_family(s.name), s.how + (f" ({s.price})" if s.price else ""))
    return _GOALS[found[0].goal], list(kept.values())


def _family(name: str) -> str:
    """What suggestions of one kind have in common: their words without numbers."""
    return " ".join(word for word in name.split() if word.isalpha())
