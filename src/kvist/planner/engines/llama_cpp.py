"""llama.cpp: cells for every sequence up front; full layers, windowed ones and recurrent state have a buffer each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kvist.planner.engines.base import Capacity, Line, RequestSizes, Run, require_known_knobs
from kvist.planner.engines.llama_cells import KNOBS, Sizes, cells, device_of, lines_of, n_ctx, sizes, streams
from kvist.planner.engines.search import most
from kvist.planner.engines.stages import rank_layers, refuse_compressed
from kvist.spec.layer import LayerSpec
from kvist.units import GIB, MIB


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """llama.cpp. ``tokens`` are those of all sequences together. Tensor parallelism is cut as other engines cut it."""

    name: str = "llama.cpp"
    knobs: Mapping[str, str] = field(default_factory=lambda: KNOBS)

    def capacity(self, run: Run) -> Capacity:
        """Sizes for ``n_ctx`` cells; with ``available_bytes`` also the most cells that fit. Raises ``BadValue``."""
        require_known_knobs(self, run)
        refuse_compressed(self.name, run)
        stages = rank_layers(run)
        lines: list[Line] = []
        request = None
        if run.max_model_tokens is not None or "n_ctx" in run.knobs:
            found = _found(stages, run, n_ctx(run))
            lines += [*_total(found), *lines_of(found, f", {streams(run)} streams"), *_device_lines(stages, run)]
            lines.append(Line("required_kv_gib", sum(s.all for s in found) / GIB, "all buffers"))
            request = self.request_bytes(run, run.max_model_tokens) if run.max_model_tokens else None
        if run.available_bytes is None:
            return Capacity(block_tokens=1, request_bytes=request, lines=tuple(lines))
        tokens = self._most(stages, run)
        lines.append(Line("kv_tokens", tokens, f"most tokens whose buffers fit {run.available_bytes} B"))
        longest = tokens // streams(run)
        fits = tokens / run.max_model_tokens if run.max_model_tokens else None
        return Capacity(tokens, None, 1, None, fits, request, longest, tuple(lines))

    def request_bytes(self, run: Run, n_tokens: int) -> int:
        """Bytes of one rank for a single sequence of ``n_tokens``, padding included."""
        return self.request_sizes(run)(n_tokens)

    def request_sizes(self, run: Run) -> RequestSizes:
        """Bytes of a single sequence by length."""
        alone = replace(run, sequences=1, knobs={k: v for k, v in run.knobs.items() if k != "n_ctx"})
        stages = rank_layers(run)
        return lambda n_tokens: sum(s.all for s in _found(stages, alone, n_tokens))

    def _most(self, stages: tuple[tuple[LayerSpec, ...], ...], run: Run) -> int:
        """Most tokens of all sequences; a step is one padded cell in every stream."""
        budget = run.available_bytes or 0
        step = run.number("pad", 256, low=1) * streams(run)
        limit = max(run.spec.context_tokens, run.max_model_tokens or 0, 1) * streams(run)
        limit = max(limit, (run.max_model_tokens or 0) * (run.sequences or 1))

        def fits(n: int) -> bool:
            return sum(s.all for s in _found(stages, run, n * step)) <= budget

        return min(most(fits, -(-limit // step)) * step, limit)


def _found(stages: tuple[tuple[LayerSpec, ...], ...], run: Run, total: int) -> list[Sizes]:
    """Sizes by kind of the stage that holds most."""
    whole = cells(run, total)
    return max((sizes(stage, run, whole) for stage in stages), key=lambda found: sum(s.all for s in found))


def _total(found: list[Sizes]) -> list[Line]:
    """All buffers together, and the rows of attention without recurrent state."""
    lines: list[Line] = []
    for what, kinds in (("all", found), ("attention", [s for s in found if s.what != "recurrent state"])):
        how = " + ".join(f"{s.all / MIB:.2f} MiB ({s.what})" for s in kinds)
        lines += [
            Line("kv_mib", sum(s.all for s in kinds) / MIB, how, what),
            Line("kv_mib_k", sum(s.k for s in kinds) / MIB, how, what),
            Line("kv_mib_v", sum(s.v for s in kinds) / MIB, how, what),
        ]
    return lines


def _device_lines(stages: tuple[tuple[LayerSpec, ...], ...], run: Run) -> list[Line]:
    """Each device's share of every layer it has, when there are several."""
    devices = run.number("devices", 1, low=1)
    if devices == 1:
        return []
    whole = cells(run, n_ctx(run))
    layers = tuple(layer for stage in stages for layer in stage)
    lines: list[Line] = []
    for device in range(devices):
        own = tuple(x for x in layers if device_of(x.index, len(run.spec.layers), devices) == device)
        found = sizes(own, run, whole)
        how = f"{len(own)} of {len(layers)} layers on device {device}"
        lines += [
            Line("kv_mib", sum(s.all for s in found) / MIB, how, f"device {device}"),
            Line("kv_mib_k", sum(s.k for s in found) / MIB, how, f"device {device}"),
            Line("kv_mib_v", sum(s.v for s in found) / MIB, how, f"device {device}"),
        ]
    return lines
