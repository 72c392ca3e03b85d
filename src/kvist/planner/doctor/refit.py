"""Constants of a plan, taken back out of a log: what activations, the runtime and captured graphs really took."""

from __future__ import annotations

from collections.abc import Mapping

from kvist.cost.interval import Interval
from kvist.errors import BadValue
from kvist.planner.budget import Overheads
from kvist.planner.doctor.base import EngineLog
from kvist.planner.doctor.identity import solved_share
from kvist.planner.doctor.measured import Known, activation, graphs, runtime, weights


def refit(log: EngineLog) -> dict[str, object]:
    """What a plan assumes and this log knows: JSON-able, bytes of one device. What the log cannot answer is absent.

    ``weights_bytes``, ``activation_bytes``, ``runtime_bytes``, ``graph_bytes``: each ``{low, best, high, tag, how}``
    over ranks, ``best`` the tightest rank's. ``activation_bytes_per_token`` divides by the tokens of a step.
    ``utilization`` and ``batched_tokens`` are repeated, since the rest belongs to them.
    """
    out: dict[str, object] = {}
    found = {
        "weights_bytes": weights(log),
        "activation_bytes": activation(log),
        "runtime_bytes": runtime(log),
        "graph_bytes": graphs(log),
    }
    for name, terms in found.items():
        if terms:
            out[name] = _entry(terms)
    step = log.count("batched_tokens")
    if step and step > 0 and found["activation_bytes"]:
        most = max(x.best for x, _ in found["activation_bytes"])
        out["activation_bytes_per_token"] = most / step
        out["batched_tokens"] = step
    share = log.number("utilization")
    share = solved_share(log) if share is None else share
    if share is not None:
        out["utilization"] = share
    return out


def overheads(refitted: Mapping[str, object], guess: Overheads) -> Overheads:
    """``guess`` with what was refitted in its place. Raises ``BadValue`` for entries not of ``refit``'s form."""
    return Overheads(
        activation=_taken(refitted, "activation_bytes") or guess.activation,
        runtime=_taken(refitted, "runtime_bytes") or guess.runtime,
        graphs=_taken(refitted, "graph_bytes") or guess.graphs,
    )


def _taken(refitted: Mapping[str, object], name: str) -> Interval | None:
    entry = refitted.get(name)
    if entry is None:
        return None
    ends = [entry.get(end) for end in ("low", "best", "high")] if isinstance(entry, Mapping) else []
    numbers = [float(x) for x in ends if isinstance(x, int | float) and not isinstance(x, bool)]
    if len(numbers) != 3 or not numbers[0] <= numbers[1] <= numbers[2]:
        raise BadValue(name, entry, "low <= best <= high, in bytes")
    return Interval(numbers[0], numbers[1], numbers[2], "measured")


def _entry(known: Known) -> dict[str, object]:
    worst, how = max(known, key=lambda pair: pair[0].best)
    low = min(x.low for x, _ in known)
    return {
        "low": max(0.0, low),
        "best": max(0.0, worst.best),
        "high": max(0.0, worst.high),
        "tag": "measured",
        "how": how,
    }
