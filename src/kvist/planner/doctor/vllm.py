"""How vLLM writes its start, 0.2 to 0.30. Sizes are GiB, whatever the log calls them.

The memory lines changed four times: ``Memory profiling results`` (to 0.6.4; the torch peak includes the weights),
``model weights take`` (to 0.8), ``Actual usage is .. for weight`` (V1) and ``for consumed memory`` (0.22 and later,
weights and what is outside torch in one number).
"""

from __future__ import annotations

import re
from typing import Final

from kvist.planner.doctor.base import EngineLog, Setting
from kvist.planner.doctor.lines import LogLine, rank_of
from kvist.planner.doctor.scan import Field, flags, rule, scan

_GIB: Final = "GiB"
_RULES: Final = (
    rule("took", r"(?:Loading model weights|Model loading) took <n> ?Gi?B", Field("weights", _GIB)),
    rule(
        "Memory profiling results",
        r"total_gpu_memory ?= ?<n> ?GiB.{0,20}?initial_memory_usage ?= ?<n> ?GiB.{0,20}?peak_torch_memory ?= ?<n> ?GiB"
        r".{0,99}?non_torch_memory ?= ?<n> ?GiB.{0,9}?kv_cache_size ?= ?<n> ?GiB.{0,9}?gpu_memory_utilization ?= ?<n>",
        Field("total", _GIB),
        Field("used_at_start", _GIB),
        Field("peak_torch", _GIB),
        Field("non_torch", _GIB),
        Field("kv_available", _GIB),
        Field("utilization", "setting"),
    ),
    rule(
        "the current vLLM instance can use",
        r"total_gpu_memory \(<n> ?GiB\) x gpu_memory_utilization \(<n>\) = <n> ?GiB",
        Field("total", _GIB),
        Field("utilization", "setting"),
        Field("usable", _GIB),
    ),
    rule(
        "model weights take",
        r"model weights take <n> ?GiB; non_torch_memory takes <n> ?GiB; PyTorch activation peak memory takes <n> ?GiB; "
        r"the rest of the memory reserved for KV Cache is <n> ?GiB",
        Field("weights", _GIB),
        Field("non_torch", _GIB),
        Field("activation", _GIB),
        Field("kv_available", _GIB),
    ),
    rule("instance can use", r"instance can use +<n>GiB", Field("usable", _GIB)),
    rule("total_gpu_memory  ", r"total_gpu_memory +<n>GiB", Field("total", _GIB)),
    rule("gpu_memory_utilization  ", r"gpu_memory_utilization +<n>", Field("utilization", "setting")),
    rule("model weights take  ", r"model weights take +<n>GiB", Field("weights", _GIB)),
    rule("non_torch_memory  ", r"non_torch_memory +<n>GiB", Field("non_torch", _GIB)),
    rule("activation peak memory  ", r"activation peak memory +<n>GiB", Field("activation", _GIB)),
    rule("available_kv_cache_memory", r"available_kv_cache_memory +<n>GiB", Field("kv_available", _GIB)),
    rule(
        "Total non KV cache memory",
        r"torch peak memory increase: <n> ?GiB;(?: non-torch forward increase memory: <n> ?GiB;)?"
        r"(?: total consumed \(from mem_get_info\): <n> ?GiB;)? weights memory: <n> ?GiB",
        Field("activation", _GIB),
        Field("non_torch", _GIB),
        Field("consumed", _GIB),
        Field("weights", _GIB),
    ),
    rule(
        "Requested memory",
        r"Initial free memory:? <n> ?GiB.{0,200}?Requested memory:? <n> \(util\), <n> ?GiB",
        Field("free_at_start", _GIB),
        Field("utilization", "setting"),
        Field("usable", _GIB),
    ),
    rule(
        "Free memory on device",
        r"Free memory on device[^(]{0,20}\(<n>/<n> GiB\).{0,60}?esired GPU memory utilization (?:is )?\(<n>, <n> GiB\)",
        Field("free_at_start", _GIB),
        Field("total", _GIB),
        Field("utilization", "setting"),
        Field("usable", _GIB),
    ),
    rule(
        "Actual usage is",
        r"Actual usage is <n> GiB for weight, <n> GiB for peak activation, <n> GiB for non-torch memory, "
        r"and <n> GiB for CUDAGraph memory",
        Field("weights", _GIB),
        Field("activation", _GIB),
        Field("non_torch", _GIB),
        Field("graphs", _GIB),
    ),
    rule(
        "Actual usage is",
        r"Actual usage is <n> GiB for consumed memory[^,]*, <n> GiB for peak activation,"
        r"(?: and <n> GiB for CUDAGraph memory)?",
        Field("consumed", _GIB),
        Field("activation", _GIB),
        Field("graphs", _GIB),
    ),
    rule("Available KV cache memory", r"Available KV cache memory: <n> GiB", Field("kv_available", _GIB)),
    rule("kv cache memory in use", r"kv cache memory in use is <n> (?:GiB|bytes)", Field("kv_in_use", "?iB")),
    rule("memory for KV Cache as specified", r"reserved <n> GiB memory for KV Cache", Field("kv_available", _GIB)),
    rule("KV cache size: ", r"(?:GPU|CPU|NPU|XPU|HPU|TPU) KV cache size: <n> tokens", Field("kv_tokens", "tokens")),
    rule(
        "Maximum concurrency for",
        r"Maximum concurrency for <n> tokens per request: <n>x",
        Field("concurrency_tokens", "tokens"),
        Field("concurrency", "requests"),
    ),
    rule(
        " blocks: ",
        r"# (?:GPU|cuda|xpu|neuron|hpu) blocks: <n>(?:, # CPU blocks: <n>)?",
        Field("gpu_blocks", "blocks"),
        Field("cpu_blocks", "blocks"),
    ),
    rule("Graph capturing finished", r"Graph capturing finished in \d+ secs?, took <n> GiB", Field("graphs", _GIB)),
    rule("Estimated CUDA graph memory", r"Estimated CUDA graph memory: <n> GiB", Field("graphs_estimated", _GIB)),
    rule(
        "KV cache is needed",
        r"max seq len \(<n>\),? ?\(?<n> GiB KV cache is needed.{0,200}?available KV cache memory \(<n> GiB\)"
        r"(?:.{0,200}?estimated maximum model length is <n>)?",
        Field("needed_tokens", "tokens"),
        Field("needed", _GIB),
        Field("kv_available", _GIB),
        Field("longest_tokens", "tokens"),
    ),
    rule(
        "can be stored in KV cache",
        r"max seq len \(<n>\) is larger than the maximum number of tokens that can be stored in KV cache \(<n>\)",
        Field("needed_tokens", "tokens"),
        Field("kv_tokens", "tokens"),
    ),
    rule("Chunked prefill is enabled", r"max_num_batched_tokens=<n>", Field("batched_tokens", "setting")),
    rule("Using max model len", r"Using max model len <n>", Field("max_model_tokens", "setting")),
    rule("Setting attention block size", r"block size to <n> tokens", Field("block_tokens", "tokens")),
    rule("padding layers", r"Add <n> padding layers", Field("padding_layers", "setting")),
    rule("data type to store kv cache", r"Using <w> data type to store kv cache", Field("kv_dtype", "setting")),
    rule("KV cache format", r"Using DeepSeek's <w> KV cache format", Field("kv_dtype", "setting")),
    rule("Asynchronous scheduling is", r"Asynchronous scheduling is (enabled)", Field("async_scheduling", "setting")),
    rule("Encoder cache will be", r"with a budget of <n> tokens", Field("encoder_tokens", "setting")),
    rule("API server version", r"API server version <w>", Field("version", "setting")),
    rule("  version 0.", r"  version <w>", Field("version", "setting")),
    rule(" LLM engine (v", r"Initializing an? (?:V[01] )?LLM engine \(v<w>\)", Field("version", "setting")),
)

_ARGUMENTS: Final = ("with config:", "non-default args:", "args: Namespace(", "vllm serve ", "vllm.entrypoints")
_NAMES: Final = {
    "model": "model", "max_model_len": "max_model_tokens", "max_seq_len": "max_model_tokens",
    "tensor_parallel_size": "tp", "pipeline_parallel_size": "pp", "data_parallel_size": "dp",
    "decode_context_parallel_size": "cp", "enable_expert_parallel": "expert_parallel", "kv_cache_dtype": "kv_dtype",
    "gpu_memory_utilization": "utilization", "enable_prefix_caching": "prefix_caching",
    "max_num_batched_tokens": "batched_tokens", "max_num_seqs": "sequences", "block_size": "block_tokens",
    "quantization": "quantization", "dtype": "dtype", "enforce_eager": "eager",
    "enable_chunked_prefill": "chunked_prefill", "chunked_prefill_enabled": "chunked_prefill",
    "disable_hybrid_kv_cache_manager": "hybrid_manager_disabled", "kv_cache_memory_bytes": "kv_memory_bytes",
    "swap_space": "swap_gib",
}  # fmt: skip
_DRAFT_NAMES: Final = {
    "num_speculative_tokens": "draft_tokens", "num_spec_tokens": "draft_tokens", "method": "draft_method",
}  # fmt: skip
_START: Final = re.compile(r"API server version|Initializing an? (?:V[01] )?LLM engine")


class VllmFormat:
    """vLLM (and what is built on it: Ascend, XPU and ROCm plugins print the same lines)."""

    engines = ("vllm",)

    def parse(self, lines: list[LogLine]) -> EngineLog:
        """Terms and settings of the last start."""
        first, restarts = _last_start(lines)
        hits = list(scan(lines[first:], _RULES))
        settings: dict[str, Setting] = {}
        for line in lines[first:]:
            if any(mark in line.text for mark in _ARGUMENTS):
                settings.update(_arguments(line.text))
        for hit in hits:
            settings.update((k, v) for k, v in hit.settings if k != "utilization" or _says_more(v, settings.get(k)))
        if "async_scheduling" in settings:
            settings["async_scheduling"] = True
        version = str(settings.pop("version", ""))
        notes = (f"{restarts + 1} starts in this log: the last is read",) if restarts else ()
        return EngineLog("vllm", version, settings, tuple(t for h in hits for t in h.terms), len(lines), notes=notes)


def _arguments(text: str) -> dict[str, Setting]:
    plain, _, draft = text.partition("speculative_config")
    found = flags(plain, _NAMES)
    if draft and not re.match(r"['\"]?[=:] ?None", draft):
        found = {**flags(draft, _DRAFT_NAMES), **found}
    return {**flags(re.sub(r"SpeculativeConfig\([^)]*\)", "", draft), _NAMES), **found}


def _says_more(printed: Setting, known: Setting | None) -> bool:
    """False for a share that only repeats a known one with fewer digits."""
    return not (isinstance(known, float) and isinstance(printed, float) and abs(known - printed) <= 0.005)


def _last_start(lines: list[LogLine]) -> tuple[int, int]:
    """Where the last start begins, and how many came before. A start line counts once memory was printed."""
    first, restarts, printed = 0, 0, False
    for i, line in enumerate(lines):
        if _START.search(line.text) and not rank_of(line.text):
            if printed:
                first, restarts = i, restarts + 1
            printed = False
        elif not printed and ("KV cache" in line.text or "GPU blocks" in line.text):
            printed = True
    return first, restarts
