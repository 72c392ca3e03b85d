"""Everything a run is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from kvist.bench.slo import Slo
from kvist.bench.workload import registry
from kvist.bench.workload.base import Workload
from kvist.errors import BadValue, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """``knobs`` are the workload's own (see ``kvist bench workloads``); ``scale`` multiplies those not given.

    ``concurrency`` keeps that many requests in flight; ``rate`` starts scripts at random (Poisson) times, that many a
    second on average, with at most ``max_concurrency`` requests in flight. ``api`` and ``form`` (of prompts: ids, text)
    ``auto``: whatever the server takes, token ids first. ``warmup`` requests and ``calibrate`` cold ones go before the
    run under another seed and are not counted. ``wait_s``: how long to wait for a server that is not ready yet.
    """

    url: str = "http://127.0.0.1:8000"
    model: str | None = None
    api: str = "auto"
    form: str = "auto"
    vocab: int | None = None
    api_key: str | None = field(default=None, repr=False)
    workload: str = "generated-shared-prefix"
    knobs: Mapping[str, Any] = field(default_factory=dict)
    scale: float = 1.0
    seed: int = 0
    concurrency: int | None = None
    rate: float | None = None
    max_concurrency: int | None = None
    warmup: int = 0
    calibrate: int = 8
    flush: bool = False
    slo: str | None = None
    temperature: float = 0.0
    timeout_s: float = 600.0
    wait_s: float = 0.0
    stop_at_eos: bool = False

    def __post_init__(self) -> None:
        for name, allowed in (("api", ("auto", "completions", "chat")), ("form", ("auto", "ids", "text"))):
            if getattr(self, name) not in allowed:
                raise BadValue(name, getattr(self, name), f"one of {', '.join(allowed)}")
        for name, low in (("concurrency", 1), ("max_concurrency", 1), ("vocab", 2), ("warmup", 0), ("calibrate", 0)):
            value = getattr(self, name)
            if value is not None and value < low:
                raise BadValue(name, value, f"a count >= {low}")
        for name in ("rate", "timeout_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise BadValue(name, value, "a number > 0")
        for name in ("temperature", "wait_s"):
            if not getattr(self, name) >= 0:
                raise BadValue(name, getattr(self, name), "a number >= 0")
        self._check_together()

    def _check_together(self) -> None:
        if self.concurrency is not None and self.rate is not None:
            raise UsageError("concurrency and rate were both given", remedy="bound a rate with --max-concurrency")
        if self.max_concurrency is not None and (self.concurrency is not None or not (self.rate or self.timed)):
            raise UsageError("max_concurrency bounds a rate or a trace's times", remedy="use --concurrency alone")
        if self.api == "chat" and self.form == "ids":
            raise UsageError("chat messages are text", remedy="use --api completions for token ids")
        _ = self.root, self.bounds

    @property
    def root(self) -> str:
        """The address without ``/v1``. Raises ``BadValue``."""
        text = self.url if "://" in self.url else f"http://{self.url}"
        try:
            parts = urlsplit(text)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            good = False
        if not good:
            raise BadValue("url", self.url, "an address such as http://127.0.0.1:8000")
        return text.rstrip("/").removesuffix("/v1").rstrip("/")

    @property
    def timed(self) -> bool:
        """Whether the workload's own times decide when requests are sent."""
        return self.workload == "trace" and self.concurrency is None and self.rate is None

    @property
    def bounds(self) -> Slo | None:
        """The promises, read. Raises ``BadValue``."""
        return None if self.slo is None else Slo.parse(self.slo)

    def load_workload(self) -> Workload:
        """Raises ``BadValue`` for a name, a knob or a value there is not."""
        return registry.load(self.workload, self.knobs, self.scale)
