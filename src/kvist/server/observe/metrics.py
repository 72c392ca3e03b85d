"""``GET /metrics``: the engine's counters and the server's own, for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from starlette.responses import Response

from kvist.server.desk import Desk
from kvist.server.observe.histogram import Histogram
from kvist.server.observe.numbers import Numbers
from kvist.server.observe.series import SERIES, TENANT_SERIES, Series
from kvist.server.observe.tally import Tally
from kvist.server.observe.tiers import SCHED_SHOWN, TIER_NUMBERS, Row, Watch, cached
from kvist.server.service import Service

_SUCCESS: Final = ("stop", "length", "abort", "error")
_SHOWN: Final = frozenset(
    {
        "sched_prompt_tokens", "sched_cached_tokens", "sched_computed_tokens", "sched_recomputed_tokens",
        "sched_self_hit_tokens", "sched_preemptions", "sched_steps", *SCHED_SHOWN,
    }
)  # fmt: skip
"""Engine counters that have a series of their own."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything a scrape reads."""

    service: Service
    numbers: Numbers
    tally: Tally

    def number(self, name: str) -> float:
        """An engine number; 0 before the first snapshot."""
        return self.numbers.latest.get(name, 0.0)

    def named(self, prefix: str, but: Iterable[str] = ()) -> list[Row]:
        """All engine numbers whose name begins so, by the rest of the name."""
        left = set(but)
        found = ((n, v) for n, v in self.numbers.latest.items() if n.startswith(prefix) and n not in left)
        return [((name.removeprefix(prefix),), value) for name, value in found]


def _one(value: float) -> list[Row]:
    return [((), value)]


def _effects(seen: Seen) -> list[Row]:
    totals = [(n, v) for n, v in seen.numbers.latest.items() if n.startswith(("sched_", "cache_", "exec_"))]
    return [((n,), v) for n, v in totals if n not in _SHOWN and not n.startswith(("sched_miss_", "exec_tier_"))]


def _cache_info(seen: Seen) -> list[Row]:
    served = seen.service.served
    cache = served.engine.scheduler.cache
    facts = (served.layout.span_tokens, cache.total_blocks, served.layout.format.name, cache.reuse)
    return [(tuple(map(str, facts)), 1.0)]


def _tenants(field: str) -> Callable[[Seen], list[Row]]:
    return lambda seen: [((name,), getattr(used, field)) for name, used in seen.tally.used.items()]


def _of_tiers(read: Callable[[Numbers], list[Row]]) -> Callable[[Seen], list[Row]]:
    return lambda seen: read(seen.numbers)


NUMBERS: Final[Mapping[str, Callable[[Seen], list[Row]]]] = {
    "build_info": lambda s: [((version("kvist"), s.service.config.names[0]), 1.0)],
    "snapshot_age_seconds": lambda s: _one(s.numbers.age_s),
    "requests_open": lambda s: _one(s.service.open),
    "requests_running": lambda s: _one(s.number("running_sequences")),
    "requests_waiting": lambda s: _one(s.number("waiting_sequences")),
    "requests_waiting_by_reason": lambda s: s.named("waiting_", but=("waiting_sequences",)),
    "kv_blocks": lambda s: [((state,), s.number(f"{state}_blocks")) for state in ("free", "cached", "live")],
    "kv_cache_usage_ratio": lambda s: _one(s.number("live_blocks") / max(1.0, s.number("total_blocks"))),
    "cache_info": _cache_info,
    "prompt_tokens": lambda s: _one(s.number("sched_prompt_tokens")),
    "cached_tokens": lambda s: cached(s.numbers),
    "computed_tokens": lambda s: _one(s.number("sched_computed_tokens") - s.number("sched_recomputed_tokens")),
    "recomputed_tokens": lambda s: _one(s.number("sched_recomputed_tokens")),
    "refound_tokens": lambda s: _one(s.number("sched_self_hit_tokens")),
    "generation_tokens": lambda s: _one(s.tally.generation_tokens),
    "preemptions": lambda s: _one(s.number("sched_preemptions")),
    "misses": lambda s: s.named("sched_miss_"),
    "requests": lambda s: [(labels, n) for labels, n in sorted(s.tally.requests.items())],
    "requests_refused": lambda s: [
        ((name.removeprefix("refused_"),), n) for name, n in sorted(s.service.counts.items()) if name[:8] == "refused_"
    ],
    "disconnects": lambda s: _one(s.service.counts["disconnected"]),
    "steps": lambda s: _one(s.number("sched_steps")),
    "step_seconds": lambda s: [((part,), s.number(f"{part}_s")) for part in ("plan", "execute", "commit")],
    "effects": _effects,
    **{name: _of_tiers(read) for name, read in TIER_NUMBERS.items()},
    "tenant_requests": _tenants("requests"),
    "tenant_prompt_tokens": _tenants("prompt_tokens"),
    "tenant_cached_tokens": _tenants("cached_tokens"),
    "tenant_generation_tokens": _tenants("generation_tokens"),
}
HISTOGRAMS: Final[Mapping[str, Callable[[Tally], Histogram]]] = {
    "time_to_first_token_seconds": lambda t: t.ttft,
    "inter_token_latency_seconds": lambda t: t.itl,
    "time_per_output_token_seconds": lambda t: t.tpot,
    "e2e_seconds": lambda t: t.e2e,
    "queue_seconds": lambda t: t.queue,
    "prefill_seconds": lambda t: t.prefill,
    "decode_seconds": lambda t: t.decode,
}


class Metrics(Collector):
    """Turns what was seen into families, each under our name and under vLLM's where it means the same."""

    def __init__(self, seen: Seen, *, per_tenant: bool) -> None:
        self._seen = seen
        self._series = (*SERIES, *TENANT_SERIES) if per_tenant else SERIES

    def describe(self) -> Iterable[Metric]:
        """Nothing: so that registering reads nothing."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Every family."""
        model = (self._seen.service.config.names[0],)
        for series in self._series:
            if series.kind == "histogram":
                histogram = HISTOGRAMS[series.name](self._seen.tally)
                yield _histogram(f"kvist_{series.name}", series.help, (), (), histogram)
                for name in series.vllm:
                    yield _histogram(f"vllm:{name}", series.help, ("model_name",), model, histogram)
                continue
            rows = NUMBERS[series.name](self._seen)
            yield _family(f"kvist_{series.name}", series, series.labels, rows)
            for name in series.vllm:
                yield _alias(f"vllm:{name}", series, model, rows)
        yield self._success(model)

    def _success(self, model: tuple[str, ...]) -> Metric:
        text = "Requests by how they ended"
        family = CounterMetricFamily("vllm:request_success", text, labels=("model_name", "finished_reason"))
        requests = self._seen.tally.requests
        for reason in _SUCCESS:
            family.add_metric((*model, reason), sum(n for (_, finish), n in requests.items() if finish == reason))
        return family


def _family(name: str, series: Series, labels: tuple[str, ...], rows: list[Row]) -> Metric:
    make = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
    family = make(name, series.help, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family


def _alias(name: str, series: Series, model: tuple[str, ...], rows: list[Row]) -> Metric:
    """Under another name: facts keep their labels, numbers are summed over them."""
    if name.endswith("_info"):
        return _family(name, series, ("model_name", *series.labels), [((*model, *v), n) for v, n in rows])
    return _family(name, series, ("model_name",), [(model, sum(n for _, n in rows))])


def _histogram(name: str, text: str, labels: tuple[str, ...], values: tuple[str, ...], histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    family.add_metric(values, buckets=histogram.buckets(), sum_value=histogram.total)
    return family


def router(desk: Desk, *, per_tenant: bool = False) -> APIRouter:
    """``GET /metrics``. ``per_tenant`` tells the tenants apart that have a key."""
    service = desk.service
    known = [t.name for t in desk.config.tenants.known] or ["default"]
    tally = Tally(known if per_tenant else ())
    numbers = Numbers(service, time.monotonic)
    watch = Watch(service, numbers)
    service.observers += [tally, watch]
    registry = CollectorRegistry()
    registry.register(Metrics(Seen(service, numbers, tally), per_tenant=per_tenant))
    routes = APIRouter()

    @routes.get("/metrics")
    async def metrics() -> Response:
        await numbers.refresh()
        watch.look()
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return routes
