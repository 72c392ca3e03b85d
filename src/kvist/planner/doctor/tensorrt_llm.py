"""How TensorRT-LLM writes its start: the C++ runtime's lines and those of the PyTorch backend.

The PyTorch backend makes a small cache first, to measure, and the real one after: the last line counts. Its ``GB`` and
``MB`` are powers of 1024.
"""

from __future__ import annotations

from typing import Final

from kvist.planner.doctor.base import EngineLog, Setting
from kvist.planner.doctor.lines import LogLine
from kvist.planner.doctor.scan import Field, flags, rule, scan

_GIB: Final = "GiB"
_RULES: Final = (
    rule(
        "for max tokens",
        r"Allocated <n> (?:[KMG]i?B) for max tokens(?: in paged KV cache)? \(<n>\)",
        Field("kv", "?iB"),
        Field("kv_tokens", "tokens"),
    ),
    rule(
        "when calculating max tokens in paged",
        r"total: <n> GiB, available: <n> GiB",
        Field("total", _GIB),
        Field("free_before_cache", _GIB),
    ),
    rule(
        "Peak memory during memory usage profiling",
        r"\(torch \+ non-torch\): <n> GiB, available KV cache memory when calculating max tokens: <n> GiB"
        r"(?:, fraction is set <n>)?(?:, kv size(?: per token)? is <n>)?(?:.{0,10}device total memory <n> GiB)?"
        r"(?:.{0,60}?<n> GiB)?",
        Field("peak", _GIB),
        Field("kv_available", _GIB),
        Field("utilization", "setting"),
        Field("kv_bytes_per_token", "setting"),
        Field("total", _GIB),
        Field("profiling_cache", _GIB),
    ),
    rule("blocks in KV cache", r"blocks in KV cache primary pool: <n>", Field("gpu_blocks", "blocks")),
    rule("tokens per block", r"[Nn]umber of tokens per block: <n>", Field("block_tokens", "setting")),
    rule("Loaded engine size", r"Loaded engine size: <n> MiB", Field("weights", "MiB")),
    rule("loading model weights", r"\(inside torch\).{0,60}?: <n> GiB", Field("weights", _GIB)),
    rule(
        "execution context memory",
        r"Allocated <n> (?:[KMG]i?B) for execution context memory",
        Field("activation", "?iB"),
    ),
    rule("for runtime buffers", r"Allocated <n> (?:[KMG]i?B) GPU memory for runtime buffers", Field("buffers", "?iB")),
    rule("for decoder", r"Allocated <n> (?:[KMG]i?B) GPU memory for decoder", Field("decoder", "?iB")),
    rule(
        "free_gpu_memory_fraction and max_tokens",
        r"are set \(to <n> and <n>, respectively\)",
        Field("utilization", "setting"),
        Field("max_total_tokens", "setting"),
    ),
    rule(
        "max_num_requests=",
        r"max_seq_len=<n>, max_num_requests=<n>, max_num_tokens=<n>",
        Field("max_model_tokens", "setting"),
        Field("sequences", "setting"),
        Field("batched_tokens", "setting"),
    ),
    rule("TensorRT-LLM version", r"TensorRT-LLM version: <w>", Field("version", "setting")),
    rule("TensorRT-LLM Version", r"TensorRT-LLM Version: +<w>", Field("version", "setting")),
)
_ARGUMENTS: Final = ("TensorRT-LLM engine args", "TorchLlmArgs(", "Initializing the worker with config", "trtllm-serve")
_NAMES: Final = {
    "model": "model", "tensor_parallel_size": "tp", "pipeline_parallel_size": "pp", "max_seq_len": "max_model_tokens",
    "max_batch_size": "sequences", "max_num_tokens": "batched_tokens", "free_gpu_memory_fraction": "utilization",
    "tokens_per_block": "block_tokens", "enable_attention_dp": "attention_dp", "max_tokens": "max_total_tokens",
    "kv_cache_dtype": "kv_dtype", "moe_expert_parallel_size": "ep", "enable_block_reuse": "prefix_caching",
}  # fmt: skip


class TensorrtLlmFormat:
    """TensorRT-LLM, alone or behind Triton or Dynamo."""

    engines = ("tensorrt-llm",)

    def parse(self, lines: list[LogLine]) -> EngineLog:
        """Terms and settings."""
        hits = list(scan(lines, _RULES))
        settings: dict[str, Setting] = {}
        for line in lines:
            if any(mark in line.text for mark in _ARGUMENTS):
                settings.update(flags(line.text, _NAMES))
        for hit in hits:
            settings.update(hit.settings)
        version = str(settings.pop("version", ""))
        return EngineLog("tensorrt-llm", version, settings, tuple(t for h in hits for t in h.terms), len(lines))
