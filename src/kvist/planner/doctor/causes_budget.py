"""Where a device's memory went before the cache got any, by the log's own sums."""

from __future__ import annotations

from typing import Final

from kvist.cost.interval import Interval
from kvist.planner.doctor.base import Term
from kvist.planner.doctor.case import Case, Cause
from kvist.planner.doctor.compare import meets
from kvist.planner.doctor.diagnosis import Finding
from kvist.planner.doctor.identity import Identity, closing_share, identities
from kvist.units import GIB, MIB, format_bytes

_OWN_CONTEXT: Final = GIB
"""A process's own context takes less than this; what is missing beyond it belongs to others."""


def _first_gap(case: Case) -> Identity | None:
    """The first rank whose sum does not close."""
    return next((i for i in identities(case.log) if not i.closes()), None)


def _graphs(case: Case, rank: str) -> Term | None:
    estimated = case.log.by_rank("graphs_estimated")
    return estimated.get(rank) or case.log.last("graphs_estimated") or case.log.last("graphs")


def does_not_start(case: Case) -> Finding | None:
    """The longest request does not fit: how much is missing, and what would."""
    need, have = case.log.last("needed"), case.log.last("kv_available")
    if need is None or have is None or need.low <= have.high:
        return None
    longest = case.log.last("longest_tokens")
    fits = f"; requests up to {longest.value:,.0f} tokens fit" if longest else ""
    said = f"{need.printed} are needed for one longest request, {have.printed} are there: "
    return Finding("does not start", said + f"{format_bytes(need.value - have.value)} are missing{fits}")


def other_utilization(case: Case) -> Finding | None:
    """The sum closes at another round share of the device than the one that is stated."""
    gap, share = _first_gap(case), case.log.number("utilization")
    solved = closing_share(case.log)
    if gap is None or share is None or solved is None:
        return None
    near = round(solved.best * 100) / 100
    if abs(near - share) < 0.005 or not solved.low <= near <= solved.high:
        return None
    return Finding(
        "other utilization",
        f"the log's own terms close at a utilization of {near:g}, not at {share:g}: at {share:g} the cache would have "
        f"got {gap.expected.best / GIB:.2f} GiB, {gap.printed.best / GIB:.2f} are printed",
        "kv_available",
    )


def graphs_in_budget(case: Case) -> Finding | None:
    """Captured graphs were taken off before the cache got its share (vLLM 0.21 and later)."""
    gap = _first_gap(case)
    graphs = _graphs(case, gap.rank) if gap else None
    if gap is None or graphs is None or graphs.value <= 0 or not gap.closes(graphs.value):
        return None
    said = f"the sum closes with {graphs.printed} of captured graphs taken off before the cache"
    return Finding("graphs in the budget", said, "kv_available")


def graphs_outside_budget(case: Case) -> Finding | None:
    """Captured graphs come out of what utilization leaves, after the cache was made."""
    found, graphs = identities(case.log), case.log.last("graphs")
    if case.log.engine != "vllm" or graphs is None or graphs.value < 0.05 * GIB:
        return None
    if not found or not all(i.closes() and not i.closes(graphs.value) for i in found):
        return None
    return Finding(
        "graphs outside the budget",
        f"captured graphs ({graphs.printed}) are not part of the sum: they come out of what utilization leaves",
    )


def other_process(case: Case) -> Finding | None:
    """Memory was taken before the engine came, or the sum misses some that nothing in the log accounts for."""
    log = case.log
    total, free = log.last("total"), log.last("free_at_start")
    used, weights = log.last("used_at_start"), log.last("weights")
    held: tuple[float, str] | None = None
    if total and free and total.value - free.value > _OWN_CONTEXT:
        held = total.value - free.value, f"{free.printed} of {total.printed} were free at the start"
    elif used and weights and used.value - weights.value > _OWN_CONTEXT:
        held = used.value - weights.value, f"{used.printed} were in use, of which the weights are {weights.printed}"
    if held is not None:
        said = f"{held[1]}: another process (or an earlier start) holds about {format_bytes(held[0])}"
        return Finding("another process", said)
    gap = _first_gap(case)
    if gap is None or gap.gap >= -GIB / 4 or other_utilization(case) or graphs_in_budget(case):
        return None
    said = f"the log's terms leave {format_bytes(gap.expected.best)} for the cache, {format_bytes(gap.printed.best)} "
    said += f"are printed: {format_bytes(-gap.gap)} went to what the log does not name (another process, most likely)"
    return Finding("another process", said, "kv_available")


def activation_by_step(case: Case) -> Finding | None:
    """Activations are profiled with the largest step: tokens of a step cost cache."""
    activation, kv = case.log.most("activation"), case.available
    peak, weights = case.log.most("peak_torch"), case.log.most("weights")
    value = activation.value if activation else peak.value - weights.value if peak and weights else 0.0
    if case.log.engine != "vllm" or kv is None or value < 0.05 * max(kv.value, GIB):
        return None
    step, longest = case.log.count("batched_tokens"), case.run.max_model_tokens
    chunked = case.log.settings.get("chunked_prefill")
    if step is None and (chunked is True or longest is None or not case.log.all("cpu_blocks")):
        return None
    tokens = step or longest or 1
    why = "tokens a step may hold" if step else "tokens of the longest prompt, which is not cut into chunks"
    knob = "--max-num-batched-tokens" if step else "--max-model-len, or chunked prefill,"
    return Finding(
        "activation by step",
        f"{format_bytes(value)} went to activations, measured with {tokens:,} {why}: {format_bytes(value / tokens)} "
        f"each; a smaller {knob} gives most of it to the cache",
    )


def rest_is_unused(case: Case) -> Finding | None:
    """What utilization leaves free would hold much more cache, or is what a start lacks."""
    share, total, kv = case.log.number("utilization"), case.log.last("total"), case.log.last("kv_available")
    if case.log.engine != "vllm" or share is None or total is None or kv is None:
        return None
    graphs = case.log.last("graphs")
    rest = total.value * (1 - share) - max(0.0, graphs.value if graphs else 0.0)
    need = case.log.last("needed")
    lacking = need is not None and kv.value < need.value <= kv.value + rest
    if not lacking and rest < max(0.25 * kv.value, 2 * GIB):
        return None
    end = "enough for the request that does not fit" if lacking else f"beside {kv.printed} of cache"
    return Finding(
        "utilization leaves the rest", f"a utilization of {share:g} leaves {format_bytes(rest)} of the device, {end}"
    )


def request_table(case: Case) -> Finding | None:
    """SGLang's table of requests (sequences x context x 4 bytes) comes out of what the pools leave.

    Buffers are rounded up to 2 MiB each, two a layer: that much more may be gone.
    """
    after, end = case.log.last("free_after_load"), case.log.last("free_after_pool", "")
    sequences, context = case.log.count("sequences"), case.log.count("max_model_tokens")
    if after is None or end is None or not sequences or not context or case.log.engine != "sglang":
        return None
    pools = [t for t in case.log.all("k", "") + case.log.all("v", "") + case.log.all("kv", "") if t.rank == end.rank]
    pools += [t for n in ("conv", "ssm") for t in case.log.all(n) if t.rank == end.rank]
    if not pools:
        return None
    gone = after.value - sum(t.value for t in pools) - end.value
    table = 4.0 * sequences * (context + 4)
    buffers = 4.0 * MIB * (len(case.run.spec.layers) or 64)
    slack = (len(pools) + 2) * 0.005 * GIB
    if table < GIB / 4 or not meets(Interval(gone - slack - buffers, gone, gone + slack), Interval.exactly(table)):
        return None
    return Finding(
        "table of requests",
        f"a table of {sequences:,} sequences x {context:,} tokens takes {format_bytes(table)} beside the pools; "
        "fewer running requests or a shorter context give it back",
    )


def tokens_are_limited(case: Case) -> Finding | None:
    """TensorRT-LLM and SGLang take the smaller of a fraction of memory and a number of tokens."""
    asked, pool = case.log.count("max_total_tokens"), case.pool()
    wanted = case.predicted(pool) if pool else None
    if not asked or pool is None or wanted is None or pool.unit != "tokens":
        return None
    block = case.run.block_tokens or 32
    if not asked - block <= pool.value <= asked + block or wanted.low <= asked + block:
        return None
    said = (
        f"{pool.value:,.0f} tokens are the limit that was asked for ({asked:,}); memory has room for {wanted.best:,.0f}"
    )
    return Finding("limit on tokens", said, pool.name)


CAUSES: Final[tuple[Cause, ...]] = (
    does_not_start, other_utilization, graphs_in_budget, graphs_outside_budget, other_process, activation_by_step,
    rest_is_unused, request_table, tokens_are_limited,
)  # fmt: skip
