"""How SGLang writes its start, 0.3 to 0.5. It prints ``GB`` and divides by 2^30: every size here is GiB.

Each rank prints a pool line for every cache it makes: the model's, a draft model's after ``Memory pool end``, and one
each for windowed and full layers where the two have pools of their own.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from kvist.planner.doctor.base import EngineLog, Setting, Term
from kvist.planner.doctor.lines import LogLine
from kvist.planner.doctor.scan import Field, Hit, flags, rule, scan

_GIB: Final = "GiB"
_POOL: Final = "KV Cache is allocated"
_RULES: Final = (
    rule("Load weight begin", r"Load weight begin\. avail mem=<n> GB", Field("free_before_load", _GIB)),
    rule(
        "Load weight end",
        r"Load weight end\..{0,300}?avail mem=<n> GB(?:, mem usage=<n> GB)?",
        Field("free_after_load", _GIB),
        Field("weights", _GIB),
    ),
    rule("Init torch distributed ends", r"mem usage=<n> GB", Field("non_torch", _GIB)),
    rule(
        _POOL,
        r"KV Cache is allocated\.(?: dtype: <w>,)? #tokens: <n>, K size: <n> GB, V size: <n> GB",
        Field("pool_dtype", "setting"),
        Field("kv_tokens", "tokens"),
        Field("k", _GIB),
        Field("v", _GIB),
    ),
    rule(
        _POOL,
        r"KV Cache is allocated\.(?: dtype: <w>,)? #tokens: <n>, KV size: <n> GB",
        Field("pool_dtype", "setting"),
        Field("kv_tokens", "tokens"),
        Field("kv", _GIB),
    ),
    rule(
        "sliding window memory pool",
        r"full_layer_tokens=<n>, swa_layer_tokens=<n>",
        Field("full_tokens", "tokens"),
        Field("window_tokens", "tokens"),
    ),
    rule(
        "max_mamba_cache_size: ",
        r"max_mamba_cache_size: <n>, conv_state size: <n> ?GB,? ssm_state size: <n> ?GB"
        r"(?:,? intermediate_ssm_state_cache size: <n> ?GB)?(?:,? intermediate_conv_window_cache size: <n> ?GB)?",
        Field("state_slots", "slots"),
        Field("conv", _GIB),
        Field("ssm", _GIB),
        Field("draft_ssm", _GIB),
        Field("draft_conv", _GIB),
    ),
    rule("Memory pool end", r"Memory pool end\. avail mem=<n> GB", Field("free_after_pool", _GIB)),
    rule("apture", r"Capture .{0,40}?[gG]raph end\..{0,80}?mem usage=<n> GB", Field("graphs", _GIB)),
    rule("max_total_num_tokens=", r"max_total_num_tokens=<n>", Field("pool_tokens", "tokens")),
    rule("chunked_prefill_size=", r"tokens=\d+,.{0,80}?chunked_prefill_size=<n>", Field("batched_tokens", "setting")),
    rule("max_running_requests=", r"tokens=\d+,.{0,160}?max_running_requests=<n>", Field("sequences", "setting")),
    rule("context_len=", r"tokens=\d+,.{0,200}?context_len=<n>", Field("max_model_tokens", "setting")),
    rule("available_gpu_mem=", r"available_gpu_mem=<n> GB", Field("free_at_end", _GIB)),
    rule("Using KV cache dtype", r"Using KV cache dtype: <w>", Field("kv_dtype", "setting")),
    rule("sglang", r"sglang(?:\[\w+\])?(?:==| version:? v?)<w>", Field("version", "setting")),
)
_ARGUMENTS: Final = ("server_args=", "ServerArgs(", "sglang.launch_server", "sglang serve")
_NAMES: Final = {
    "model_path": "model", "model": "model", "context_length": "max_model_tokens", "tp_size": "tp",
    "tensor_parallel_size": "tp", "tp": "tp", "pp_size": "pp", "dp_size": "dp", "dp": "dp", "ep_size": "ep",
    "kv_cache_dtype": "kv_dtype", "mem_fraction_static": "utilization", "page_size": "block_tokens",
    "max_running_requests": "sequences", "chunked_prefill_size": "batched_tokens", "quantization": "quantization",
    "dtype": "dtype", "enable_dp_attention": "attention_dp", "disable_radix_cache": "radix_cache_disabled",
    "max_total_tokens": "max_total_tokens", "speculative_algorithm": "draft_method",
    "speculative_num_draft_tokens": "draft_tokens", "disable_cuda_graph": "eager",
    "swa_full_tokens_ratio": "window_share", "mamba_full_memory_ratio": "state_share",
    "max_mamba_cache_size": "state_slots",
}  # fmt: skip
_START: Final = re.compile(r"server_args=(?:ServerArgs\()?")


class SglangFormat:
    """SGLang."""

    engines = ("sglang",)

    def parse(self, lines: list[LogLine]) -> EngineLog:
        """Terms and settings of the last start."""
        first, restarts = _last_start(lines)
        hits = list(scan(lines[first:], _RULES))
        settings: dict[str, Setting] = {}
        for line in lines[first:]:
            if any(mark in line.text for mark in _ARGUMENTS):
                settings.update(flags(line.text, _NAMES))
        for hit in hits:
            settings.update({k: v for k, v in hit.settings if k != "pool_dtype" or "pool_dtype" not in settings})
        if settings.get("batched_tokens") == -1:
            settings.pop("batched_tokens")
            settings["chunked_prefill"] = False
        if (disabled := settings.pop("radix_cache_disabled", None)) is not None:
            settings["prefix_caching"] = not disabled
        version = str(settings.pop("version", ""))
        notes = (f"{restarts + 1} starts in this log: the last is read",) if restarts else ()
        return EngineLog("sglang", version, settings, _name_pools(hits), len(lines), notes=notes)


def _name_pools(hits: list[Hit]) -> tuple[Term, ...]:
    """Say which cache a pool line is about, rank by rank."""
    out: list[Term] = []
    split: dict[str, tuple[float, float]] = {}
    draft: dict[str, str] = {}
    for hit in hits:
        terms, names = hit.terms, {t.name for t in hit.terms}
        if not terms:
            continue
        rank = terms[0].rank
        if "full_tokens" in names:
            split[rank] = (terms[0].value, terms[1].value)
        what = draft.get(rank, "")
        if "kv_tokens" in names and rank in split and not what:
            what = {split[rank][0]: "full layers", split[rank][1]: "windowed layers"}.get(terms[0].value, "")
        if hit.rule.needle == _POOL or what == "draft" and names & {"weights", "free_after_load", "free_after_pool"}:
            terms = tuple(replace(t, what=what) for t in terms)
        elif "weights" in names and any(t.name == "weights" and t.rank == rank for t in out):
            terms = tuple(replace(t, what="draft") for t in terms)
        out += terms
        if "free_after_pool" in names:
            draft[rank] = "draft"
    return tuple(out)


def _last_start(lines: list[LogLine]) -> tuple[int, int]:
    first, restarts, printed = 0, 0, False
    for i, line in enumerate(lines):
        if printed and _START.search(line.text):
            first, restarts, printed = i, restarts + 1, False
        elif _POOL in line.text:
            printed = True
    return first, restarts
