"""From timed steps to rates: robust least squares on the logarithm of seconds, by the law that ``cost.pipe`` states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from kvist.cost.measured import BUSY, Overhead, Pipe, Spread
from kvist.cost.work import Work
from kvist.errors import StateError

TRUSTED: Final = 0.05
"""Relative error at which a reading counts half; further off it counts less and less, as the square (Cauchy)."""
PRIOR: Final = 0.01
"""Weight of the starting values: decides only what the readings leave open."""
ROUNDS: Final = 60
FLIP: Final = 0.15
"""Relative change of the memory's speed during a reading that makes it useless: it belongs to neither speed."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One timed step (or the median of a run of like ones) of point number ``point``.

    ``outside_s`` of its ``seconds`` passed outside the model's forward pass. ``continues``: every sequence computed one
    token. ``bandwidth`` (bytes per second) is the memory's speed around it, ``flip`` its relative change meanwhile,
    ``others`` the share of the processor that other processes took.
    """

    point: int
    kv_format: str
    work: Work
    seconds: float
    outside_s: float
    bandwidth: float
    continues: bool
    flip: float = 0.0
    others: float = 0.0

    @property
    def clean(self) -> bool:
        """Nothing disturbed it."""
        return self.others <= BUSY and self.flip <= FLIP


@dataclass(frozen=True, slots=True)
class Fit:
    """What the readings say. ``errors`` are log(fit / measured) of ``used``, in order."""

    linear: Pipe
    attention: Mapping[str, Pipe]
    overhead: Overhead
    used: tuple[Reading, ...]
    errors: np.ndarray

    def spread(self, *, continues: bool) -> Spread:
        """Measured over fit: where nine tenths of the readings of that kind lie, 1 included."""
        ratios = np.exp([-e for r, e in zip(self.used, self.errors, strict=True) if r.continues == continues] or [0.0])
        low, high = np.quantile(ratios, [0.05, 0.95])
        return Spread(min(float(low), 1.0), max(float(high), 1.0))


def usable(readings: Sequence[Reading], least: int = 2) -> list[Reading]:
    """Clean readings; of a point and kind with fewer than ``least`` of them, the least disturbed ones."""
    out: list[Reading] = []
    for key in dict.fromkeys((r.point, r.continues) for r in readings):
        alike = [r for r in readings if (r.point, r.continues) == key]
        clean = [r for r in alike if r.clean]
        out += clean if len(clean) >= least else sorted(alike, key=lambda r: r.others + r.flip)[:least]
    return out


def fit(readings: Sequence[Reading], start_flops: float) -> Fit:
    """Rates and overheads. ``start_flops`` is a first guess of FLOPs per second. Raises ``StateError`` for too few."""
    used = usable(readings)
    formats = sorted({r.kv_format for r in used})
    if len({r.continues for r in used}) < 2:
        raise StateError("steps of both kinds (with new prompts, and without) are needed to fit a machine")
    outside = _line([(r.work.sequences, r.outside_s) for r in used if r.continues])
    law = _Law(used, formats, *outside)
    bandwidth = float(np.median([r.bandwidth for r in used]))
    guess = [5e-5, 1e-6, bandwidth, start_flops, 2 * bandwidth, *[0.8] * len(formats), *[start_flops] * len(formats)]
    found, errors = _least_squares(law.seconds, np.log(guess), law.measured, law.weights)
    return Fit(*law.parts(found), tuple(used), errors)


class _Law:
    """The law over arrays of readings. Parameters are logarithms, so that all rates stay positive."""

    def __init__(self, used: Sequence[Reading], formats: Sequence[str], step_s: float, sequence_s: float) -> None:
        self._formats = formats
        self._outside = step_s, sequence_s
        self._of = {f: np.array([r.kv_format == f for r in used]) for f in formats}
        self._bandwidth = np.array([r.bandwidth for r in used])
        self._w: Any = _columns([r.work for r in used])
        self.measured = np.log([r.seconds for r in used])
        kinds = [(r.point, r.continues) for r in used]
        self.weights = np.array([1 / kinds.count(kind) for kind in kinds])

    def parts(self, x: np.ndarray) -> tuple[Pipe, dict[str, Pipe], Overhead]:
        """Parameters as what they mean."""
        values = [float(v) for v in np.exp(x)]
        n = len(self._formats)
        layer_s, layer_sequence_s, stream, flops, cache_stream = values[:5]
        attention = {f: Pipe(values[5 + i], values[5 + n + i], cache_stream) for i, f in enumerate(self._formats)}
        return Pipe(1.0, flops, stream), attention, Overhead(*self._outside, layer_s, layer_sequence_s)

    def seconds(self, x: np.ndarray) -> np.ndarray:
        """Logarithms of the seconds of every reading."""
        linear, attention, overhead = self.parts(x)
        w, bandwidth = self._w, self._bandwidth
        out: Any = overhead.seconds(w)
        out = out + linear.seconds(w.weight_bytes, w.linear_flops, bandwidth)  # type: ignore[arg-type]
        out = out + linear.seconds(w.head_bytes, w.head_flops, bandwidth)  # type: ignore[arg-type]
        cache, flops = w.kv_read_bytes + w.kv_write_bytes + w.state_bytes, w.attention_flops + w.state_flops
        for name, pipe in attention.items():
            at = self._of[name]
            out[at] += pipe.seconds(cache[at], flops[at], bandwidth[at])
        return np.asarray(np.log(out))


def _columns(works: Sequence[Work]) -> Work:
    """One ``Work`` whose fields are arrays over ``works``."""
    names = Work.__dataclass_fields__
    return Work(**{name: np.array([float(getattr(w, name)) for w in works]) for name in names})  # type: ignore[arg-type]


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """(constant, slope), both >= 0, through the medians at each x."""
    middles = {x: float(np.median([y for at, y in points if at == x])) for x in sorted({x for x, _ in points})}
    xs, ys = np.array(list(middles), dtype=float), np.array(list(middles.values()))
    if len(xs) < 2:
        return float(ys[0]), 0.0
    slope, constant = np.polyfit(xs, ys, 1)
    return max(0.0, float(constant)), max(0.0, float(slope))


def _least_squares(
    law: Callable[[np.ndarray], np.ndarray], start: np.ndarray, measured: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Newton with Cauchy weights and a faint pull to ``start``; parameters and law - measured.

    While the fit as a whole is far off, so is what counts as far off.
    """
    x, free = start.copy(), len(start)
    errors = law(x) - measured
    for _ in range(ROUNDS):
        scale = max(TRUSTED, 1.5 * float(np.median(np.abs(errors))))
        trust = weights / (1 + (errors / scale) ** 2)
        slopes = np.column_stack([(law(x + 1e-5 * unit) - law(x)) / 1e-5 for unit in np.eye(free)])
        left = slopes.T @ (slopes * trust[:, None]) + PRIOR**2 * np.eye(free)
        right = slopes.T @ (trust * errors) + PRIOR**2 * (x - start)
        move = np.clip(np.linalg.solve(left, -right), -0.5, 0.5)
        x = x + move
        errors = law(x) - measured
        if np.abs(move).max() < 1e-5:
            break
    return x, errors
