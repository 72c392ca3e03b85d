"""Rows about where memory went: printed terms beside a plan's, and the log's own sum beside what the cache got."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from kvist.cost.interval import Interval
from kvist.planner.budget import Overheads
from kvist.planner.doctor.base import EngineLog, Term
from kvist.planner.doctor.compare import Row, row
from kvist.planner.doctor.identity import Identity, identities
from kvist.planner.doctor.measured import on_device
from kvist.units import GIB

_NAMES: Final = {
    "total": "", "usable": "", "weights": "weights", "consumed": "", "peak_torch": "", "activation": "activation",
    "non_torch": "runtime", "graphs": "graphs", "model_buffer": "weights", "compute_buffer": "activation",
    "unaccounted": "runtime",
}  # fmt: skip
"""Terms in the order in which memory is taken, and which of a plan's terms answers each."""


_LOADING: Final = 0.02
"""Loaders pad vocabularies and repack weights, allocators round up: what is printed is off by up to this."""


def budget_rows(log: EngineLog, weights: Interval | None, overheads: Overheads | None) -> Iterator[Row]:
    """``weights`` are bytes of one rank, ``overheads`` what a plan assumed; both may be unknown."""
    given: dict[str, Interval | None] = {"weights": None}
    if weights is not None:
        given["weights"] = Interval(
            weights.low * (1 - _LOADING), weights.best, weights.high * (1 + _LOADING), weights.tag
        )
    if overheads is not None:
        given |= {"activation": overheads.activation, "runtime": overheads.runtime, "graphs": overheads.graphs}
    for name, theirs in _NAMES.items():
        guess = given.get(theirs)
        for term in _alike(_of_model(log, name)):
            known = guess if on_device(term) else None
            yield row(term, log, known, "as planned" if known is not None else "")
    yield from _cache_rows(log)


def _of_model(log: EngineLog, name: str) -> Iterable[Term]:
    """The last print of every rank; every device's buffer; nothing of a draft's."""
    if "llama" in log.engine:
        return [t for t in log.all(name) if not t.what.startswith("draft")]
    return log.by_rank(name, "" if log.engine == "sglang" else None).values()


def _cache_rows(log: EngineLog) -> Iterator[Row]:
    """What the cache got, by rank, beside what the rank's own terms leave."""
    sums = {i.rank: i for i in identities(log)}
    printed = log.by_rank("kv_available")
    if log.engine != "vllm":
        printed = {rank: _pool(log, one) for rank, one in sums.items()} or printed
    kinds: dict[tuple[float, float], list[str]] = {}
    for rank, term in printed.items():
        kinds.setdefault((term.value, sums[rank].expected.best if rank in sums else 0.0), []).append(rank)
    for ranks in kinds.values():
        term, one = printed[ranks[0]], sums.get(ranks[0])
        named = replace(term, rank=f"{len(ranks)} ranks") if len(ranks) > 1 else term
        yield row(named, log, one.expected if one else None, one.how if one else "")


def _pool(log: EngineLog, one: Identity) -> Term:
    """The sum of a rank's pools as one term, on the line of the last."""
    last, step = log.all("kv_tokens")[-1], one.printed.high - one.printed.low
    said = f"{one.printed.best / GIB:.2f} GiB"
    return Term("kv_available", one.printed.best, "bytes", said, last.line, last.text, step, one.rank)


def _alike(terms: Iterable[Term]) -> Iterator[Term]:
    """Ranks that print the same number as one term."""
    values: dict[tuple[float, str], list[Term]] = {}
    for term in terms:
        values.setdefault((term.value, term.what), []).append(term)
    for same in values.values():
        yield replace(same[0], rank=f"{len(same)} ranks") if len(same) > 1 and same[0].rank else same[0]
