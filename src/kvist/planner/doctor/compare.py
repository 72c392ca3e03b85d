"""Printed beside predicted: which line of an emulator answers which term of a log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from kvist.cost.interval import Interval
from kvist.errors import KvistError
from kvist.planner.doctor.base import EngineLog, Term
from kvist.planner.engines.base import Engine, Run
from kvist.units import GIB, MIB

Verdict = Literal["agrees", "differs", "read"]
"""``read``: the log prints it and nothing predicts it."""

Predictions = Mapping[tuple[str, str], Interval]
"""Numbers an emulator gives, by (line name, what)."""


@dataclass(frozen=True, slots=True)
class Row:
    """One term: what was printed (``low`` to ``high`` before rounding), what was predicted, and whether they agree."""

    name: str
    what: str
    unit: str
    printed: Interval
    text: str
    line: int
    rank: str
    predicted: Interval | None
    how: str
    verdict: Verdict

    @property
    def percent(self) -> float | None:
        """Printed against the best prediction, in percent of it."""
        if self.predicted is None or not self.predicted.best:
            return None
        return 100 * (self.printed.best / self.predicted.best - 1)


_LINES: Final[dict[str, dict[str, tuple[str, float]]]] = {
    "vllm": {
        "block_tokens": ("block_tokens", 1),
        "gpu_blocks": ("gpu_blocks", 1),
        "cpu_blocks": ("cpu_blocks", 1),
        "kv_tokens": ("kv_tokens", 1),
        "concurrency": ("max_concurrency", 1),
        "needed": ("required_kv_gib", GIB),
        "longest_tokens": ("est_max_len", 1),
    },
    "sglang": {
        "kv_tokens": ("kv_tokens", 1),
        "k": ("k_gib", GIB),
        "v": ("v_gib", GIB),
        "kv": ("kv_gib", GIB),
        "ssm": ("ssm_gib", GIB),
        "conv": ("conv_gib", GIB),
    },
    "llama.cpp": {
        "kv": ("kv_mib", MIB),
        "k": ("kv_mib_k", MIB),
        "v": ("kv_mib_v", MIB),
        "kv_cells": ("cells", 1),
        "state": ("kv_mib", MIB),
        "s": ("kv_mib_k", MIB),
        "r": ("kv_mib_v", MIB),
    },
    "tensorrt-llm": {"kv_tokens": ("kv_tokens", 1), "kv": ("kv_gib", GIB)},
}
"""Terms to lines of the emulator, and what to multiply a line by to get the term's unit."""


def lines_for(engine: str) -> Mapping[str, tuple[str, float]]:
    """The table of an engine; forks of llama.cpp print the same lines."""
    return _LINES["llama.cpp" if "llama" in engine else engine]


def predict(engine: Engine, run: Run, available: Term | None) -> Predictions:
    """Every line of the emulator, as an interval over what rounding leaves open of the available bytes.

    Raises ``BadValue`` or ``ModelError`` for what the emulator refuses.
    """
    if available is None:
        runs = [run]
    else:
        runs = [replace(run, available_bytes=max(0, int(x))) for x in (available.low, available.value, available.high)]
    found: dict[tuple[str, str], list[float]] = {}
    for one in runs:
        for line in engine.capacity(one).lines:
            found.setdefault((line.name, line.what), []).append(line.value)
    return {key: Interval(min(v), v[len(v) // 2], max(v), "exact") for key, v in found.items()}


def may_predict(engine: Engine, run: Run, available: Term | None) -> Predictions:
    """As ``predict``; empty for what the emulator refuses."""
    try:
        return predict(engine, run, available)
    except KvistError:
        return {}


def pool_run(run: Run, tokens: float) -> Run:
    """The other question: how large is a pool of so many tokens?"""
    return replace(run, max_model_tokens=max(1, int(tokens)), available_bytes=None)


def answer(term: Term, log: EngineLog, found: Predictions) -> Interval | None:
    """The prediction for a term, in its unit; None when nothing predicts it."""
    table = lines_for(log.engine)
    if term.name not in table or term.what == "draft":
        return None
    name, factor = table[term.name]
    if "llama" in log.engine and not term.what:
        kinds = {what for _, what in found}
        alone = "full layers" if "windowed layers" not in kinds else "attention"
        line = found.get((name, alone)) or found.get((name, "full layers"))
    else:
        line = found.get((name, term.what))
    return line.times(factor / _streams(term, log)) if line is not None else None


def row(term: Term, log: EngineLog, predicted: Interval | None, how: str = "") -> Row:
    """A row with its verdict: ranges that meet agree."""
    printed = Interval(term.low, term.value, term.high, "measured")
    verdict: Verdict = "read" if predicted is None else "agrees" if meets(printed, predicted) else "differs"
    return Row(term.name, term.what, term.unit, printed, term.printed, term.line, term.rank, predicted, how, verdict)


def meets(a: Interval, b: Interval, slack: float = 1e-9) -> bool:
    """True when two ranges have a number in common (``slack``: what floating point may lose, relative)."""
    room = slack * max(abs(a.best), abs(b.best))
    return a.low <= b.high + room and b.low <= a.high + room


def _streams(term: Term, log: EngineLog) -> float:
    """Of llama.cpp: it prints the cells of one stream, the emulator counts those of all."""
    if term.name != "kv_cells":
        return 1
    streams = next((t for t in log.all("kv_streams", term.what) if t.line == term.line), None)
    return streams.value if streams and streams.value >= 1 else 1
