"""A plan as plain data, for ``--json``: the shape that ``plan.schema.json`` describes. Units are in the names."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

from kvist.cost.interval import Interval
from kvist.errors import ModelError
from kvist.planner.budget import Budget
from kvist.planner.decide.no_cache import Row
from kvist.planner.decide.slo import Slo
from kvist.planner.explain.cache import STATE_BYTES, rank_spec
from kvist.planner.explain.derivation import Section
from kvist.planner.plan import Plan
from kvist.planner.setup import Setup
from kvist.spec.model import ModelSpec
from kvist.spec.shard import with_drafts
from kvist.spec.weights import weight_elements
from kvist.units import ceil_div

VERSION: Final = 1
SCHEMA: Final = Path(__file__).with_name("plan.schema.json")


@cache
def schema() -> dict[str, Any]:
    """The published JSON Schema of what ``kvist plan --json`` prints."""
    return dict(json.loads(SCHEMA.read_text(encoding="utf-8")))


def as_dict(plan: Plan) -> dict[str, Any]:
    """Everything a plan says. ``json.dumps`` takes it as it is; infinite and missing numbers are null."""
    return {
        "version": VERSION,
        "verdict": {
            "fits": plan.verdict.fits,
            "sure": plan.verdict.sure and weights_known(plan.setup),
            "sentence": sentence(plan),
            "broken": plan.verdict.broken or None,
            "short_bytes": plan.verdict.short_bytes,
        },
        "model": _model(plan.setup.spec),
        "device": _device(plan.setup),
        "placement": _placement(plan.setup),
        "engine": _engine(plan.setup),
        "load": {
            "users": plan.load.users,
            "context_tokens": plan.load.context_tokens,
            "prompt_tokens": plan.load.prompt_tokens,
            "output_tokens": plan.load.output_tokens,
            "hit_rate": plan.load.hit_rate,
            "cached_tokens": plan.load.cached_tokens,
        },
        "memory": {"tightest_stage": plan.tightest, "stages": [_budget(budget) for budget in plan.budgets]},
        "cache": _cache(plan),
        "users_fit": dict(zip(("low", "best", "high"), plan.users_fit, strict=True)),
        "longest_context_tokens": plan.longest_tokens,
        "latency": _latency(plan),
        "notes": list(notes_of(plan)),
    }


def notes_of(plan: Plan) -> tuple[str, ...]:
    """What a person should know beside the numbers, each sentence once."""
    return tuple(dict.fromkeys((*_of_pool(plan), *plan.setup.notes, *plan.setup.spec.notes, *plan.capacity.notes)))


def _of_pool(plan: Plan) -> tuple[str, ...]:
    """Why a pool holds a context that is longer than itself."""
    tokens, longest = plan.capacity.tokens, plan.longest_tokens
    if not tokens or tokens >= longest:
        return ()
    counted = f"the pool's tokens are counted at {plan.load.context_tokens:,} tokens a request"
    return (f"{counted}; a context of {longest:,} fits, as windows and states do not grow with it",)


def weights_known(setup: Setup) -> bool:
    """False where nothing says what the weights weigh: the cache alone is planned, and seconds mean nothing."""
    return any(rank.high > 0 for rank in setup.weights)


def sentence(plan: Plan) -> str:
    """The verdict in words, with what it leaves out."""
    return plan.verdict.sentence + ("" if weights_known(plan.setup) else "; cache only: weights not known")


def need_bytes(plan: Plan) -> int:
    """Bytes of cache on one rank that the load asks for."""
    return ceil_div(plan.load.users, plan.setup.replicas) * plan.request_bytes + plan.shared_bytes


def sections_as_list(sections: tuple[Section, ...]) -> list[dict[str, Any]]:
    """A derivation as plain data."""
    return [
        {
            "title": section.title,
            "about": section.about,
            "equations": [
                {
                    "symbol": e.symbol,
                    "formula": e.formula,
                    "numbers": e.numbers,
                    "value": interval(e.value),
                    "unit": e.unit,
                    "note": e.note,
                }
                for e in section.equations
            ],
        }
        for section in sections
    ]


def no_cache_as_list(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """The comparison of ``planner.no_cache`` as plain data."""
    return [
        {
            "tokens": row.n_tokens,
            "cached_flops": row.cached.flops,
            "plain_flops": row.plain.flops,
            "cached_bytes": row.cached.bytes,
            "plain_bytes": row.plain.bytes,
            "linear_times": row.linear_times,
            "attention_times": row.attention_times,
            "cache_bytes": row.cache_bytes,
        }
        for row in rows
    ]


def promise_as_dict(plan: Plan, promise: Slo) -> dict[str, Any]:
    """Limits on seconds, and whether the plan keeps them; ``missed`` names ``ttft``, ``tpot`` or a term of memory."""
    return {
        "max_ttft_s": promise.ttft_s,
        "max_tpot_s": promise.tpot_s,
        "met": promise.met(plan),
        "sure": promise.sure(plan),
        "missed": list(promise.missed(plan)),
        "how": promise.said(plan),
    }


def interval(known: Interval) -> dict[str, Any]:
    """Low, best, high and how it is known."""
    return {"low": known.low, "best": known.best, "high": known.high, "tag": known.tag}


def _model(spec: ModelSpec) -> dict[str, Any]:
    try:
        counted = weight_elements(spec)
        total, active = counted.total, counted.active
    except ModelError:
        total = active = 0
    return {
        "name": spec.name or spec.architecture,
        "architecture": spec.architecture,
        "layers": len(spec.layers),
        "hidden": spec.hidden,
        "vocab": spec.vocab,
        "context_tokens": spec.context_tokens or None,
        "weight_elements": total or None,
        "active_elements": active or None,
        "shape_only": spec.shape_only,
    }


def _device(setup: Setup) -> dict[str, Any]:
    device = setup.device
    return {
        "name": device.name,
        "maker": device.maker,
        "kind": device.kind,
        "memory_bytes": device.memory_bytes,
        "capacity_bytes": device.capacity_bytes,
        "bandwidth_bytes_per_s": device.bandwidth_bytes_per_s,
        "flops": dict(device.flops),
        "link_bytes_per_s": device.link_bytes_per_s,
        "host_bytes_per_s": device.host_bytes_per_s,
        "sources": list(device.sources),
        "notes": device.notes,
    }


def _placement(setup: Setup) -> dict[str, Any]:
    place = setup.place
    return {
        "name": place.name,
        "devices": place.devices,
        "replicas": setup.replicas,
        **{name: getattr(place, name) for name in ("tp", "pp", "dp", "ep", "cp", "attention_dp")},
    }


def _engine(setup: Setup) -> dict[str, Any]:
    return {
        "name": setup.engine,
        "kv_format": setup.kv_format.name,
        "weights": setup.weights_how,
        "compute": setup.compute,
        "batched_tokens": setup.batched_tokens,
        "sequences": setup.sequences,
        "memory_fraction": setup.memory_fraction,
        "block_tokens": setup.block_tokens,
        "draft_layers": setup.draft_layers,
        "draft_tokens": setup.draft_tokens,
        "knobs": dict(setup.knobs),
    }


def _budget(budget: Budget) -> dict[str, Any]:
    return {
        "stage": budget.stage,
        "total_bytes": budget.total_bytes,
        "fraction": budget.fraction,
        "usable_bytes": budget.usable_bytes,
        "terms": [{"name": t.name, "bytes": interval(t.bytes), "how": t.how} for t in budget.terms],
        "available_bytes": interval(budget.available),
    }


def _cache(plan: Plan) -> dict[str, Any]:
    fmt, n, capacity = plan.setup.kv_format, plan.load.context_tokens, plan.capacity
    spec = with_drafts(plan.setup.spec, plan.setup.draft_layers)
    return {
        "bytes_per_token": spec.kv_bytes_per_token(fmt),
        "bytes_per_token_on_rank": rank_spec(plan).kv_bytes_per_token(fmt),
        "state_bytes": spec.state_elements * STATE_BYTES,
        "sequence_bytes": spec.kv_bytes(n, fmt) + spec.state_elements * STATE_BYTES,
        "request_bytes": plan.request_bytes,
        "shared_bytes": plan.shared_bytes,
        "need_bytes": need_bytes(plan),
        "pool": {
            "tokens": capacity.tokens,
            "blocks": capacity.blocks,
            "block_tokens": capacity.block_tokens,
            "block_bytes": capacity.block_bytes,
            "concurrency": capacity.concurrency,
            "request_bytes": capacity.request_bytes,
            "longest_tokens": capacity.longest_tokens,
        },
        "lines": [{"name": x.name, "what": x.what, "value": x.value, "how": x.how} for x in capacity.lines],
    }


def _latency(plan: Plan) -> dict[str, Any]:
    latency = plan.latency
    return {
        "ttft_s": interval(latency.ttft),
        "ttft_bound": latency.ttft_bound,
        "burst": {
            "first_s": latency.burst.first_s,
            "mean_s": latency.burst.mean_s,
            "last_s": latency.burst.last_s,
            "steps": latency.burst.steps,
        },
        "tpot_s": interval(latency.tpot),
        "tpot_bound": latency.tpot_bound,
        "tokens_per_s": interval(latency.tokens_per_s),
    }
