"""Engines that are llama.cpp with other defaults: no windowed cache, another padding, another layout of latents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvist.planner.engines.base import Capacity, Knob, RequestSizes, Run
from kvist.planner.engines.llama_cells import KNOBS
from kvist.planner.engines.llama_cpp import LlamaCpp


def _with(run: Run, defaults: Mapping[str, Knob]) -> Run:
    return replace(run, knobs={**defaults, **run.knobs})


@dataclass(frozen=True, slots=True)
class IkLlamaCpp:
    """ik_llama.cpp: every layer has all cells; ``mla`` says how latents lie (-mla 0: expanded, 1: twice, 3: latent)."""

    name: str = "ik_llama.cpp"
    knobs: Mapping[str, str] = field(default_factory=lambda: KNOBS)

    def capacity(self, run: Run) -> Capacity:
        """RequestSizes for ``n_ctx`` cells, windows charged in full."""
        return LlamaCpp(self.name).capacity(_with(run, {"windows": "none", "unified": True}))

    def request_bytes(self, run: Run, n_tokens: int) -> int:
        """Bytes of one rank for a single sequence of ``n_tokens``."""
        return self.request_sizes(run)(n_tokens)

    def request_sizes(self, run: Run) -> RequestSizes:
        """Bytes of a single sequence by length."""
        return LlamaCpp(self.name).request_sizes(_with(run, {"windows": "none", "unified": True}))


@dataclass(frozen=True, slots=True)
class IpexLlm:
    """ipex-llm's llama.cpp, an older one: cells padded to 32, one stream, windows in full, latents expanded."""

    name: str = "ipex-llm"
    knobs: Mapping[str, str] = field(default_factory=lambda: KNOBS)

    def capacity(self, run: Run) -> Capacity:
        """RequestSizes for ``n_ctx`` cells."""
        return LlamaCpp(self.name).capacity(_with(run, _OLD))

    def request_bytes(self, run: Run, n_tokens: int) -> int:
        """Bytes of one rank for a single sequence of ``n_tokens``."""
        return self.request_sizes(run)(n_tokens)

    def request_sizes(self, run: Run) -> RequestSizes:
        """Bytes of a single sequence by length."""
        return LlamaCpp(self.name).request_sizes(_with(run, _OLD))


_OLD: Mapping[str, Knob] = {"pad": 32, "windows": "none", "unified": True, "mla": "expanded"}
