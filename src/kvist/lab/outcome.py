"""A measured machine out of readings: the fit, what every point came to, and where it was measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np
import torch

from kvist.cost.interval import Interval
from kvist.cost.measured import MeasuredMachine, MeasuredPoint, Origin
from kvist.lab import host, yardsticks
from kvist.lab.fit import Fit, Reading, fit
from kvist.lab.points import Point


def machine_of(readings: Sequence[Reading], points: Sequence[Point], origin: Origin) -> MeasuredMachine:
    """Fit the readings and hold the machine against its yardsticks. Raises ``StateError`` for too few readings.

    The best guess of the memory's speed is the geometric middle of the slowest and fastest seen: on a host that goes
    from one to the other, no other guess is wrong by less at its worst.
    """
    gemm = yardsticks.gemm_rates()
    found = fit(readings, start_flops=max(rate for _, rate in gemm))
    speeds = [r.bandwidth for r in found.used if r.continues]
    low, high = (float(q) for q in np.quantile(speeds, [0.05, 0.95]))
    return MeasuredMachine(
        origin=origin,
        bandwidth=Interval(low, math.sqrt(low * high), high, "measured"),
        multiply_flops_per_s=yardsticks.multiply_rate(),
        gemm=gemm,
        linear=found.linear,
        attention=found.attention,
        overhead=found.overhead,
        prefill_spread=found.spread(continues=False),
        decode_spread=found.spread(continues=True),
        points=tuple(_summary(found, readings, point, i) for i, point in enumerate(points)),
        kv_format=next(iter(found.attention)),
    )


def origin_of(model: str, weights: str, load: host.Load, *, weight_bytes: float = 0.0) -> Origin:
    """This machine, now. ``load`` was started with the measurement."""
    return Origin(
        cpu=host.cpu_name(),
        cores=host.cores(),
        threads=torch.get_num_threads(),
        memory_bytes=host.memory_bytes(),
        isa=yardsticks.isa(),
        at=host.now(),
        model=model,
        weights=weights,
        versions=host.versions(),
        commit=host.commit(),
        others=load.share(),
        weight_bytes=weight_bytes,
    )


def _summary(found: Fit, readings: Sequence[Reading], point: Point, i: int) -> MeasuredPoint:
    mine = [(r, e) for r, e in zip(found.used, found.errors, strict=True) if r.point == i]
    prefill = [(r.seconds, e) for r, e in mine if not r.continues]
    decode = [(r.seconds, e) for r, e in mine if r.continues]
    return MeasuredPoint(
        context_tokens=point.context_tokens,
        batch=point.batch,
        kv_format=point.kv_format,
        prefill_s=_middle([s for s, _ in prefill]),
        decode_s=_middle([s for s, _ in decode]),
        prefill_error=float(np.expm1(_middle([e for _, e in prefill]))),
        decode_error=float(np.expm1(_middle([e for _, e in decode]))),
        readings=(len(prefill), len(decode)),
        left_out=sum(r.point == i for r in readings) - len(mine),
    )


def _middle(values: Sequence[float]) -> float:
    return float(statistics.median(values)) if values else 0.0
