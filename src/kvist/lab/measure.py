"""Measures this machine: ten points, a few rounds, and the rates that explain every step's time.

A point is a context, a batch and a KV format. ``cold`` computes new prompts of a point, all arriving at once, and
decodes a little; ``warm`` decodes again behind the cached prompts. Every step is timed as a user waits for it:
planning, forward pass, sampling. Rounds go through all points in turn, so that a slow minute falls on all of them, and
steps that other processes disturbed are left out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from kvist.cost.measured import MeasuredMachine, Origin
from kvist.errors import BadValue
from kvist.lab import yardsticks
from kvist.lab.fit import Reading
from kvist.lab.host import Load
from kvist.lab.outcome import machine_of, origin_of
from kvist.lab.points import DECODED, POINTS, SHORT_TOKENS, Point, fitting, pool_tokens
from kvist.lab.rig import Model, Prompt, Rig, Step
from kvist.runtime.build import MOST_THREADS
from kvist.spec.weight_kinds import DTYPES

PATIENCE_S: Final = 240.0
"""A model so slow that the points would take longer gets shorter contexts."""
RETRIES: Final = 2
"""Times that points spoilt by other processes are computed again."""
PROBE_TOKENS: Final = 96
PROBE_SEED: Final = 1 << 40

OnPoint = Callable[[int, int, str], None]
"""(done, total, what is being measured)."""


class Measurement:
    """One machine being measured. ``cold`` comes before ``warm``; ``machine`` fits all readings so far."""

    def __init__(self, model: Model, points: Sequence[Point] = POINTS, *, on_point: OnPoint | None = None) -> None:
        self.model = model
        self.points = fitting(points, model.spec.context_tokens)
        self.readings: list[Reading] = []
        self._load = Load.start()
        self._on_point, self._done, self._total = on_point, 0, 0
        formats = dict.fromkeys(p.kv_format for p in self.points)
        self._rigs = {f: Rig(model, f, pool_tokens(self.points, f)) for f in formats}
        self._shorten()
        self._prompts: dict[int, list[Prompt]] = {}
        self._seed = 0

    @property
    def short(self) -> tuple[int, ...]:
        """Numbers of the points whose prompts are quickly computed again."""
        return tuple(i for i, p in enumerate(self.points) if p.tokens <= SHORT_TOKENS)

    @property
    def spoilt(self) -> tuple[int, ...]:
        """Numbers of the points most of whose prompt steps other processes have disturbed so far."""
        clean = [[r.clean for r in self.readings if r.point == i and not r.continues] for i in range(len(self.points))]
        return tuple(i for i, seen in enumerate(clean) if 2 * sum(seen) < len(seen))

    def cold(self, numbers: Sequence[int] | None = None) -> None:
        """New prompts, then a few decoded tokens: at the points of these numbers (None: at all)."""
        for i in range(len(self.points)) if numbers is None else numbers:
            point = self.points[i]
            self._tell(point, "prompts")
            self._seed += 1
            self._prompts[i] = self.model.prompts(point.batch, point.context_tokens, self._seed)
            self._cold(i, self._rigs[point.kv_format])

    def expect(self, total: int) -> None:
        """Say how many points will be measured, rounds and all, for the progress that ``on_point`` hears of."""
        self._total = total

    def warm(self) -> None:
        """Decoding behind the prompts of the last cold round."""
        for i, point in enumerate(self.points):
            self._tell(point, "decoding")
            rig, before = self._rigs[point.kv_format], yardsticks.read_bandwidth()
            rig.add(self._prompts[i], DECODED + 2)
            load = Load.start()
            steps = list(rig.steps())[1:]
            self._note_decode(i, steps, before, load.share())

    def machine(self) -> MeasuredMachine:
        """What the readings say. Raises ``StateError`` before there are any."""
        self._tell(None, "fitting")
        return machine_of(self.readings, self.points, self._origin())

    def _origin(self) -> Origin:
        model = self.model
        return origin_of(model.name, model.dtype, self._load, weight_bytes=model.weight_bytes)

    def _shorten(self) -> None:
        """A short prompt tells how long the points will take; too long for anybody's patience means shorter ones."""
        rig = next(iter(self._rigs.values()))
        tokens = min(PROBE_TOKENS, self.model.spec.context_tokens // 2)
        for seed in (PROBE_SEED, PROBE_SEED + 1):  # the first warms up
            rig.add(self.model.prompts(1, tokens, seed), 1)
            took = sum(step.wall_s for step in rig.steps())
        share = PATIENCE_S / (sum(p.tokens for p in self.points) * took / tokens)
        if share < 1:
            self.points = tuple(replace(p, context_tokens=max(8, int(p.context_tokens * share))) for p in self.points)

    def _cold(self, i: int, rig: Rig) -> None:
        point, before = self.points[i], yardsticks.read_bandwidth()
        room = self.model.spec.context_tokens - point.context_tokens
        seqs = rig.add(self._prompts[i], room)
        decoded: list[Step] = []
        load = Load.start()
        for step in rig.steps():
            if not step.only_continues:
                self.readings.append(self._reading(i, step, before))
                load = Load.start()
            elif len(step.chunks) == point.batch:
                decoded.append(step)
            if len(decoded) == DECODED:
                break
        others = load.share()
        rig.abort(seqs)
        self._note_decode(i, decoded, before, others)

    def _reading(self, i: int, step: Step, bandwidth: float) -> Reading:
        name = self.points[i].kv_format
        work = self._rigs[name].work.step(step.chunks)
        return Reading(i, name, work, step.wall_s, step.wall_s - step.forward_s, bandwidth, False, others=step.others)

    def _note_decode(self, i: int, steps: Sequence[Step], before: float, others: float) -> None:
        """One reading for a run of decode steps: medians, and the memory's speed on both sides of it."""
        after = yardsticks.read_bandwidth()
        steps = [s for s in steps if s.only_continues and len(s.chunks) == self.points[i].batch]
        if not steps:
            return
        name, middle = self.points[i].kv_format, (before + after) / 2
        self.readings.append(
            Reading(
                point=i,
                kv_format=name,
                work=self._rigs[name].work.step(steps[len(steps) // 2].chunks),
                seconds=statistics.median(s.wall_s for s in steps),
                outside_s=statistics.median(s.wall_s - s.forward_s for s in steps),
                bandwidth=middle,
                continues=True,
                flip=abs(after - before) / middle,
                others=others,
            )
        )

    def _tell(self, point: Point | None, verb: str) -> None:
        if self._on_point is not None:
            what = f"{verb}: {point.context_tokens} x {point.batch} {point.kv_format}" if point else verb
            self._on_point(self._done, self._total, what)
        self._done += point is not None


def measure(
    model: str | Path | None = None,
    threads: int = 0,
    on_point: OnPoint | None = None,
    *,
    dtype: str = "packed",
    rounds: int = 6,
    points: Sequence[Point] = POINTS,
) -> MeasuredMachine:
    """Measure this machine with a model (None: the packaged one) in less than two minutes on two quiet cores.

    ``threads`` 0 leaves torch's choice. Raises ``ModelError`` or ``BadValue``.
    """
    if dtype not in DTYPES:
        raise BadValue("dtype", dtype, f"one of {', '.join(DTYPES)}")
    if not 0 <= threads <= MOST_THREADS:
        raise BadValue("threads", threads, f"0 (as many as torch finds good) or a count up to {MOST_THREADS}")
    if threads:
        torch.set_num_threads(threads)
    run = Measurement(Model.load(model, dtype), points, on_point=on_point)
    run.expect(len(run.points) * (1 + rounds) + len(run.short))
    run.cold()
    for i in range(rounds):
        run.warm()
        if i == 0:
            run.cold(run.short)
        if i < RETRIES:
            run.cold(run.spoilt)
    return run.machine()
