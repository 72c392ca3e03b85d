"""Every series of ``/metrics``, said once: its name, its meaning, and the name that dashboards for vLLM look for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Series:
    """``name`` without ``kvist_`` and ``_total``. ``vllm``: names of the same meaning, without ``vllm:``."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    vllm: tuple[str, ...] = ()

    @property
    def exposed(self) -> str:
        """The name as it is scraped."""
        return f"kvist_{self.name}" + ("_total" if self.kind == "counter" else "")


def _gauge(name: str, text: str, *labels: str, vllm: tuple[str, ...] = ()) -> Series:
    return Series(name, "gauge", text, labels, vllm)


def _counter(name: str, text: str, *labels: str, vllm: tuple[str, ...] = ()) -> Series:
    return Series(name, "counter", text, labels, vllm)


def _histogram(name: str, text: str, *vllm: str) -> Series:
    return Series(name, "histogram", text, (), vllm)


TIER_SERIES: Final = (
    _gauge("tier_records", "Records that a tier holds", "tier"),
    _gauge("tier_bytes", "Bytes that they take", "tier"),
    _gauge("tier_capacity_bytes", "Bytes that they may take, where there is a bound", "tier"),
    _gauge("tier_condition", "1 for the state a tier is in (ok, read-only, off)", "tier", "state"),
    _gauge("tier_foreign_files", "Things in a tier's folder that are not its own and are left alone", "tier"),
    _gauge("tier_evicted_records", "Records that a tier let go for want of room, as it counts", "tier"),
    _gauge("tier_damaged_records", "Records that a tier found damaged and dropped, as it counts", "tier"),
    _counter("tier_read_bytes", "Bytes read from a tier", "tier"),
    _counter("tier_written_bytes", "Bytes written to a tier", "tier"),
    _counter("tier_lookups", "Records that a tier was asked about", "tier"),
    _counter("tier_found", "Of these, records that it had", "tier"),
    _counter(
        "tier_strange_lookups", "Questions to a tier that has records, none of them of this model and settings", "tier"
    ),
    _counter("tier_hits", "Records loaded from a tier, verified", "tier"),
    _counter("tier_misses", "Records that were to be loaded and were not", "tier", "reason"),
    _counter("tier_second_reads", "Records asked of a tier because a faster one turned out not to have them", "tier"),
    _counter("tier_checks", "Records compared with what computing them gives (--tier-check)", "tier", "found"),
    _counter("tier_lost_saves", "Blocks that a tier did not take", "tier", "reason"),
    _gauge("tier_queued_bytes", "Bytes that wait to be read from a tier, or written to it", "tier", "direction"),
    _gauge("tier_queued_lookups", "Questions that wait for a tier", "tier"),
    _counter("tier_decisions", "Admissions for which tiers had more than the pool, by what was decided", "decision"),
    _counter("tier_loaded_tokens", "Tokens loaded from tiers, those of preempted sequences included"),
    _counter("tier_failed_loads", "Loads that brought less than they were to"),
    _counter("tier_regret_seconds", "Seconds that the other decision would have saved, as far as is known"),
    _gauge("tier_unread", "1: the server has written 256 records or more to a tier and read none back", "tier"),
)
"""Without tiers they have no values. On paper nothing is counted for a single tier but what it holds."""

SERIES: Final = (
    _gauge("build_info", "Always 1; the version and the model", "version", "model"),
    _gauge("snapshot_age_seconds", "How old the engine's numbers are: more than 0 when a step takes long"),
    _gauge("requests_open", "Requests inside the server"),
    _gauge("requests_running", "Sequences that hold blocks and take part in steps", vllm=("num_requests_running",)),
    _gauge("requests_waiting", "Sequences in the queue", vllm=("num_requests_waiting",)),
    _gauge(
        "requests_waiting_by_reason",
        "Sequences in the queue: for their turn (queue), for blocks (capacity), for somebody who computes their prefix "
        "(leader), for what tiers say (tier)",
        "reason",
    ),
    _gauge("kv_blocks", "Blocks of the pool: free, cached (reusable and evictable) or live (in use)", "state"),
    _gauge("kv_cache_usage_ratio", "Live blocks over all blocks; 1 is full", vllm=("kv_cache_usage_perc",)),
    _gauge(
        "cache_info",
        "Always 1; what the cache is. Blocks of block_size tokens are shared, the rest of a hit is copied",
        "block_size",
        "num_gpu_blocks",
        "cache_dtype",
        "enable_prefix_caching",
        vllm=("cache_config_info",),
    ),
    _counter(
        "prompt_tokens",
        "Prompt tokens, counted once: when a request is first admitted",
        vllm=("prompt_tokens", "prefix_cache_queries"),
    ),
    _counter(
        "cached_tokens",
        "Of these, tokens that came from the cache: from the pool, or from tiers",
        "tier",
        vllm=("prefix_cache_hits",),
    ),
    _counter("computed_tokens", "Tokens computed for the first time, prompts and outputs"),
    _counter("recomputed_tokens", "Tokens computed again after a preemption"),
    _counter("refound_tokens", "Tokens that preempted sequences found again in the cache; not in cached_tokens"),
    _counter("generation_tokens", "Tokens that went out", vllm=("generation_tokens",)),
    _counter("preemptions", "Sequences that had to give their blocks back", vllm=("num_preemptions",)),
    _counter("misses", "Lookups by why the hit was not longer (limit: all that may be reused was)", "reason"),
    _counter("requests", "Requests by endpoint and by how they ended", "endpoint", "finish"),
    _counter("requests_refused", "Answers with an error, by HTTP status", "code"),
    _counter("disconnects", "Clients that left before their answer was whole"),
    _histogram("time_to_first_token_seconds", "From arrival to the first token", "time_to_first_token_seconds"),
    _histogram("inter_token_latency_seconds", "Between two tokens of a sample", "inter_token_latency_seconds"),
    _histogram(
        "time_per_output_token_seconds",
        "Per sample: its mean time per token after the first",
        "request_time_per_output_token_seconds",
    ),
    _histogram("e2e_seconds", "From arrival to the end", "e2e_request_latency_seconds"),
    _histogram("queue_seconds", "Per sample: from arrival to its first chunk", "request_queue_time_seconds"),
    _histogram("prefill_seconds", "Per sample: first chunk to first token", "request_prefill_time_seconds"),
    _histogram("decode_seconds", "Per sample: from its first token to its end", "request_decode_time_seconds"),
    _counter("steps", "Steps of the engine"),
    _counter("step_seconds", "Seconds in steps: planning, executing, committing", "part"),
    *TIER_SERIES,
    _counter("effects", "What each feature did, by the engine's counter: one that does nothing shows as 0", "counter"),
)

TENANT_SERIES: Final = (
    _counter("tenant_requests", "Requests that ended, by tenant", "tenant"),
    _counter("tenant_prompt_tokens", "Prompt tokens of requests that ended, by tenant", "tenant"),
    _counter("tenant_cached_tokens", "Of these, tokens from the cache", "tenant"),
    _counter("tenant_generation_tokens", "Output tokens of requests that ended, by tenant", "tenant"),
)
"""Only with ``--tenant-metrics``, and only for tenants that have a key."""


def metrics_table() -> str:
    """The table of ``docs/metrics.md``."""
    lines = ["| name | kind | labels | meaning | alias |", "|---|---|---|---|---|"]
    for series in (*SERIES, *TENANT_SERIES):
        labels = ", ".join(f"`{label}`" for label in series.labels)
        total = "_total" if series.kind == "counter" else ""
        alias = ", ".join(f"`vllm:{name}{total}`" for name in (*series.vllm, *_ALSO.get(series.name, ())))
        lines.append(f"| `{series.exposed}` | {series.kind} | {labels} | {series.help} | {alias} |")
    return "\n".join(lines)


_ALSO: Final = {"requests": ("request_success",)}
"""Aliases whose labels differ: ``request_success`` sums over endpoints and has ``finished_reason``."""
