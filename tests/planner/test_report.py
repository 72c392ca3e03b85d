"""The plain data of a plan: they fit the published schema, both copies of it, and are the plan's own numbers."""

import copy
import json
from pathlib import Path

import pytest
from hand_plans import FORTY, LATENT, WINDOWED, hand_plan

from kvist.planner.explain.derive import cache_or_none, derivation
from kvist.planner.report import SCHEMA, as_dict, need_bytes, no_cache_as_list, notes_of, schema, sections_as_list
from kvist.units import GIB

jsonschema = pytest.importorskip("jsonschema")
DOCS = Path(__file__).parents[2] / "docs" / "plan.schema.json"
KINDS = [
    {}, {"tp": 8, "users": 64}, {"tp": 2, "pp": 3}, {"users": 10_000},
    {"config": WINDOWED, "context": 4096, "hit_rate": 0.5},
    {"config": LATENT, "context": 512, "tp": 4}, {"engine": "kvist"}, {"engine": "llama.cpp"}, {"engine": "sglang"},
    {"config": FORTY | {"num_hidden_layers": 400}, "tp": 2}, {"notes": ("one", "one", "two")},
]  # fmt: skip


def valid(data):
    jsonschema.Draft202012Validator(schema()).validate(json.loads(json.dumps(data, allow_nan=False)))


def test_both_copies_of_the_schema_are_the_same():
    assert DOCS.read_bytes() == SCHEMA.read_bytes()
    jsonschema.Draft202012Validator.check_schema(schema())


def test_the_schema_is_closed_and_says_what_is_required():
    def objects(node):
        if isinstance(node, dict):
            if node.get("type") == "object":
                yield node
            for value in node.values():
                yield from objects(value)
        elif isinstance(node, list):
            for value in node:
                yield from objects(value)

    for node in objects(schema()):
        assert node["additionalProperties"] is not True, node
        if "properties" in node:
            assert node["additionalProperties"] is False and set(node["required"]) <= set(node["properties"])
    optional = set(schema()["properties"]) - set(schema()["required"])
    assert optional == {
        "crossovers", "advice", "inverse", "comparison", "hit_rates", "offload", "split", "derivation",
        "promise",
    }  # fmt: skip


@pytest.mark.parametrize("how", KINDS, ids=str)
def test_plans_fit_the_schema(how):
    plan = hand_plan(**how)
    data = as_dict(plan)
    data["derivation"] = {
        "sections": sections_as_list(derivation(plan)),
        "no_cache": no_cache_as_list(cache_or_none(plan)) if not how else [],
    }
    valid(data)


@pytest.mark.parametrize("spoil", [
    lambda d: d.pop("latency"),
    lambda d: d["cache"].pop("need_bytes"),
    lambda d: d["verdict"].update(extra=1),
    lambda d: d["latency"]["ttft_s"].update(tag="certain"),
    lambda d: d["memory"]["stages"][0]["terms"][0].update(bytes=3),
    lambda d: d.update(version=2),
])  # fmt: skip
def test_the_schema_can_refuse(spoil):
    data = copy.deepcopy(as_dict(hand_plan()))
    valid(data)
    spoil(data)
    with pytest.raises(jsonschema.ValidationError):
        valid(data)


def test_numbers_are_the_plans():
    plan = hand_plan(tp=2, pp=2, users=33, hit_rate=0.25)
    data = as_dict(plan)
    assert data["users_fit"]["best"] == plan.users_fit[1]
    assert data["cache"]["need_bytes"] == need_bytes(plan) == 33 * plan.request_bytes + plan.shared_bytes
    assert data["cache"]["bytes_per_token"] == 163_840
    assert data["cache"]["bytes_per_token_on_rank"] == 163_840 // 4
    assert data["cache"]["sequence_bytes"] == 8192 * 163_840 == 1.25 * GIB
    stages = data["memory"]["stages"]
    assert [s["stage"] for s in stages] == [0, 1]
    for stage, budget in zip(stages, plan.budgets, strict=True):
        assert stage["available_bytes"]["best"] == budget.available.best
        taken = sum(term["bytes"]["best"] for term in stage["terms"])
        assert stage["usable_bytes"] - taken == pytest.approx(stage["available_bytes"]["best"])
    assert data["latency"]["tpot_s"]["high"] == plan.latency.tpot.high
    assert data["load"]["cached_tokens"] == plan.load.cached_tokens
    assert data["verdict"]["broken"] is None


def test_what_does_not_fit_says_what_breaks_and_by_how_much():
    data = as_dict(hand_plan(users=10_000))
    assert not data["verdict"]["fits"]
    assert data["verdict"]["broken"] == "cache"
    room = data["memory"]["stages"][0]["available_bytes"]["best"]
    assert data["verdict"]["short_bytes"] == pytest.approx(data["cache"]["need_bytes"] - room)


def test_a_shape_has_no_weights_to_count():
    from kvist.planner.plan import Plan

    plan = hand_plan()
    from dataclasses import replace

    shape = replace(plan.setup.spec, shape_only=True, hidden=0, vocab=0)
    bare: Plan = replace(plan, setup=replace(plan.setup, spec=shape))
    assert as_dict(bare)["model"]["weight_elements"] is None
    valid(as_dict(bare))


def test_notes_are_said_once():
    assert notes_of(hand_plan(notes=("one", "one", "two")))[:2] == ("one", "two")
