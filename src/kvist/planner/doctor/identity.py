"""A log's own sum: what the engine allowed itself, less what it measured, is what the cache got.

    vLLM          total x utilization - weights - activation - outside torch = available for the cache
    SGLang        free after loading - free before loading x (1 - fraction)  = pools of the cache
    TensorRT-LLM  free before the cache x fraction                           = allocated

A sum that does not close within the rounding of its terms is the start of every explanation.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvist.cost.interval import Interval
from kvist.planner.doctor.base import EngineLog, Term


@dataclass(frozen=True, slots=True)
class Identity:
    """One rank's sum, in bytes. ``printed`` is what the log says the cache got; ``taken`` were subtracted.

    ``share_known`` is False when the usable bytes are total x utilization and not printed themselves.
    """

    rank: str
    usable: Interval
    taken: tuple[Term, ...]
    printed: Interval
    how: str
    share_known: bool = True

    @property
    def expected(self) -> Interval:
        """What the cache should have got."""
        low = sum(t.low for t in self.taken)
        high = sum(t.high for t in self.taken)
        best = sum(t.value for t in self.taken)
        return Interval(self.usable.low - high, self.usable.best - best, self.usable.high - low, "measured")

    @property
    def gap(self) -> float:
        """Printed less expected: bytes that the terms do not account for."""
        return self.printed.best - self.expected.best

    def closes(self, besides: float = 0.0) -> bool:
        """True when printed and expected agree within rounding, ``besides`` more bytes being taken."""
        want = self.expected
        return self.printed.low <= want.high - besides and want.low - besides <= self.printed.high


def solved_share(log: EngineLog) -> float | None:
    """The fraction that SGLang or TensorRT-LLM must have used, from what was free and what the cache got."""
    if log.engine == "tensorrt-llm":
        kv, free = log.last("kv"), log.last("free_before_cache")
        return kv.value / free.value if kv and free and free.value > 0 else None
    for rank, before in log.by_rank("free_before_load", "").items() if log.engine == "sglang" else ():
        after = of_rank(log, "free_after_load", rank)
        pools = _pools(log, rank)
        if after and pools and before.value > 0:
            return 1 - (after.value - sum(t.value for t in pools)) / before.value
    return None


def _pools(log: EngineLog, rank: str) -> list[Term]:
    """All caches of a rank, a draft's apart."""
    return [t for t in log.terms if t.rank == rank and t.name in ("k", "v", "kv", "conv", "ssm") and t.what != "draft"]


def interval(term: Term) -> Interval:
    """A printed number with its rounding."""
    return Interval(term.low, term.value, term.high, "measured")


def identities(log: EngineLog) -> tuple[Identity, ...]:
    """One for every rank whose terms are all printed; empty when the log says too little."""
    find = {"vllm": _vllm, "sglang": _sglang, "tensorrt-llm": _tensorrt}.get(log.engine)
    if find is None:
        return ()
    ranks = dict.fromkeys(t.rank for t in log.terms if t.name in ("kv_available", "kv_tokens", "kv"))
    return tuple(found for rank in ranks if (found := find(log, rank)) is not None)


def of_rank(log: EngineLog, name: str, rank: str) -> Term | None:
    """The last print of ``name`` by ``rank``, or by the only one who printed it."""
    found = log.by_rank(name, "" if log.engine == "sglang" else None)
    return found.get(rank) or (next(iter(found.values())) if len(found) == 1 else None)


def _share(log: EngineLog) -> float | None:
    """The stated share of the device, where it is one."""
    share = log.number("utilization")
    return share if share is not None and 0 < share <= 1 else None


def _vllm(log: EngineLog, rank: str) -> Identity | None:
    kv = log.by_rank("kv_available").get(rank)
    whole, usable = of_rank(log, "total", rank), of_rank(log, "usable", rank)
    share = _share(log)
    if kv is None or not (usable or (whole and share)):
        return None
    terms = {n: of_rank(log, n, rank) for n in ("consumed", "activation", "peak_torch", "non_torch", "weights")}
    ways = (("consumed", "activation"), ("peak_torch", "non_torch"), ("weights", "activation", "non_torch"))
    taken = next((tuple(terms[n] for n in way) for way in ways if all(terms[n] for n in way)), None)
    if taken is None:
        return None
    if usable is not None:
        room, how = interval(usable), "usable"
    else:
        assert whole is not None and share is not None
        room, how = interval(whole).times(share), f"total x {share:g}"
    said = " - ".join([how, *(t.name.replace("_", " ") for t in taken if t)])
    return Identity(rank, room, tuple(t for t in taken if t), interval(kv), said, usable is not None)


def _sglang(log: EngineLog, rank: str) -> Identity | None:
    before, after = of_rank(log, "free_before_load", rank), of_rank(log, "free_after_load", rank)
    share = _share(log)
    pools = _pools(log, rank)
    if before is None or after is None or share is None or not pools:
        return None
    kept = interval(before).times(1 - share)
    low, best, high = (sum(getattr(t, end) for t in pools) for end in ("low", "value", "high"))
    return Identity(
        rank,
        Interval(after.low - kept.high, after.value - kept.best, after.high - kept.low, "measured"),
        (),
        Interval(low, best, high, "measured"),
        f"free after loading - free before x {1 - share:.4g}",
    )


def _tensorrt(log: EngineLog, rank: str) -> Identity | None:
    kv, free = log.by_rank("kv").get(rank), of_rank(log, "free_before_cache", rank)
    share = _share(log)
    if kv is None or free is None or share is None:
        return None
    return Identity(rank, interval(free).times(share), (), interval(kv), f"free before the cache x {share:g}", False)


def closing_share(log: EngineLog) -> Interval | None:
    """The utilization of vLLM at which the log's own sum closes, from total, terms and what the cache got."""
    for one in identities(log) if log.engine == "vllm" else ():
        total = log.by_rank("total").get(one.rank) or log.least("total")
        if total is None or total.low <= 0 or one.share_known:
            continue
        spent = [sum(getattr(t, end) for t in one.taken) for end in ("low", "value", "high")]
        ends = (one.printed.low + spent[0], one.printed.best + spent[1], one.printed.high + spent[2])
        if ends[0] < 0:
            continue
        return Interval(ends[0] / total.high, ends[1] / total.value, ends[2] / total.low, "measured")
    return None
