"""Terms of a log that stand for one constant of a plan, rank by rank, summed where an engine prints parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kvist.cost.interval import Interval
from kvist.planner.doctor.base import EngineLog, Term

_ACTIVATION: Final = {
    "vllm": ("activation",), "tensorrt-llm": ("activation", "buffers", "decoder"),
    "llama.cpp": ("compute_buffer",), "ik_llama.cpp": ("compute_buffer",),
}  # fmt: skip
_HOSTS: Final = ("CPU", "_Host", "BLAS", "AMX")

Known = list[tuple[Interval, str]]
"""Values in bytes, one per rank or device, each with the line and the sum it came from."""


def _of(terms: Iterable[Term]) -> Known:
    return [(Interval(t.low, t.value, t.high, "measured"), f"line {t.line}: {t.printed}") for t in terms]


def _minus(a: Term, *rest: Term) -> tuple[Interval, str]:
    low = a.low - sum(t.high for t in rest)
    high = a.high - sum(t.low for t in rest)
    said = f"line {a.line}: {a.printed}" + "".join(f" - {t.printed}" for t in rest)
    return Interval(low, a.value - sum(t.value for t in rest), high, "measured"), said


def _pairs(log: EngineLog, *names: str) -> list[tuple[Term, ...]]:
    """Terms of one rank that printed all of ``names``; a term only one rank printed serves all."""
    first = log.by_rank(names[0])
    out = []
    for rank in first:
        others = [log.by_rank(n).get(rank) or log.most(n) for n in names[1:]]
        if all(others):
            out.append((first[rank], *(t for t in others if t)))
    return out


def weights(log: EngineLog) -> Known:
    """Weights per rank; of llama.cpp what each device holds."""
    if "llama" in log.engine:
        return _summed(t for t in log.all("model_buffer") if on_device(t))
    return _of(log.by_rank("weights", "" if log.engine == "sglang" else None).values())


def activation(log: EngineLog) -> Known:
    """Intermediate results: profiled, or the buffers set aside for them."""
    if direct := log.by_rank("activation") if log.engine == "vllm" else {}:
        return _of(direct.values())
    if peaks := _pairs(log, "peak_torch", "weights"):
        return [_minus(*pair) for pair in peaks]
    terms = [t for name in _ACTIVATION.get(log.engine, ()) for t in log.all(name) if on_device(t)]
    return _summed(terms) if terms else []


def runtime(log: EngineLog) -> Known:
    """What was taken outside the tensors: contexts, collective buffers."""
    if log.engine == "vllm":
        if consumed := _pairs(log, "consumed", "weights"):
            return [_minus(*pair) for pair in consumed]
        return _of(log.by_rank("non_torch").values())
    if log.engine == "sglang":
        return _of(log.by_rank("non_torch").values())
    return _of(t for t in log.all("unaccounted"))


def graphs(log: EngineLog) -> Known:
    """Graphs of one rank: the captures that one rank did, summed (SGLang captures drafts apart)."""
    if log.engine != "sglang":
        terms = list(log.by_rank("graphs").values()) or list(log.by_rank("graphs_estimated").values())
        return _of(t for t in terms if t.value > 0)
    ranks: dict[str, list[Term]] = {}
    for term in log.all("graphs"):
        ranks.setdefault(term.rank, []).append(term)
    return [known for terms in ranks.values() for known in _summed(terms, by_device=False)]


def _summed(terms: Iterable[Term], *, by_device: bool = True) -> Known:
    """Sums per device (or of all), each as one number."""
    sums: dict[str, list[Term]] = {}
    for term in terms:
        sums.setdefault(term.what.removeprefix("draft ") if by_device else "", []).append(term)
    return [
        (
            Interval(sum(t.low for t in x), sum(t.value for t in x), sum(t.high for t in x), "measured"),
            f"line {x[0].line}: " + " + ".join(t.printed for t in x),
        )
        for x in sums.values()
    ]


def on_device(term: Term) -> bool:
    """False for buffers in the host's memory, when a log has both."""
    return not any(word in term.what for word in _HOSTS)
