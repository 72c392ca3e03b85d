"""OpenTelemetry spans: one per request, with its queue, prefill and decode, drawn when it has ended.

Needs the ``trace`` extra. Attribute names are those of the semantic conventions for generative AI.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from kvist.errors import BadValue, KvistError, UsageError
from kvist.server.job import Delta
from kvist.server.live import Live
from kvist.server.observe.tally import finish_of
from kvist.server.observe.trace import PARENT
from kvist.server.records import Record

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

TRACES_PATH: Final = "/v1/traces"


@dataclass(frozen=True, slots=True)
class _Start:
    unix_ns: int
    parent: str


class Spans:
    """An observer that draws. ``now_unix_ns`` is read once a request, to put the engine's clock on the calendar."""

    def __init__(
        self, provider: TracerProvider, *, model: str = "", now_unix_ns: Callable[[], int] = time.time_ns
    ) -> None:
        self._tracer = provider.get_tracer("kvist", version("kvist"))
        self._provider = provider
        self._model = model
        self._now_unix_ns = now_unix_ns
        self._starts: dict[str, _Start] = {}

    @staticmethod
    def to(endpoint: str, model: str = "") -> Spans:
        """Send spans by OTLP over HTTP. Raises ``BadValue`` for what is no URL, ``UsageError`` without the extra."""
        url = urlsplit(endpoint)
        if url.scheme not in ("http", "https") or not url.netloc:
            raise BadValue("otlp_endpoint", endpoint, "a URL such as http://localhost:4318")
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ModuleNotFoundError as error:
            raise UsageError(f"{error.name} is not installed", remedy="pip install 'kvist[trace]'") from error
        provider = TracerProvider(resource=Resource.create({"service.name": "kvist"}))
        whole = endpoint if url.path.strip("/") else endpoint.rstrip("/") + TRACES_PATH
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=whole)))
        return Spans(provider, model=model)

    def close(self) -> None:
        """Send what was not sent yet."""
        self._provider.shutdown()

    def opened(self, record: Record) -> None:
        """Note the time of day, and whose trace this belongs to."""
        self._starts[record.id] = _Start(self._now_unix_ns(), PARENT.get())

    def gained(self, record: Record, parcel: Delta | KvistError, now_s: float) -> None:
        """Nothing: the timeline has it all."""

    def ended(self, record: Record, live: Live) -> None:
        """Draw the request and its parts."""
        start = self._starts.pop(record.id, None)
        if start is None:
            return
        from opentelemetry import trace

        def unix_ns(time_s: float) -> int:
            return start.unix_ns + round((time_s - record.arrived_s) * 1e9)

        end_s = record.done_s if record.done_s is not None else record.arrived_s
        name = f"{_operation(record)} {self._model}".rstrip()
        span = self._tracer.start_span(
            name,
            context=_context(start.parent),
            kind=trace.SpanKind.SERVER,
            attributes=_attributes(record, self._model),
            start_time=start.unix_ns,
        )
        inside = trace.set_span_in_context(span)
        for part, from_s, to_s, sample in _parts(record):
            attributes = {"kvist.sample": sample} if record.n > 1 else None
            child = self._tracer.start_span(part, inside, start_time=unix_ns(from_s), attributes=attributes)
            child.end(unix_ns(to_s))
        if finish_of(record) == "error":
            span.set_status(trace.StatusCode.ERROR, record.error[:500])
        span.end(unix_ns(end_s))


def _context(parent: str) -> Any:
    """The caller's context; an empty one, so a trace of our own, where the header is missing or malformed."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract({"traceparent": parent} if parent else {}, context=Context())


def _operation(record: Record) -> str:
    return "text_completion" if record.kind == "completion" else "chat"


def _attributes(record: Record, model: str) -> dict[str, Any]:
    first = record.finishes.get(0)
    matched = first.timeline.matched if first else None
    bill = record.bill
    found: dict[str, Any] = {
        "gen_ai.operation.name": _operation(record),
        "gen_ai.provider.name": "kvist",
        "gen_ai.request.model": model or None,
        "gen_ai.request.max_tokens": record.max_tokens,
        "gen_ai.request.choice.count": record.n if record.n > 1 else None,
        "gen_ai.response.id": record.id,
        "gen_ai.response.finish_reasons": [f.reason for _, f in sorted(record.finishes.items())] or [finish_of(record)],
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": bill.completion_tokens if bill else None,
        "gen_ai.usage.cache_read.input_tokens": bill.cached_tokens if bill else None,
        "gen_ai.response.time_to_first_chunk": (
            None if record.first_token_s is None else record.first_token_s - record.arrived_s
        ),
        "kvist.request.name": record.name or None,
        "kvist.tenant": record.tenant,
        "kvist.miss.reason": matched.reason if matched else None,
        "kvist.preemptions": bill.preemptions if bill else None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _parts(record: Record) -> list[tuple[str, float, float, int]]:
    """(name, start, end, sample) of what was spent on each sample, as far as it came."""
    parts = []
    for sample, finish in sorted(record.finishes.items()):
        line = finish.timeline
        marks = [("queue", line.arrived_s), ("prefill", line.admitted_s), ("decode", line.first_token_s)]
        ends = [line.admitted_s, line.first_token_s, line.done_s]
        for (name, start), end in zip(marks, ends, strict=True):
            if start is not None:
                stop = end if end is not None else line.done_s
                if stop is not None:
                    parts.append((name, start, stop, sample))
    return parts
