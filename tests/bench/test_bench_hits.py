"""Hits of whole runs: reported, inferred from time, found from before, by turn."""

import json

import pytest
from bench_runs import SMALL, checked, options
from fake_server import FakeServer

from kvist.bench.run import run
from kvist.errors import KvistError


def test_a_cache_that_was_warm_before_is_told_and_flushed():
    with FakeServer() as server:
        run(options(server))
        again = checked(run(options(server)))
        assert any("warm from before" in n for n in again.notes) and again.hits.reported_of_optimum > 1
        flushed = run(options(server, flush=True, calibrate=8))
        assert "from before" not in flushed.hits.inferred.why
        assert not any("warm from before" in n for n in flushed.notes)
        assert server.seen.paths == ["/reset_prefix_cache"] * 2
        first, second = (run(options(server, calibrate=8)).hits.inferred.why for _ in range(2))
        told = "calibration's prompts were in the cache from before"
        assert told not in first and told in second, "the flush before the run emptied it once more"


@pytest.mark.parametrize("api,again", [("completions", 47), ("chat", 49)])
def test_other_workloads_and_sizes_of_a_seed_share_nothing(api, again, tmp_path):
    """On one server, one after another: only what a run sent itself is found."""
    short = SMALL["generated-shared-prefix"]
    runs = [
        ("generated-shared-prefix", short),
        ("generated-shared-prefix", {**short, "prefix_tokens": 60}),
        ("generated-shared-prefix", {**short, "suffix_tokens": 9}),
        ("prefix-repetition", short),
        ("multi-turn", SMALL["multi-turn"]),
        ("random", {**SMALL["random"], "prefix_tokens": 40}),
    ]
    for i in range(2):
        file = tmp_path / f"t{i}.jsonl"
        file.write_text(json.dumps({"timestamp": i, "input_length": 30, "output_length": 2, "hash_ids": [0, 1]}))
        runs.append(("trace", {"trace": str(file), "block_tokens": 15}))
    with FakeServer() as server:
        for name, knobs in runs:
            report = run(options(server, name, knobs, calibrate=1, api=api))
            more = [r.cached_tokens - r.optimum_tokens for r in report.details]
            assert max(more) <= 2, name
        details = run(options(server, *runs[0], api=api)).details
        assert {r.cached_tokens for r in details} == {again}, "the same again is found"


def test_flush_without_a_way_to():
    with FakeServer() as server, pytest.raises(KvistError, match="could not be emptied"):
        server.http.RequestHandlerClass.do_POST = _without_flush(server.http.RequestHandlerClass.do_POST)
        run(options(server, flush=True))


def _without_flush(post):
    def do(self):
        if self.path == "/reset_prefix_cache":
            return self.refuse(404, "no such path")
        return post(self)

    return do


@pytest.fixture
def paper_time(monkeypatch):
    """A clock that only the server's prefill moves: TTFT is exact, however busy the machine."""
    from kvist.bench import client, sender

    now = [0.0]
    for module in (client, sender):
        monkeypatch.setattr(module, "clock", lambda: now[0])

    def sleep(seconds):
        now[0] += seconds

    return sleep


def test_hits_are_inferred_from_time_alone(paper_time):
    knobs = {"groups": 3, "prompts": 6, "prefix_tokens": 120, "suffix_tokens": 40, "output_tokens": 2}
    with FakeServer(prefill_s_per_token=0.03, overhead_s=0.5, cached=False, sleep=paper_time) as server:
        report = checked(run(options(server, "generated-shared-prefix", knobs, calibrate=8)))
        assert report.hits.reported_rate is None and report.hits.reported_of_optimum is None
        inferred = report.hits.inferred
        assert inferred.seconds_per_prompt_token == pytest.approx(0.03)
        assert inferred.overhead_s == pytest.approx(0.5)
        assert inferred.rate == pytest.approx(report.hits.optimum_rate) and inferred.rate > 0.6


def test_hits_that_waited_are_not_inferred():
    """Two at once: TTFT of one holds the other's prefill."""
    knobs = {"groups": 3, "prompts": 3, "prefix_tokens": 120, "suffix_tokens": 40, "output_tokens": 2}
    with FakeServer(prefill_s_per_token=0.0002) as server:
        report = checked(run(options(server, "generated-shared-prefix", knobs, calibrate=8, concurrency=2)))
        assert report.hits.inferred.rate is None and "requests were alone" in report.hits.inferred.why
        assert sum(r.alone for r in report.details) <= 2 and report.hits.inferred.requests == 0


def test_a_server_that_reports_hits_it_does_not_have(paper_time):
    knobs = {"groups": 2, "prompts": 6, "prefix_tokens": 120, "suffix_tokens": 40, "output_tokens": 2}
    with FakeServer(prefill_s_per_token=0.03, sleep=paper_time) as server:
        honest = server.http.RequestHandlerClass.stream

        def slow(self, body, ids, out, cached, fault):
            paper_time(0.03 * cached)
            honest(self, body, ids, out, cached, fault)

        server.http.RequestHandlerClass.stream = slow
        report = run(options(server, "generated-shared-prefix", knobs, calibrate=8))
        assert report.hits.reported_rate > 0.5
        assert report.hits.inferred.rate == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("capacity,warm", [(None, 2), (4, 0)])
def test_an_agent_finds_its_context_warm_or_not(capacity, warm, paper_time):
    knobs = {"clients": 2, "rounds": 4, "prefix_tokens": 80, "suffix_tokens": 10, "output_tokens": 2}
    with FakeServer(capacity=capacity, prefill_s_per_token=0.04, sleep=paper_time) as server:
        report = checked(run(options(server, "agent", {**knobs, "subagent_tokens": 100})))
        assert report.verdict["main_contexts"] == 2
        assert report.verdict["warm_reported"] == warm
        assert report.verdict["warm_by_ttft"] == warm
        assert [t.turn for t in report.turns] == [1, 2, 3, 4, 5]


def test_by_turn():
    with FakeServer() as server:
        report = checked(run(options(server, "multi-turn", concurrency=3)))
        assert [(t.turn, t.requests) for t in report.turns] == [(1, 3), (2, 3), (3, 3)]
        assert sorted({(r.name, r.turn) for r in report.details})[:3] == [("c0t1", 1), ("c0t2", 2), ("c0t3", 3)]
        assert [t.prompt_tokens for t in report.turns] == [3 * 18, 3 * 30, 3 * 42]
        assert report.turns[2].reported_rate == pytest.approx(34 / 42)


@pytest.mark.parametrize("fault,stage", [(1, "calibration"), (3, "warm-up")])
def test_failures_before_the_run_are_told(fault, stage):
    with FakeServer(faults={fault: "busy"}) as server:
        report = checked(run(options(server, calibrate=2, warmup=3)))
        assert report.requests.failed == 0 and report.requests.ok == 8
        assert (report.calibration.failed, report.warmup.failed) == ((1, 0) if stage == "calibration" else (0, 1))
        of = 2 if stage == "calibration" else 3
        assert f"1 of {of} {stage} requests failed, the first with http_503: draining" in report.notes
        assert report.exit_code == 1


def test_warm_up_and_calibration_are_kept_apart():
    with FakeServer() as server:
        report = checked(run(options(server, warmup=5, calibrate=3)))
        assert (report.warmup.sent, report.calibration.sent, report.requests.sent) == (5, 3, 8)
        assert len(server.seen.bodies) == 1 + 3 + 5 + 8
        lengths = [len(b["prompt"]) for b in server.seen.bodies[1:4]]
        assert lengths == [16, 32, 16], "each length twice"
        first_of_groups = [r for r in report.details if r.optimum_tokens <= 2]
        assert len(first_of_groups) == 2 and all(r.cached_tokens <= 2 for r in first_of_groups)
        assert report.tokens.prompt == 8 * 32 and report.tokens.output == 8 * 3
