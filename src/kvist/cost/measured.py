"""Seconds of a step on a machine that was measured: a few rates fitted to timed steps, with the spread they left.

Each kind of kernel is a pipe: what it reads from memory goes on beside what the cores do, the slower of the two rules,
and where both take about as long neither hides the other fully. In FLOPs and bytes this carries over to other models.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from kvist.cost.device import Device
from kvist.cost.interval import Interval
from kvist.cost.pipe import Overhead, Pipe, Spread
from kvist.cost.plain import from_plain, to_plain
from kvist.cost.roofline import Seconds, Traffic
from kvist.cost.work import Widths, Work
from kvist.errors import UsageError
from kvist.spec.format import KVFormat
from kvist.spec.weight_kinds import DTYPES

__all__ = [
    "BUSY",
    "WEIGHT_BYTES",
    "MeasuredMachine",
    "MeasuredPoint",
    "Origin",
    "Overhead",
    "Pipe",
    "Spread",
    "read",
    "store_path",
    "write",
]

VERSION: Final = 1
"""Of the record: another one is refused."""

OTHER_WEIGHTS: Final = 1.25
"""From this ratio of bytes on weights are another kind than those that were timed."""

FALLBACK_WIDER: Final = 3.0
"""By how much the spread grows for a KV format that was not measured."""

BUSY: Final = 0.10
"""Share of the processor taken by others from which a measurement is not to be trusted."""

WEIGHT_BYTES: Final = {"f32": 4.0, "bf16": 2.0}
"""Of one weight, where it is the same for every model."""

ALONE: Final = Traffic()
_MEASURE: Final = "measure this machine: kvist plan --measure"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where, when and with what a record was made. ``others`` is the share of the processor others took meanwhile.

    ``weights`` is the ``dtype`` of the run, ``weight_bytes`` what a weight of its model took (0: as ``WEIGHT_BYTES``).
    """

    cpu: str
    cores: int
    threads: int
    memory_bytes: int
    isa: str
    at: str
    model: str
    weights: str
    versions: Mapping[str, str]
    commit: str = ""
    others: float = 0.0
    weight_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """One point of the measurement (context x batch x KV format): what was seen and how far off the fit is there.

    Errors are relative, (fit - measured) / measured, of the median prefill step (all its steps) and decode step.
    ``readings`` counts those used of each, ``left_out`` those that other processes spoilt.
    """

    context_tokens: int
    batch: int
    kv_format: str
    prefill_s: float
    decode_s: float
    prefill_error: float
    decode_error: float
    readings: tuple[int, int]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class MeasuredMachine:
    """A ``StepCost`` made of measurements. ``using`` picks the KV format; ``at`` another speed of the memory.

    ``bandwidth`` is the read bandwidth seen: slowest, geometric middle and fastest (bytes per second);
    ``multiply_flops_per_s`` the peak of the cores; ``gemm`` (rows, FLOPs per second) of a plain product.
    """

    origin: Origin
    bandwidth: Interval
    multiply_flops_per_s: float
    gemm: tuple[tuple[int, float], ...]
    linear: Pipe
    attention: Mapping[str, Pipe]
    overhead: Overhead
    prefill_spread: Spread
    decode_spread: Spread
    points: tuple[MeasuredPoint, ...] = ()
    kv_format: str = "f16"
    notes: tuple[str, ...] = field(default=())

    @property
    def widths(self) -> Widths:
        """Bytes of a weight as measured; activations are computed in f32."""
        each = self.origin.weight_bytes or WEIGHT_BYTES[self.origin.weights]
        return Widths(each, each, each, 4.0)

    @property
    def caveats(self) -> tuple[str, ...]:
        """Sentences that belong beside every number from this record."""
        busy = self.origin.others > BUSY
        said = (
            f"measured while other processes took {self.origin.others:.0%} of the processor: measure again when quiet"
        )
        return (said, *self.notes) if busy else self.notes

    def other_weights(self, weight_bytes: float) -> tuple[str, ...]:
        """A sentence for a plan whose weights take clearly more or fewer bytes than the ones that were timed."""
        mine = self.widths.dense
        if max(mine, weight_bytes) <= OTHER_WEIGHTS * min(mine, weight_bytes):
            return ()
        return (
            f"products were timed over {self.origin.weights} weights of {mine:.3g} bytes each; these have"
            f" {weight_bytes:.3g}, planned at the same rates: their arithmetic may be slower or faster",
        )

    def fits_here(self, cpu: str, threads: int) -> bool:
        """Whether the record was made on such a processor with as many threads."""
        return (cpu, threads) == (self.origin.cpu, self.origin.threads)

    def using(self, fmt: KVFormat) -> MeasuredMachine:
        """For steps over a cache in ``fmt``.

        Formats that were not measured take the measured one nearest in width; a note says so and the spread grows.
        Raises ``UsageError`` when no format was measured.
        """
        if fmt.name in self.attention:
            return replace(self, kv_format=fmt.name)
        if not self.attention:
            raise UsageError("this record holds no KV format", remedy="measure the machine again")
        bits = (fmt.k.bits + fmt.v.bits) / 2
        near = min(self.attention, key=lambda name: (abs(_mean_bits(name) - bits), name))
        note = f"KV format {fmt.name} was not measured here: taken from {near}, spread {FALLBACK_WIDER:g} times as wide"
        return replace(
            self,
            kv_format=near,
            notes=(*self.notes, note),
            prefill_spread=self.prefill_spread.wider(FALLBACK_WIDER),
            decode_spread=self.decode_spread.wider(FALLBACK_WIDER),
        )

    def at(self, bandwidth_bytes_per_s: float) -> MeasuredMachine:
        """The same machine while its memory reads at another speed."""
        return replace(self, bandwidth=Interval.exactly(bandwidth_bytes_per_s, "measured"))

    def step(self, work: Work, traffic: Traffic = ALONE) -> Interval:
        """Seconds of a step: the fit's spread at the fastest and at the slowest memory seen."""
        spread = self.prefill_spread if work.tokens > work.sequences else self.decode_spread
        best = self.parts(work, traffic).total_s
        low = self._parts(work, self.bandwidth.high).total_s * spread.low
        high = self._parts(work, self.bandwidth.low).total_s * spread.high
        return Interval(min(low, best), best, max(high, best), "measured")

    def parts(self, work: Work, traffic: Traffic = ALONE) -> Seconds:
        """Seconds by part, best guess. Raises ``UsageError`` for a step that needs other devices."""
        if traffic.messages or traffic.bytes:
            raise UsageError(
                "a measured machine is one device; this step talks to others",
                remedy="plan with a device of the catalogue, or without parallelism",
            )
        return self._parts(work, self.bandwidth.best)

    def _parts(self, work: Work, bandwidth: float) -> Seconds:
        attend = self.attention[self.kv_format]
        cache = (work.kv_read_bytes + work.kv_write_bytes + work.state_bytes, work.attention_flops + work.state_flops)
        weights = (work.weight_bytes, work.linear_flops)
        return Seconds(
            linear_s=self.linear.seconds(*weights, bandwidth),
            attention_s=attend.seconds(*cache, bandwidth),
            head_s=self.linear.seconds(work.head_bytes, work.head_flops, bandwidth),
            collective_s=0.0,
            overhead_s=self.overhead.seconds(work),
            linear_bound=self.linear.bound(*weights, bandwidth),
            attention_bound=attend.bound(*cache, bandwidth),
        )

    def device(self) -> Device:
        """The machine as a data sheet: its memory, the bandwidth and the multiply rate that were measured."""
        o = self.origin
        return Device(
            name=o.cpu,
            maker=o.cpu.split()[0],
            kind="cpu",
            memory_bytes=o.memory_bytes,
            bandwidth_bytes_per_s=self.bandwidth.best,
            flops={"f32": self.multiply_flops_per_s},
            sources=(f"measured {o.at} with {o.threads} threads",),
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain JSON. The KV format in use and notes about it are not part of a record."""
        plain: dict[str, Any] = to_plain(self)
        return {"version": VERSION, **{k: v for k, v in plain.items() if k not in ("kv_format", "notes")}}

    @staticmethod
    def from_dict(plain: object) -> MeasuredMachine:
        """The machine of a record. Raises ``UsageError`` saying what does not fit, numbers that cannot be included."""
        if not isinstance(plain, dict) or plain.get("version") != VERSION:
            found = plain.get("version") if isinstance(plain, dict) else type(plain).__name__
            raise UsageError(f"the record has version {found!r}, not {VERSION}", remedy="measure the machine again")
        machine = from_plain(MeasuredMachine, {k: v for k, v in plain.items() if k != "version"})
        machine._check()
        return replace(machine, kv_format=next(iter(machine.attention)))

    def _check(self) -> None:
        """Rates are positive, costs not negative, the bandwidth in order."""
        pipes = [self.linear, *self.attention.values()]
        rates = [rate for p in pipes for rate in (p.share, p.flops_per_s)]
        rates += [self.multiply_flops_per_s, self.bandwidth.low, self.prefill_spread.low, self.decode_spread.low]
        o = self.overhead
        costs = [p.stream_bytes_per_s for p in pipes] + [o.step_s, o.sequence_s, o.layer_s, o.layer_sequence_s]
        for name in self.attention:
            KVFormat.parse(name)
        each = self.origin.weight_bytes or WEIGHT_BYTES.get(self.origin.weights, 0.0)
        if not self.attention or min(rates) <= 0 or min(costs) < 0 or self.origin.weights not in DTYPES or each <= 0:
            raise UsageError("the record holds rates that cannot be", remedy="measure the machine again")


def _mean_bits(name: str) -> float:
    fmt = KVFormat.planned(name)
    return (fmt.k.bits + fmt.v.bits) / 2


def store_path(home: str | Path | None = None) -> Path:
    """Where a machine's record lies: ``machine.json`` in ``home``, by default in ``~/.local/share/kvist``."""
    return (Path(home) if home else Path("~/.local/share/kvist")).expanduser() / "machine.json"


def write(machine: MeasuredMachine, path: Path) -> None:
    """Store a record; an old one is replaced whole or not at all. Raises ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}.tmp")
    beside.write_text(json.dumps(machine.to_dict(), indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


def read(path: Path) -> MeasuredMachine:
    """The record at ``path``. Raises ``UsageError`` when there is none or it does not fit."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"no measurement is stored at {path}", remedy=_MEASURE) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read ({error})", remedy=_MEASURE) from error
    try:
        return MeasuredMachine.from_dict(plain)
    except UsageError as error:
        raise UsageError(f"{path}: {error.what}", remedy=error.remedy) from error
