"""Why a pool holds more or fewer tokens than expected. Every condition is arithmetic on what was printed."""

from __future__ import annotations

from typing import Final

from kvist.planner.doctor.case import Case, Cause
from kvist.planner.doctor.compare import may_predict, meets
from kvist.planner.doctor.diagnosis import Finding
from kvist.planner.doctor.identity import interval
from kvist.planner.engines.registry import engine as engine_named
from kvist.units import GIB

_NEARLY: Final = 0.25
"""How far below its own room a rank's pool may lie for another rank to be the likely reason."""


def smallest_rank(case: Case) -> Finding | None:
    """All ranks get the pool of the poorest: printed GiB of one rank need not give the printed tokens."""
    ranks, pool = case.log.by_rank("kv_available"), case.pool()
    if pool is None or not ranks or case.log.engine != "vllm":
        return None
    least, most = (f(ranks.values(), key=lambda t: t.value) for f in (min, max))
    if least.value < most.value and case.agrees(pool):
        rich = may_predict(case.engine, case.run, most)
        if rich and not case.agrees(pool, rich):
            return Finding(
                "smallest rank",
                f"the pool follows the rank with the least memory: {least.rank or 'one rank'} has {least.printed}, "
                f"another {most.printed}",
            )
    return None


def unseen_rank(case: Case) -> Finding | None:
    """The pool is somewhat smaller than the printed GiB give: another rank, whose line is missing, has less."""
    least, pool = case.log.least("kv_available"), case.pool()
    wanted = case.predicted(pool) if pool else None
    if pool is None or least is None or wanted is None or not wanted.best or case.log.engine != "vllm":
        return None
    share = pool.value / wanted.best
    if case.run.place.tp * case.run.place.pp == 1 or pool.high >= wanted.low or share < 1 - _NEARLY:
        return None
    return Finding(
        "smallest rank",
        f"{pool.value:,.0f} {pool.unit} need {share * least.value / GIB:.2f} GiB a rank, {least.printed} are printed: "
        "most likely another rank, whose line is not in this log, has less, and all are cut to it",
        pool.name,
    )


def older_formula(case: Case) -> Finding | None:
    """What vLLM calls tokens changed: blocks x size, blocks over groups (0.10), concurrency x length (0.21)."""
    pool = case.log.least("kv_tokens")
    if case.log.engine != "vllm" or pool is None or not case.differs(pool):
        return None
    ways = {
        "groups": "blocks divided by groups (0.10 to 0.20)",
        "layers": "every layer charged in full (before 0.10, or without the hybrid manager)",
        "blocks": "blocks times their size (version 0)",
    }
    for count, said in ways.items():
        found = case.if_(engine_named("vllm-legacy"), {"count": count})
        if case.agrees(pool, found):
            return Finding("older formula", f"{pool.value:,.0f} tokens count {said}", pool.name)
    found = case.if_(engine_named("vllm"))
    if case.engine.name != "vllm" and case.agrees(pool, found):
        said = "concurrency times the longest request (0.21 and later)"
        return Finding("newer formula", f"{pool.value:,.0f} tokens are {said}", pool.name)
    return None


def tokens_are_concurrency(case: Case) -> Finding | None:
    """Of a hybrid, tokens are concurrency x longest request: GiB over tokens is then no rate."""
    pool, times, each = (case.log.last(n) for n in ("kv_tokens", "concurrency", "concurrency_tokens"))
    if not (pool and times and each and case.available) or case.log.engine != "vllm":
        return None
    if not times.low * each.value - 1 <= pool.value <= times.high * each.value + 1:
        return None
    rate = case.bytes_per_token()
    naive = case.available.value / rate * case.run.place.cp if rate else 0.0
    if not any(x.state_elements or any(p.retention.bounded for p in x.cache_parts) for x in case.layers):
        return None
    if naive <= 0 or abs(pool.value / naive - 1) <= 0.05:
        return None
    return Finding(
        "tokens are concurrency",
        f"{pool.value:,.0f} tokens are {times.value:g} requests x {each.value:,.0f} tokens, not GiB over bytes per "
        f"token (that would be {naive:,.0f}): windows and states do not grow with a request",
    )


def windows_in_full(case: Case) -> Finding | None:
    """The engine keeps windowed layers as if they had no window."""
    windowed = [x for x in case.layers if x.owns_cache and x.retention.bounded]
    pool = case.pool()
    if not windowed or pool is None or case.available is None or "llama" in case.log.engine:
        return None
    rate = case.bytes_per_token()
    block = (case.run.block_tokens or 16) * case.run.place.cp
    room = [x / rate * case.run.place.cp for x in (case.available.low, case.available.high)]
    if pool.unit != "tokens" or not room[0] - block <= pool.value <= room[1] + 1:
        return None
    share = sum(x.kv_bytes_per_token(case.run.kv_format) for x in windowed) / rate
    return Finding(
        "windows in full",
        f"{pool.value:,.0f} tokens x {rate:,} bytes fill the pool: {len(windowed)} windowed layers are charged in "
        f"full, {100 * share:.0f} % of it",
        pool.name if case.differs(pool) else "",
    )


def swap_space(case: Case) -> Finding | None:
    """Blocks in the host's memory are a whole number of GiB that the log does not state."""
    swap, capacity = case.log.last("cpu_blocks"), case.capacity()
    one = capacity.block_bytes if capacity else None
    if swap is None or swap.value <= 0 or not one or not case.differs(swap):
        return None
    gib = round((swap.value + 0.5) * one / GIB)
    if gib < 1 or gib * GIB // one != swap.value:
        return None
    return Finding("swap space", f"{swap.printed} blocks on the host are {gib} GiB of swap space, not 4", "cpu_blocks")


def block_remainder(case: Case) -> Finding | None:
    """Large blocks leave a remainder that no block fits."""
    if case.available is None or case.log.engine not in ("vllm", "tensorrt-llm"):
        return None
    capacity = case.capacity()
    if capacity is None or not capacity.blocks or not capacity.block_bytes:
        return None
    left = case.available.value - capacity.blocks * capacity.block_bytes
    if left < 0.005 * case.available.value:
        return None
    return Finding(
        "block rounding",
        f"{capacity.blocks:,} blocks of {capacity.block_bytes / 2**20:.1f} MiB leave {left / 2**20:.0f} MiB "
        f"({100 * left / case.available.value:.1f} %) in which no block fits",
    )


def gb_is_gib(case: Case) -> Finding | None:
    """A size printed as GB that is right only as GiB."""
    for term in case.log.terms:
        said = case.predicted(term) if term.unit == "bytes" and term.printed.endswith(" GB") else None
        if said is None or said.best < GIB / 2:
            continue
        decimal = interval(term).times(1e9 / GIB)
        if case.agrees(term) and not meets(decimal, said):
            return Finding(
                "GB means GiB", f"{term.printed} is {term.value / GIB:g} x 2^30 bytes: this log's GB are GiB"
            )
    return None


CAUSES: Final[tuple[Cause, ...]] = (
    smallest_rank, older_formula, tokens_are_concurrency, windows_in_full, swap_space, block_remainder, gb_is_gib,
)  # fmt: skip
LAST: Final[tuple[Cause, ...]] = (unseen_rank,)
"""Asked when nothing more exact explains."""
