"""vLLM's cases: which formula a printed count follows, what blocks are worth, and the memory identity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvist.errors import KvistError
from kvist.planner.check.case import Case
from kvist.planner.check.report import Row
from kvist.planner.check.run import Draft
from kvist.planner.engines.vllm_groups import pool_of
from kvist.units import GIB

_COUNTS_FROM = (0, 20, 2)
"""From here on (development builds of 0.21 included) tokens are concurrency times the longest request."""

_GROUPS_FROM = (0, 9, 2)
"""Before, windowed layers were charged in full."""

_HALF_GIB = 0.005 * GIB
"""A printed GiB has two decimals."""


def formula(out: Draft, printed: float) -> None:
    """Choose the emulator: by version; unversioned logs by how their own numbers hang together."""
    if out.engine == "vllm-legacy":
        return
    name, count, why = _formula(out, printed)
    out.engine = name
    if count:
        out.set(count=count)
    if why and out.quantity.kind in ("kv_tokens", "max_concurrency"):
        out.said.append(why)


def _formula(out: Draft, printed: float) -> tuple[str, str, str]:
    version = out.case.version
    if version:
        said = ".".join(str(x) for x in version)
        if version >= _COUNTS_FROM:
            if out.run.max_model_tokens is None and out.found.spec.context_tokens:
                out.change(max_model_tokens=out.found.spec.context_tokens)
                out.said.append(f"longest request {out.found.spec.context_tokens}: the model's context")
            return "vllm", "", f"{said}: tokens = concurrency x length"
        if version >= _GROUPS_FROM:
            return "vllm-legacy", "groups", f"{said}: tokens = blocks / groups x block"
        return "vllm-legacy", "layers", f"{said}: every layer charged in full"
    length, tokens = out.run.max_model_tokens, out.case.field("kv_tokens") or printed
    if out.quantity.kind != "kv_tokens" or not length:
        return ("vllm", "", "") if length else ("vllm-legacy", "groups", "older count (no longest request known)")
    block = pool_of(out.run).block_tokens
    concurrency = out.case.field("max_concurrency")
    if tokens % block == 0 and not (
        concurrency and len(pool_of(out.run).groups) > 1 and abs(tokens / length - concurrency) < 0.006
    ):
        return "vllm-legacy", "groups", f"older count (a whole number of blocks of {block})"
    return "vllm", "", "tokens = concurrency x length (not a whole number of blocks)"


def blocks_as_bytes(out: Draft) -> None:
    """Where no bytes are printed but blocks are, they stand for the pool; else the budget's terms give it."""
    if out.run.available_bytes is not None:
        return
    blocks = out.case.count("gpu_blocks", "num_gpu_blocks")
    if blocks and out.quantity.kind not in ("gpu_blocks", "cpu_blocks"):
        pool = pool_of(
            replace(out.run, knobs={k: v for k, v in out.run.knobs.items() if k not in ("count", "swap_gib")})
        )
        out.change(available_bytes=blocks * pool.largest_block_bytes)
        out.said.append(f"the pool is the printed {blocks} blocks")
        return
    left = identity_gib(out.case)
    if left is not None:
        out.change(available_bytes=int(max(0.0, left) * GIB))
        out.said.append(f"{left:.2f} GiB from the budget's terms")


def span(out: Draft, predict: Callable[[Draft], float]) -> tuple[float | None, float | None]:
    """Predictions for the ends of what a printed GiB may have been before it was rounded; None where nothing was."""
    rounded = (
        out.case.field("available_kv_gib", "kv_cache_gib", "available_gib") is not None and out.run.available_bytes
    )
    if not rounded or out.run.available_bytes is None:
        return None, None
    ends: list[float] = []
    for shift in (-_HALF_GIB, _HALF_GIB):
        bytes_ = max(0, int(out.run.available_bytes + shift))
        try:
            ends.append(predict(replace(out, run=replace(out.run, available_bytes=bytes_), said=[])))
        except KvistError:
            return None, None
    return min(ends), max(ends)


def identity_gib(case: Case) -> float | None:
    """``total x utilization - weights - activation - non-torch`` in GiB; None when a term is missing."""
    total = case.field("total_gib") or case.hardware.memory_gib() or case.words.memory_gib()
    use = case.field("gpu_memory_utilization", "gpu_util", "utilization")
    weights, activation = case.field("weights_gib"), case.field("activation_gib", "peak_activation_gib")
    other = case.field("non_torch_gib")
    if total is None or use is None or weights is None or activation is None:
        return None
    return total * use - weights - activation - (other or 0.0)


def budget(case: Case, blank: Row) -> Row:
    """The row of a memory identity: within 1 %. CUDA graphs come after it and are not part of it."""
    left = identity_gib(case)
    if left is None:
        return replace(
            blank,
            status="not predicted",
            why=("a term of the budget is missing (total, utilization, weights, activation)",),
        )
    ok = abs(left - case.expected) <= (0.01 * abs(case.expected) or _HALF_GIB / GIB)
    return replace(
        blank,
        predicted=left,
        how="total x utilization - weights - activation - non-torch",
        status="shown" if not case.judged else "budget" if ok else "off",
        tolerance_percent=1.0,
    )
