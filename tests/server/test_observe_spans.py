"""Spans: one per request with its parts, in the caller's trace, at the times of the timeline."""

import sys
import time

import pytest
from attack_kit import BODY, all_routers, ask, post_bytes, until
from attack_kit import connect as connected
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from served_kit import running, served

from kvist.errors import BadValue, UsageError
from kvist.server.observe.spans import Spans

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def traced(monkeypatch):
    all_routers(monkeypatch)
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    spans = Spans(provider, model="tiny")
    with running(served("hello world and all", step_s=0.005)) as server:
        server.service.observers.append(spans)
        yield server, exporter, spans
        server.books()


def by_name(exporter):
    return {span.name: span for span in exporter.get_finished_spans()}


def test_a_request_and_its_parts(traced):
    server, exporter, spans = traced
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"}
    before = time.time_ns()
    ask(server.url, "POST", "/v1/completions", BODY, headers)
    after = time.time_ns()
    found = by_name(exporter)
    assert set(found) == {"text_completion tiny", "queue", "prefill", "decode"}
    whole = found.pop("text_completion tiny")
    assert format(whole.context.trace_id, "032x") == TRACE
    assert format(whole.parent.span_id, "016x") == PARENT
    facts = whole.attributes
    assert facts["gen_ai.operation.name"] == "text_completion" and facts["gen_ai.request.model"] == "tiny"
    assert facts["gen_ai.usage.input_tokens"] == 4 and facts["gen_ai.usage.output_tokens"] == 4
    assert facts["gen_ai.usage.cache_read.input_tokens"] == 0 and facts["kvist.miss.reason"] == "empty"
    assert facts["gen_ai.response.finish_reasons"] == ("length",) and facts["kvist.request.name"] == "mine"
    for part in found.values():
        assert part.parent.span_id == whole.context.span_id
        assert whole.start_time <= part.start_time <= part.end_time <= whole.end_time
    assert found["queue"].end_time == found["prefill"].start_time
    assert found["prefill"].end_time == found["decode"].start_time
    assert before <= whole.start_time <= whole.end_time <= after + 2_000_000
    decode_s = (found["decode"].end_time - found["decode"].start_time) / 1e9
    assert 0.012 < decode_s < 0.5
    assert spans._starts == {}


@pytest.mark.parametrize("header", [None, "", "garbage", f"00-{'0' * 32}-{PARENT}-01", "00-zz-zz-01", "x" * 5000])
def test_without_a_valid_parent_the_trace_is_our_own(traced, header):
    server, exporter, _ = traced
    ask(server.url, "POST", "/v1/completions", BODY, {} if header is None else {"traceparent": header})
    whole = by_name(exporter)["text_completion tiny"]
    assert whole.parent is None and whole.context.trace_id


def test_the_parent_of_one_request_is_not_the_next_ones(traced):
    """On one connection, too: the header belongs to its request."""
    server, exporter, _ = traced
    header = f"traceparent: 00-{TRACE}-{PARENT}-01"
    with connected(server.url) as sock:
        sock.sendall(post_bytes("/v1/completions", BODY, headers=[header]) + post_bytes("/v1/completions", BODY))
        assert until(lambda: len(exporter.get_finished_spans()) == 8)
    first, second = [s for s in exporter.get_finished_spans() if s.name.startswith("text")]
    assert format(first.context.trace_id, "032x") == TRACE and second.parent is None


def test_samples_and_abandoned_requests(traced):
    server, exporter, spans = traced
    ask(server.url, "POST", "/v1/completions", {**BODY, "n": 3})
    names = [s.name for s in exporter.get_finished_spans()]
    assert names.count("decode") == 3 and names.count("text_completion tiny") == 1
    assert {s.attributes["kvist.sample"] for s in exporter.get_finished_spans() if s.name == "decode"} == {0, 1, 2}
    exporter.clear()
    with connected(server.url) as sock:
        sock.sendall(post_bytes("/v1/completions", {**BODY, "max_tokens": 1000, "ignore_eos": True}))
        assert until(lambda: server.service.open == 1)
        time.sleep(0.05)
    assert until(lambda: "text_completion tiny" in by_name(exporter))
    whole = by_name(exporter)["text_completion tiny"]
    assert whole.attributes["gen_ai.response.finish_reasons"] == ("abort",)
    assert spans._starts == {}


@pytest.mark.parametrize("endpoint", ["", "localhost:4318", "ftp://x", "http://", "/v1/traces"])
def test_what_is_no_endpoint(endpoint):
    with pytest.raises(BadValue, match="otlp_endpoint"):
        Spans.to(endpoint)


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(UsageError, match=r"kvist\[trace\]"):
        Spans.to("http://localhost:4318")


@pytest.mark.parametrize("given", ["http://127.0.0.1:9", "http://127.0.0.1:9/", "http://127.0.0.1:9/v1/traces"])
def test_the_endpoint_gets_its_path(given, monkeypatch):
    from opentelemetry.exporter.otlp.proto.http import trace_exporter

    seen = []

    class Fake(InMemorySpanExporter):
        def __init__(self, endpoint):
            super().__init__()
            seen.append(endpoint)

    monkeypatch.setattr(trace_exporter, "OTLPSpanExporter", Fake)
    Spans.to(given).close()
    assert seen == ["http://127.0.0.1:9/v1/traces"]
