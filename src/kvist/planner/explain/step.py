"""How long a step takes, derived: FLOPs and bytes of a decode step and of a chunk of a prompt, against the ridge."""

from __future__ import annotations

from collections.abc import Sequence

from kvist.cost.interval import Interval
from kvist.cost.roofline import Seconds
from kvist.cost.work import Chunk, ModelWork, Work
from kvist.planner.explain.derivation import Equation, Section, exact
from kvist.planner.plan import Plan, timing_of
from kvist.planner.timing import Timing
from kvist.units import ceil_div


def decode_chunks(plan: Plan) -> list[Chunk]:
    """One token for every user that one rank's attention serves, in the middle of their answers."""
    timing, load = timing_of(plan.setup), plan.load
    users = timing.local(ceil_div(load.users, plan.setup.place.dp))
    return [Chunk(1, max(1, load.context_tokens - load.output_tokens // 2))] * users


def prefill_chunks(plan: Plan) -> list[Chunk]:
    """The middle chunk of one prompt."""
    load = plan.load
    fresh = max(1, load.prompt_tokens - load.cached_tokens)
    new = min(fresh, plan.setup.batched_tokens)
    return [Chunk(new, load.cached_tokens + (fresh - new) // 2)]


def decode_step(plan: Plan) -> Section:
    """One token of every user."""
    chunks = decode_chunks(plan)
    n, at = len(chunks), chunks[0].cached_tokens
    title = f"One decode step: {n:,} sequence{'s' * (n > 1)} at {at:,} tokens"
    return _step(plan, chunks, title, "TPOT", plan.latency.tpot)


def prefill_step(plan: Plan) -> Section:
    """One chunk of one prompt."""
    chunks = prefill_chunks(plan)
    title = f"One prefill chunk: {chunks[0].new_tokens:,} tokens behind {chunks[0].cached_tokens:,}"
    return _step(plan, chunks, title, "TTFT", plan.latency.ttft)


def _step(plan: Plan, chunks: Sequence[Chunk], title: str, name: str, result: Interval) -> Section:
    setup, timing = plan.setup, timing_of(plan.setup)
    parts = timing.parts(chunks)
    slowest = max(range(len(parts)), key=lambda i: parts[i].total_s)
    stage, work = timing.stages[slowest], timing.works(chunks)[slowest][0]
    rate, bandwidth = setup.device.flops_for(setup.compute), setup.device.bandwidth_bytes_per_s
    ridge = rate / bandwidth
    side = "left of it: bandwidth" if work.intensity < ridge else "right of it: arithmetic"
    floor = max(work.flops / rate, work.bytes / bandwidth)
    equations = [
        *_flops(stage, work),
        *_bytes(stage, work, chunks),
        exact("intensity", "FLOPs / bytes", f"{work.flops:.4g} / {work.bytes:.4g}", work.intensity, "flops/byte"),
        exact(
            "ridge",
            f"{setup.compute} FLOP/s / bytes/s",
            f"{rate:.4g} / {bandwidth:.4g}",
            ridge,
            "flops/byte",
            f"the step is {side}",
        ),
        exact("floor", "max(FLOPs / FLOP/s, bytes / bytes/s)", "what the data sheet allows", floor, "seconds"),
        *_seconds(parts[slowest]),
        Equation(
            name,
            "all stages, all steps" if name == "TTFT" or setup.place.pp > 1 else "the sum",
            _how(timing, name),
            result,
            "seconds",
        ),
    ]
    where = "" if setup.place.devices == 1 else f" (one rank{f' of stage {slowest}' if setup.place.pp > 1 else ''})"
    return Section(
        title + where, tuple(equations), "a multiply-add is two FLOPs; bytes cross the memory bus once a step"
    )


def _how(timing: Timing, name: str) -> str:
    if name == "TTFT":
        return f"chunks of {timing.budget_tokens:,} tokens, other users' answers beside them"
    return f"{timing.place.pp} stages" if timing.place.pp > 1 else "linear + attention + head + wire + fixed"


def _flops(stage: ModelWork, work: Work) -> list[Equation]:
    dense, experts = stage.dense_elements, work.linear_flops / (2 * work.tokens) - stage.dense_elements
    weights = f"{dense:,}" if experts < 1 else f"({dense:,} + {experts:,.0f} of experts)"
    found = [
        exact("F_linear", "2 tokens weights", f"2 x {work.tokens:,} x {weights}", work.linear_flops, "flops"),
        exact(
            "F_head", "2 rows vocabulary width", f"2 x {work.rows:,} x {stage.head_size:,}", work.head_flops, "flops"
        ),
        exact("F_attention", "2 q_heads (d_k + d_v) rows", _pairs(stage), work.attention_flops, "flops"),
    ]
    if work.state_flops:
        state = stage.spec.state_elements
        found.append(
            exact("F_state", "8 elements tokens", f"8 x {state:,} x {work.tokens:,}", work.state_flops, "flops")
        )
    return found


def _pairs(stage: ModelWork) -> str:
    layers = [x for x in stage.spec.layers if x.q_heads]
    heads = sorted({(x.q_heads, x.key_dim, x.value_dim) for x in layers})
    shapes = ", ".join(f"{q} x ({k} + {v})" for q, k, v in heads[:3]) + (", ..." if len(heads) > 3 else "")
    return f"{len(layers)} layers of {shapes or 'no heads'}, every row that a query may see"


def _bytes(stage: ModelWork, work: Work, chunks: Sequence[Chunk]) -> list[Equation]:
    widths = stage.widths
    dense = stage.dense_elements * widths.dense
    experts = stage.expert_elements(work.tokens)
    weights = f"{stage.dense_elements:,} x {widths.dense:.4g}"
    if experts:
        weights += f" + {experts:,.0f} x {widths.expert:.4g}"
    row = stage.spec.kv_bytes_per_token(stage.fmt)
    found = [
        exact(
            "B_weights",
            "weights b_w",
            weights,
            work.weight_bytes,
            note="experts that these tokens wake" if experts else "",
            known=not experts,
        ),
        exact("B_head", "vocabulary width b_w", f"{stage.head_size:,} x {widths.head:.4g}", work.head_bytes),
        exact(
            "B_kv",
            "sequences S",
            f"{len(chunks):,} x {work.kv_read_bytes / max(1, len(chunks)):,.0f}",
            work.kv_read_bytes,
            note="windows: their own rows only" if any(x.retention.bounded for x in stage.spec.layers) else "",
        ),
        exact("B_new", "tokens s_token", f"{work.tokens:,} x {row:,}", work.kv_write_bytes),
    ]
    assert abs(dense + experts * widths.expert - work.weight_bytes) <= 1 + 1e-9 * work.weight_bytes
    if work.state_bytes:
        found.append(exact("B_state", "read and written", f"{len(chunks):,} states", work.state_bytes))
    found.append(exact("B_rows", "rows between kernels", f"{work.tokens:,} tokens", work.activation_bytes, known=False))
    return found


def _seconds(parts: Seconds) -> list[Equation]:
    rows = (
        ("t_linear", parts.linear_s, parts.linear_bound),
        ("t_attention", parts.attention_s, parts.attention_bound),
        ("t_head", parts.head_s, ""),
        ("t_wire", parts.collective_s, "collectives between ranks"),
        ("t_fixed", parts.overhead_s, "launches, the scheduler, the sampler"),
    )
    return [
        exact(symbol, "", "at the rates a good engine reaches", seconds, "seconds", note, known=False)
        for symbol, seconds, note in rows
        if seconds
    ]
