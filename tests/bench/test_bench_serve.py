"""Runs against a small server whose every hit and delay is known."""

import json
from collections import Counter

import pytest
from bench_runs import SMALL, checked, options
from fake_server import FakeServer

from kvist.bench.options import BenchOptions
from kvist.bench.run import run
from kvist.bench.workload import registry
from kvist.errors import BadValue, KvistError, UsageError


@pytest.fixture
def trace(tmp_path):
    file = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 100 * i, "input_length": 20 + i, "output_length": 3, "hash_ids": [1, 2 + i % 2, 10 + i]}
        for i in range(5)
    ]
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return {"trace": str(file), "block_tokens": 8}


@pytest.mark.parametrize("api,form", [("completions", "ids"), ("completions", "text"), ("chat", "text")])
@pytest.mark.parametrize("name", registry.names())
def test_every_workload_in_every_form(name, api, form, trace):
    with FakeServer() as server:
        report = checked(run(options(server, name, trace if name == "trace" else None, api=api, form=form)))
        assert report.exit_code == 0 and report.requests.ok == report.requests.planned > 0
        assert (report.target["api"], report.target["form"]) == (api, form)
        assert [t.turn for t in report.turns] == {"multi-turn": [1, 2, 3], "agent": [1, 2, 3, 4]}.get(name, [])
        assert min(r.turn for r in report.details) == 1
        sent = server.seen.bodies[1:]
        assert len(sent) == report.requests.ok
        assert all(isinstance(b["prompt"], list if form == "ids" else str) for b in sent if api == "completions")
        assert [r.output_tokens for r in report.details] == [b["max_tokens"] for b in sent]
        if form == "ids":
            assert [r.prompt_tokens for r in report.details] == [len(b["prompt"]) for b in sent]
            assert report.hits.reported_of_optimum == (1.0 if report.hits.optimum_tokens else None)
            assert [r.cached_tokens for r in report.details] == [r.optimum_tokens for r in report.details]
            outside = ("late", "load generator", "in one read")
            assert all(any(word in note for word in outside) for note in report.notes)
        elif report.hits.optimum_rate > 0.05:
            assert report.hits.reported_of_optimum == pytest.approx(1.0, abs=0.25)


def test_the_same_seed_sends_the_same_bytes():
    def sent(seed):
        with FakeServer() as server:
            run(options(server, "multi-turn", seed=seed, warmup=2, calibrate=2))
            return server.seen.raw

    assert sent(1) == sent(1) != sent(2)


def test_times_are_the_servers():
    with FakeServer(prefill_s_per_token=0.001, token_s=0.01) as server:
        report = checked(run(options(server, "random", {"prompts": 4, "suffix_tokens": 40, "output_tokens": 6})))
        assert 0.05 <= report.latency_s.ttft.p50 < 1
        assert 0.01 <= report.latency_s.tpot.p50 < 0.5
        assert 0.01 <= report.latency_s.itl.p50 < 0.5 and report.latency_s.itl.count == 4 * 5
        assert 0.1 <= report.latency_s.e2e.p50 < 5
        for r in report.details:
            assert r.ttft_s + sum(r.itl_s) == pytest.approx(r.e2e_s, abs=0.1)
        whole_s = sum(r.e2e_s for r in report.details)
        assert report.throughput.output_tokens_per_s == pytest.approx(24 / whole_s, rel=0.5)
        assert report.throughput.total_tokens_per_s == pytest.approx((24 + 160) / whole_s, rel=0.5)


@pytest.mark.parametrize("order,names", [("grouped", ["c0t1", "c0t2"]), ("round-robin", ["c0t1", "c1t1"])])
def test_the_order_of_conversations(order, names):
    with FakeServer() as server:
        report = run(options(server, "multi-turn", {**SMALL["multi-turn"], "order": order}))
        assert [r.name for r in report.details][: len(names)] == names


@pytest.mark.parametrize(
    "fault,kind",
    [
        ("busy", "http_503"), ("json", "not_sse"), ("drop", "cut"), ("cut", "cut"), ("end", "cut"),
        ("garbage", "garbage"), ("shape", "garbage"), ("error", "server_error"), ("hang", "timeout"),
        ("empty", "empty"),
    ],
)  # fmt: skip
def test_a_failure_is_counted_by_its_kind(fault, kind):
    with FakeServer(faults={2: fault}, token_s=0.001) as server:
        report = checked(run(options(server, timeout_s=0.6, concurrency=2, slo="ttft=10s")))
        assert [(e.kind, e.count) for e in report.errors] == [(kind, 1)] and report.errors[0].example
        assert report.requests.ok == 7 and report.exit_code == 1
        assert report.tokens.prompt == 7 * 32, "a failed request adds nothing to throughput"
        assert report.goodput.fraction == 7 / 8


def test_failures_of_several_kinds():
    with FakeServer(faults={0: "busy", 1: "busy", 3: "cut", 5: "garbage"}) as server:
        report = checked(run(options(server)))
        assert Counter({e.kind: e.count for e in report.errors}) == {"http_503": 2, "cut": 1, "garbage": 1}
        assert "draining" in report.errors[0].example


def test_everything_fails():
    with FakeServer(every="busy") as server:
        report = checked(run(options(server, slo="ttft=1s")))
        assert report.requests.ok == 0 and report.exit_code == 1
        assert report.latency_s.ttft is None and report.goodput.fraction == 0
        assert report.hits.reported_rate is None and not report.hits.inferred.why == ""


def test_a_conversation_ends_where_it_failed():
    with FakeServer(faults={3: "cut"}) as server:
        report = checked(run(options(server, "multi-turn")))
        assert (report.requests.sent, report.requests.failed, report.requests.not_sent) == (8, 1, 1)


def test_a_server_that_dies_is_not_asked_a_thousand_times():
    with FakeServer(token_s=0.002) as server:
        served = server.http.RequestHandlerClass.generate

        def last(self, raw):
            served(self, raw)
            if len(server.seen.bodies) == 4:
                self.close_connection = True
                server.http.socket.close()

        server.http.RequestHandlerClass.generate = last
        report = checked(run(options(server, knobs={"groups": 4, "prompts": 100, "output_tokens": 2})))
        assert report.requests.ok == 3 and 10 <= report.requests.failed < 20
        assert report.requests.not_sent > 300 and "gone" in report.stopped and report.exit_code == 1


def test_without_httpx(monkeypatch):
    monkeypatch.setattr("kvist.bench.run.find_spec", lambda name: None)
    with pytest.raises(KvistError, match="kvist\\[bench\\]"):
        run(BenchOptions())


def test_a_dead_server():
    with FakeServer() as server:
        url = server.url
    with pytest.raises(KvistError, match="no server answers at") as raised:
        run(BenchOptions(url=url))
    assert raised.value.exit_code == 1


def test_a_server_that_is_loading_is_waited_for():
    with FakeServer() as server:
        ready, answered = server.http.RequestHandlerClass.do_GET, []

        def loading(self):
            answered.append(self.path)
            return self.refuse(503, "the model is loading") if len(answered) < 3 else ready(self)

        server.http.RequestHandlerClass.do_GET = loading
        with pytest.raises(KvistError, match="the model is loading.*--wait"):
            run(options(server))
        answered.clear()
        assert run(options(server, wait_s=30.0)).exit_code == 0
    with pytest.raises(KvistError, match="no server answers"):
        run(options(server, wait_s=0.05))


def test_models_are_found_and_checked():
    with FakeServer(models=("one", "two")) as server:
        report = run(options(server))
        assert report.target["model"] == "one" and any("of 2 models" in n for n in report.notes)
        assert run(options(server, model="two")).target["model"] == "two"
        with pytest.raises(BadValue, match="one, two"):
            run(options(server, model="three"))
    with FakeServer(models=()) as server, pytest.raises(KvistError, match="lists no models"):
        run(options(server))


def test_keys():
    with FakeServer(api_key="sesame") as server:
        assert run(options(server, api_key="sesame")).exit_code == 0
        with pytest.raises(KvistError, match="OPENAI_API_KEY"):
            run(options(server))
    assert "sesame" not in repr(BenchOptions(api_key="sesame"))


def test_several_tokens_an_event():
    with FakeServer(per_event=3, tells_ids=False) as server:
        report = checked(run(options(server, "random", {"prompts": 3, "suffix_tokens": 9, "output_tokens": 7})))
        assert report.tokens.output == 21 and report.tokens.per_event == pytest.approx(7 / 3)
        assert report.latency_s.itl.count == 3 * 2 and any("ITL is per event" in n for n in report.notes)


def test_events_that_arrive_together():
    knobs = {"prompts": 3, "suffix_tokens": 9, "output_tokens": 7}
    with FakeServer(together=True) as server:
        report = checked(run(options(server, "random", knobs)))
        assert report.latency_s.itl.p50 == 0 and any("18 of 18 gaps between events are 0" in n for n in report.notes)
    with FakeServer(token_s=0.005) as server:
        assert not any("gaps between" in n for n in run(options(server, "random", knobs)).notes)


def test_a_server_that_reports_little():
    with FakeServer(usage=False, tells_ids=False) as server:
        report = checked(run(options(server, form="text")))
        assert report.tokens.counted_by == "events" and report.tokens.output == 24
        assert report.hits.reported_rate is None and any("no usage" in n for n in report.notes)
        ids = checked(run(options(server)))
        assert ids.tokens.prompt == 8 * 32


@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
@pytest.mark.parametrize("done_line", [True, False])
def test_ends_and_line_ends(newline, done_line):
    with FakeServer(newline=newline, done_line=done_line) as server:
        assert run(options(server)).exit_code == 0


@pytest.mark.parametrize("refused", [("return_token_ids",), ("ignore_eos", "return_token_ids"), ("stream_options",)])
def test_optional_fields_are_given_up_one_by_one(refused):
    with FakeServer(refuses=refused) as server:
        report = checked(run(options(server, "multi-turn")))
        assert report.exit_code == 0 and report.target["form"] == "ids"
        assert not set(report.target["optional_fields"]) & set(refused)
        assert not any(set(refused) & set(b) for b in server.seen.bodies)
        assert report.hits.reported_of_optimum == (None if "stream_options" in refused else 1.0)
        assert any("tokenized again" in n for n in report.notes) == ("return_token_ids" in refused)


def test_ids_come_from_what_the_server_tells():
    with FakeServer(tokenize=False, server_info={"model": {"vocab_size": 500}}) as server:
        report = run(options(server))
        ids = {i for b in server.seen.bodies for i in b["prompt"]}
        assert report.target["form"] == "ids" and min(ids) >= 25 and max(ids) < 475
    with FakeServer(tokenize=False) as server:
        assert run(options(server)).target["form"] == "text"
        assert run(options(server, vocab=300)).target["form"] == "ids"
        with pytest.raises(KvistError, match="--vocab"):
            run(options(server, form="ids"))
    with FakeServer(ids_accepted=False) as server:
        assert run(options(server)).target["form"] == "text"
    with FakeServer(tokenize=False, tells_ids=False) as server:
        assert run(options(server, "multi-turn", vocab=300)).target["form"] == "text", "answers could not go on as ids"
    with FakeServer(completions=False) as server:
        assert run(options(server)).target["api"] == "chat"
    with FakeServer(completions=False, chat=False) as server, pytest.raises(KvistError, match="takes no request"):
        run(options(server))


def test_answers_that_end_early():
    with FakeServer(stop_after=2) as server:
        report = run(options(server))
        assert report.exit_code == 0 and any("16 of 24 tokens" in n for n in report.notes)


def test_concurrency_is_kept():
    with FakeServer(token_s=0.01) as server:
        run(options(server, concurrency=4))
        assert server.seen.most_in_flight == 4


def test_a_rate_and_its_bound():
    knobs = {"prompts": 20, "suffix_tokens": 5, "output_tokens": 2}
    with FakeServer(token_s=0.05) as server:
        report = checked(run(options(server, "random", knobs, concurrency=None, rate=100.0)))
        assert server.seen.most_in_flight > 4
        due = [r.due_s for r in report.details]
        assert due == sorted(due) and due[0] == 0 and report.latency_s.late.max < 2
    with FakeServer(token_s=0.02) as server:
        report = checked(run(options(server, "random", knobs, concurrency=None, rate=200.0, max_concurrency=2)))
        assert server.seen.most_in_flight == 2 and report.latency_s.late.max > 0.1
        assert any("waited up to" in n for n in report.notes)


def test_a_trace_keeps_its_times(trace):
    with FakeServer() as server:
        report = checked(run(options(server, "trace", {**trace, "speedup": 2.0}, concurrency=None)))
        assert [r.due_s for r in report.details] == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])
        assert all(0 <= r.late_s < 2 for r in report.details)
        assert report.load["kind"] == "trace" and report.hits.reported_of_optimum == 1.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": ""}, {"url": "ftp://x"}, {"url": "http://"}, {"url": "http://x:99999"}, {"api": "responses"},
        {"form": "words"}, {"concurrency": 0}, {"rate": 0.0}, {"rate": float("nan")}, {"timeout_s": 0.0},
        {"concurrency": 1, "rate": 1.0}, {"max_concurrency": 3}, {"warmup": -1}, {"slo": "fast"}, {"vocab": 1},
        {"temperature": -1.0}, {"wait_s": -1.0}, {"api": "chat", "form": "ids"}, {"rate": float("inf")},
    ],
)  # fmt: skip
def test_wrong_options(wrong):
    with pytest.raises(UsageError):
        BenchOptions(**wrong)


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1/"])
def test_addresses(url):
    assert BenchOptions(url=url).root == "http://127.0.0.1:8000"
