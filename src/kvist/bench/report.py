"""What a run found, and its JSON. Field names are units and all; ``kvist bench schema`` prints the schema."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from kvist.bench.record import Record
from kvist.bench.spread import Spread

FORMAT: Final = "kvist-bench/1"


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """The load generator's own share of one processor, and how late its event loop ever was."""

    cpu_share: float = 0.0
    worst_delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Counts:
    """Requests. ``not_sent``: given up because one before them in their script failed, or the run was stopped."""

    planned: int
    sent: int
    ok: int
    failed: int
    interrupted: int
    not_sent: int


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """Failures of one kind, and what the first of them said."""

    kind: str
    count: int
    example: str


@dataclass(frozen=True, slots=True)
class Tokens:
    """Of answered requests. ``counted_by``: usage (the server's count) or events (ours)."""

    prompt: int
    output: int
    cached_reported: int | None
    counted_by: str
    per_event: float


@dataclass(frozen=True, slots=True)
class Throughput:
    """Of answered requests, over the time from the first sent to the last ended."""

    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds. ``itl`` is over all gaps of all requests; ``late``: sent later than due, by the load generator."""

    ttft: Spread | None
    tpot: Spread | None
    itl: Spread | None
    e2e: Spread | None
    late: Spread | None


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that kept every bound, of all that were answered or failed."""

    bounds_s: dict[str, float]
    met: int
    fraction: float
    requests_per_s: float


@dataclass(frozen=True, slots=True)
class Inferred:
    """Hits judged by TTFT, of the ``requests`` that were alone until their first token (others show waiting, too).

    ``reported_rate`` is of the same requests. ``rate`` is None and ``why`` says why where nothing can be inferred.
    """

    tokens: float | None
    rate: float | None
    requests: int
    reported_rate: float | None
    seconds_per_prompt_token: float | None
    overhead_s: float | None
    error_tokens: float | None
    source: str
    why: str


@dataclass(frozen=True, slots=True)
class Hits:
    """Shares of all prompt tokens. ``optimum_by``: ids (exact) or text (bytes in common, an approximation)."""

    reported_rate: float | None
    optimum_tokens: int
    optimum_rate: float
    optimum_by: str
    reported_of_optimum: float | None
    inferred: Inferred


@dataclass(frozen=True, slots=True)
class Turn:
    """Answered requests that were the ``turn``-th (from 1) of their script (sub-agents left out)."""

    turn: int
    requests: int
    prompt_tokens: int
    reported_rate: float | None
    optimum_rate: float
    inferred_rate: float | None
    ttft_p50_s: float | None


@dataclass(frozen=True, slots=True)
class Stage:
    """Requests before the measurement, never counted in it."""

    sent: int
    failed: int


@dataclass(frozen=True, slots=True)
class Report:
    """Everything. ``details`` are the requests themselves, in the order in which they were sent."""

    kvist: str
    started_at: str
    target: dict[str, Any]
    workload: dict[str, Any]
    load: dict[str, Any]
    duration_s: float
    requests: Counts
    errors: tuple[ErrorKind, ...]
    tokens: Tokens
    throughput: Throughput
    latency_s: Latency
    goodput: Goodput | None
    hits: Hits
    turns: tuple[Turn, ...]
    verdict: dict[str, Any] | None
    warmup: Stage
    calibration: Stage
    client: ClientLoad
    notes: tuple[str, ...]
    stopped: str
    interrupted: bool
    details: tuple[Record, ...] = field(repr=False)

    @property
    def exit_code(self) -> int:
        """130 when interrupted, 1 when a request failed (warm-up and calibration too) or was not sent, else 0."""
        if self.interrupted:
            return 130
        failed = self.requests.failed + self.warmup.failed + self.calibration.failed
        return 1 if failed or self.requests.not_sent else 0

    def to_json(self, *, details: bool = False) -> dict[str, Any]:
        """Plain JSON; every request with ``details``."""
        plain = asdict(self)
        if not details:
            del plain["details"]
        return {"format": FORMAT, **plain}
