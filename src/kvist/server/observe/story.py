"""What became of a request, as JSON: when it went through each stage, what it cost, why it was not cached."""

from __future__ import annotations

from typing import Any, Final

from kvist.engine.engine import Engine
from kvist.engine.event import Choice, Timeline
from kvist.server.job import Finish
from kvist.server.observe.tally import finish_of
from kvist.server.records import Record

STAGES: Final = {"waiting": "queued", "pending": "shares_prefill"}
"""Names of a sequence's states for people. ``shares_prefill``: sample 0 computes the prompt for this one."""


def stages(engine: Engine) -> dict[str, list[dict[str, Any]]]:
    """Where every live sample stands, by record id. To be run on the engine's thread."""
    found: dict[str, list[dict[str, Any]]] = {}
    for seq in (*engine.scheduler.waiting, *engine.scheduler.running):
        here = found.setdefault("req-" + str(seq.request.id)[1:], [])
        stage: dict[str, Any] = {"index": seq.sample, "stage": STAGES.get(seq.state.value, "prefill")}
        if seq.state.value == "waiting":
            stage["waits_for"] = seq.turn.reason
        elif seq.load is not None:
            stage["stage"] = "loading"
        elif seq.computed >= len(seq.request.prompt):
            stage["stage"] = "decode"
        stage["computed_tokens"] = seq.computed
        here.append(stage)
    return found


def ended_story(record: Record, miss: dict[str, Any] | None) -> dict[str, Any]:
    """A request that is over."""
    first = record.finishes.get(0)
    story = _head(record) | {"status": "done", "finish_reason": finish_of(record)}
    story["timeline"] = _timeline(record, first.timeline) if first else None
    story["durations_ms"] = _durations(record, first.timeline) if first else None
    if record.bill is not None:
        bill = record.bill
        story["usage"] = {
            "prompt_tokens": bill.prompt_tokens,
            "completion_tokens": bill.completion_tokens,
            "total_tokens": bill.total_tokens,
            "cached_tokens": bill.cached_tokens,
            "cached_tokens_by_tier": dict(bill.cached_by_tier),
            "recomputed_tokens": bill.recomputed_tokens,
            "preemptions": bill.preemptions,
        }
    story["miss"] = miss
    story["tiers"] = _choice(first.timeline.choice) if first else None
    story["samples"] = [_sample(record, index, finish) for index, finish in sorted(record.finishes.items())]
    if record.error:
        story["error"] = record.error
    return story


def live_story(record: Record, samples: list[dict[str, Any]] | None) -> dict[str, Any]:
    """A request that is inside; ``samples`` None: the engine is busy with a step and could not be asked."""
    if record.first_token_s is not None:
        status = "decode"
    elif samples:
        status = samples[0]["stage"]
    else:
        status = "accepted"
    story = _head(record) | {"status": status, "finish_reason": None, "completion_tokens": record.output_tokens}
    story["samples"] = samples
    return story


def _head(record: Record) -> dict[str, Any]:
    return {
        "id": record.id,
        "object": "request",
        "name": record.name,
        "tenant": record.tenant,
        "endpoint": record.kind,
        "n": record.n,
        "max_tokens": record.max_tokens,
        "prompt_tokens": record.prompt_tokens,
        "kept_tokens": record.kept_tokens,
        "first_rewritten": record.first_rewritten,
    }


def _timeline(record: Record, line: Timeline) -> dict[str, float | None]:
    """Seconds since the request arrived."""
    marks = {
        "queued": line.arrived_s,
        "matched": line.admitted_s,
        "computed": line.computed_s,
        "first_token": line.first_token_s,
        "done": line.done_s,
    }
    return {name: _since(record.arrived_s, at) for name, at in marks.items()}


def _durations(record: Record, line: Timeline) -> dict[str, float | None]:
    spans = {
        "queue": (line.arrived_s, line.admitted_s),
        "prefill": (line.admitted_s, line.first_token_s),
        "decode": (line.first_token_s, line.done_s),
        "ttft": (record.arrived_s, line.first_token_s),
        "e2e": (record.arrived_s, line.done_s),
    }
    durations = {name: _ms(start, end) for name, (start, end) in spans.items()}
    return durations | {"tpot": None if line.tpot_s is None else round(line.tpot_s * 1000, 3)}


def _choice(choice: Choice | None) -> dict[str, Any] | None:
    """What was decided about loading, and what came of it; None: tiers had nothing more than the pool."""
    if choice is None:
        return None
    return {
        "decision": choice.what,
        "pool_tokens": choice.base_tokens,
        "found_tokens": choice.found_tokens - choice.base_tokens,
        "wanted_tokens": choice.end_tokens - choice.base_tokens,
        "loaded_tokens": choice.loaded_tokens,
        "predicted_load_ms": _rounded(choice.load_s),
        "predicted_compute_ms": _rounded(choice.compute_s),
        "took_ms": _rounded(choice.took_s),
        "regret_ms": _rounded(choice.regret_s),
        "reason": choice.reason or None,
    }


def _rounded(seconds: float | None) -> float | None:
    """Milliseconds."""
    return None if seconds is None else round(seconds * 1000, 3)


def _sample(record: Record, index: int, finish: Finish) -> dict[str, Any]:
    usage = finish.usage
    return {
        "index": index,
        "finish_reason": finish.reason,
        "timeline": _timeline(record, finish.timeline),
        "durations_ms": _durations(record, finish.timeline),
        "completion_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        "computed_tokens": usage.computed_tokens,
        "recomputed_tokens": usage.recomputed_tokens,
        "preemptions": usage.preemptions,
        "waited_for_leader": finish.timeline.led,
    }


def _since(start_s: float, at_s: float | None) -> float | None:
    return None if at_s is None else round(at_s - start_s, 6)


def _ms(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else round((end_s - start_s) * 1000, 3)
