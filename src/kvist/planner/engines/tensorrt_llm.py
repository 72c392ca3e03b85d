"""TensorRT-LLM: blocks of all layers; what its log calls *max tokens in paged KV cache*.

Source: ``cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kvist.planner.engines.base import Capacity, Line, RequestSizes, Run, require_known_knobs
from kvist.planner.engines.stages import rank_layers, refuse_compressed
from kvist.units import GIB, ceil_div, round_up

BLOCK_TOKENS: Final = 32
"""Default of ``tokens_per_block`` (64 before 0.20)."""


@dataclass(frozen=True, slots=True)
class TensorrtLlm:
    """One pool of blocks, every layer charged in full. Recurrent state is one slot a sequence, in 16 bits."""

    name: str = "tensorrt-llm"
    knobs: Mapping[str, str] = field(default_factory=dict)

    def capacity(self, run: Run) -> Capacity:
        """What the engine will print. Without ``available_bytes``: the size of ``max_model_tokens`` tokens."""
        require_known_knobs(self, run)
        refuse_compressed(self.name, run)
        block = run.block_tokens or BLOCK_TOKENS
        rates = [_rate(run, stage) for stage in range(run.place.pp)]
        tokens, blocks = run.max_model_tokens or 0, None
        if run.available_bytes is not None:
            blocks = min(run.available_bytes // (block * rate) for rate in rates if rate)
            tokens = blocks * block * run.place.cp
        share = ceil_div(tokens, run.place.cp)
        how = f"{share} tokens of {max(rates)} B on a rank"
        lines = [Line("kv_gib", share * max(rates) / GIB, how), Line("kv_tokens", tokens, f"blocks of {block} tokens")]
        known = run.max_model_tokens if run.available_bytes is not None else None
        return Capacity(
            tokens=tokens or None,
            blocks=blocks,
            block_tokens=block,
            block_bytes=block * max(rates),
            concurrency=tokens / (ceil_div(known, block) * block) if known else None,
            request_bytes=self.request_bytes(run, run.max_model_tokens) if run.max_model_tokens else None,
            longest_tokens=min(tokens, run.spec.context_tokens or tokens) if blocks is not None else None,
            lines=tuple(lines),
        )

    def request_bytes(self, run: Run, n_tokens: int) -> int:
        """Bytes of one rank that a request of ``n_tokens`` holds, blocks rounded up."""
        return self.request_sizes(run)(n_tokens)

    def request_sizes(self, run: Run) -> RequestSizes:
        """Rows of whole blocks, by length."""
        block, cp = run.block_tokens or BLOCK_TOKENS, run.place.cp
        rate = max(_rate(run, stage) for stage in range(run.place.pp))
        return lambda n: rate * round_up(ceil_div(n, cp), block)


def _rate(run: Run, stage: int) -> int:
    return sum(layer.kv_bytes_per_token(run.kv_format) for layer in rank_layers(run)[stage])
