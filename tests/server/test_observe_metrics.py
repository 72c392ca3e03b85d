"""``/metrics`` says what happened: numbers against usage, aliases against ours, ages when a step takes long."""

import re
import threading
import time
from types import SimpleNamespace

import pytest
from attack_kit import BODY, all_routers, ask, counting_door, key, until
from prometheus_client.parser import text_string_to_metric_families
from served_kit import running, served

from kvist.engine.event import Timeline
from kvist.server.job import Delta, Finish
from kvist.server.live import Bill
from kvist.server.observe.histogram import FAST_S, Histogram
from kvist.server.observe.metrics import HISTOGRAMS, NUMBERS
from kvist.server.observe.series import SERIES, TENANT_SERIES, metrics_table
from kvist.server.observe.tally import Tally, finish_of
from kvist.server.records import Record
from kvist.server.tenants import Tenants


def scrape(server):
    status, headers, text = ask(server.url, "GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain")
    return {
        (s.name, *sorted(s.labels.items())): s.value for f in text_string_to_metric_families(text) for s in f.samples
    }


def total(numbers, name, **labels):
    wanted = set(labels.items())
    return sum(v for (n, *ls), v in numbers.items() if n == name and wanted <= set(ls))


@pytest.fixture
def patched(monkeypatch):
    all_routers(monkeypatch)
    return monkeypatch


def test_numbers_against_usage(patched):
    """Tokens in /metrics are the sums of what the answers said; every alias equals our own number."""
    with running(served("hello world and all who live in it")) as server:
        usages = []
        for prompt in ("a b c d " * 20, "a b c d " * 20 + "e", "x y z " * 30):
            for extra in ({}, {"n": 3, "max_tokens": 6}, {"stop": ["world"], "max_tokens": 20}):
                status, _, answer = ask(server.url, "POST", "/v1/completions", {**BODY, "prompt": prompt, **extra})
                assert status == 200
                usages.append(answer["usage"])
        numbers = scrape(server)
        server.books()
    prompt = sum(u["prompt_tokens"] for u in usages)
    cached = sum(u["prompt_tokens_details"]["cached_tokens"] for u in usages)
    out = sum(u["completion_tokens"] for u in usages)
    assert cached > 0
    assert total(numbers, "kvist_prompt_tokens_total") == prompt
    assert total(numbers, "kvist_cached_tokens_total", tier="pool") == cached
    assert total(numbers, "kvist_generation_tokens_total") == out
    model = {"model_name": "tiny"}
    for alias, ours in {
        "prompt_tokens_total": prompt,
        "prefix_cache_queries_total": prompt,
        "prefix_cache_hits_total": cached,
        "generation_tokens_total": out,
        "num_preemptions_total": 0,
        "num_requests_running": 0,
        "num_requests_waiting": 0,
        "e2e_request_latency_seconds_count": 9,
        "time_to_first_token_seconds_count": 9,
        "request_queue_time_seconds_count": 3 * (1 + 3 + 1),
        "inter_token_latency_seconds_count": out - 15,
    }.items():
        assert total(numbers, f"vllm:{alias}", **model) == ours, alias
    ends = total(numbers, "vllm:request_success_total", **model)
    assert ends == 9 == total(numbers, "kvist_requests_total", endpoint="completion")
    assert total(numbers, "kvist_misses_total") == 9
    assert total(numbers, "kvist_kv_blocks") == 2000 and total(numbers, "vllm:kv_cache_usage_perc") == 0
    assert total(numbers, "vllm:cache_config_info", block_size="16", num_gpu_blocks="2000") == 1
    assert total(numbers, "kvist_build_info", model="tiny") == 1
    assert total(numbers, "kvist_effects_total", counter="sched_forks") > 0


def test_preemption_is_counted_apart(patched):
    """What is computed or found a second time is in neither the hit rate nor the first-time work."""
    with running(served(None, blocks=24, step_s=0.001)) as server:
        answers = []

        def one(i):
            body = {**BODY, "prompt": [1000 + i, *range(2000, 2060)], "max_tokens": 60, "ignore_eos": True}
            answers.append(ask(server.url, "POST", "/v1/completions", body)[2]["usage"])

        threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        numbers = scrape(server)
        server.books()
    prompt, out = sum(u["prompt_tokens"] for u in answers), sum(u["completion_tokens"] for u in answers)
    cached = sum(u["prompt_tokens_details"]["cached_tokens"] for u in answers)
    assert total(numbers, "kvist_preemptions_total") == total(numbers, "vllm:num_preemptions_total") > 0
    assert total(numbers, "kvist_prompt_tokens_total") == prompt == 8 * 61
    assert total(numbers, "kvist_cached_tokens_total") == cached
    assert total(numbers, "kvist_computed_tokens_total") == prompt - cached + out - 8
    assert total(numbers, "kvist_recomputed_tokens_total") > 0
    assert total(numbers, "kvist_generation_tokens_total") == out == 480


def test_every_series_is_there(patched):
    """What the table says is what is scraped, from the first moment on, with its kind."""
    with running(served("hello"), tenants=Tenants.parse(["a:ka", "b:kb"])) as server:
        ask(server.url, "POST", "/v1/completions", BODY, key("ka"))
        _, _, text = ask(server.url, "GET", "/metrics")
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    for series in SERIES:
        assert kinds[series.exposed] == series.kind
        for name in series.vllm:
            total_ = "_total" if series.kind == "counter" else ""
            assert kinds[f"vllm:{name}{total_}"] == series.kind
    assert "tenant" not in text
    table = metrics_table()
    assert all(f"`{s.exposed}`" in table for s in (*SERIES, *TENANT_SERIES))
    assert "`vllm:request_success_total`" in table and "`vllm:kv_cache_usage_perc`" in table


def test_each_series_has_its_source():
    names = {s.name for s in (*SERIES, *TENANT_SERIES)}
    assert names == set(NUMBERS) | set(HISTOGRAMS)
    assert {s.name for s in SERIES if s.kind == "histogram"} == set(HISTOGRAMS)
    aliases = [a for s in SERIES for a in s.vllm]
    assert len(aliases) == len(set(aliases)) and len(names) == len(SERIES) + len(TENANT_SERIES)


def test_tenants_only_when_asked_for_and_only_known_ones(monkeypatch):
    """Wrong keys make no series; each tenant's numbers are its own."""
    all_routers(monkeypatch, per_tenant=True)
    with running(served("hello"), tenants=Tenants.parse(["a:ka", "b:kb"])) as server:
        for secret in ("ka", "ka", "kb", *(f"wrong{i}" for i in range(50))):
            ask(server.url, "POST", "/v1/completions", BODY, key(secret))
        numbers = scrape(server)
    tenants = {dict(ls)["tenant"] for n, *ls in numbers if n.startswith("kvist_tenant")}
    assert tenants == {"a", "b"}
    assert total(numbers, "kvist_tenant_requests_total", tenant="a") == 2
    assert total(numbers, "kvist_tenant_generation_tokens_total", tenant="b") > 0


def test_refusals_and_disconnects_are_counted(patched):
    counting_door(patched)
    with running(served("hello"), tenants=Tenants.parse(["a:ka"])) as server:
        ask(server.url, "POST", "/v1/completions", BODY)
        ask(server.url, "POST", "/v1/completions", b"{", key("ka"))
        ask(server.url, "GET", "/nowhere", None, key("ka"))
        ask(server.url, "GET", "/v1/completions", None, key("ka"))
        numbers = scrape(server)
    codes = {dict(ls)["code"]: v for (n, *ls), v in numbers.items() if n == "kvist_requests_refused_total"}
    assert codes == {"401": 1, "400": 1, "404": 1, "405": 1}


def test_a_long_step_does_not_block(patched):
    """While the engine computes, the last numbers are served at once and say how old they are."""
    with running(served("hello", token_s=0.02)) as server:
        ask(server.url, "POST", "/v1/completions", BODY)
        assert scrape(server)["kvist_snapshot_age_seconds",] < 0.1
        slow = threading.Thread(
            target=ask, args=(server.url, "POST", "/v1/completions", {**BODY, "prompt": "a b " * 75, "max_tokens": 1})
        )
        slow.start()
        time.sleep(0.2)
        begin = time.time()
        numbers = scrape(server)
        assert time.time() - begin < 0.6
        assert ask(server.url, "GET", "/health")[0] == 200
        assert numbers["kvist_snapshot_age_seconds",] > 0.2
        assert numbers["kvist_requests_open",] == 1
        slow.join()
        assert until(lambda: scrape(server)["kvist_snapshot_age_seconds",] < 0.2)


def test_scrapes_do_not_pile_up(patched):
    """However often it is scraped, the engine has one question to answer."""
    with running(served("hello", token_s=0.02)) as server:
        slow = threading.Thread(
            target=ask, args=(server.url, "POST", "/v1/completions", {**BODY, "prompt": "a b " * 75, "max_tokens": 1})
        )
        slow.start()
        assert until(lambda: server.service.open == 1)
        time.sleep(0.1)
        threads = [threading.Thread(target=scrape, args=(server,)) for _ in range(20)]
        [t.start() for t in threads]
        time.sleep(0.15)
        assert server.service._engine_loop._orders.qsize() <= 1
        [t.join() for t in threads]
        slow.join()


def record(n=1, **changes):
    return Record("req-1", "a", "chat", "", 10.0, 5, 8, n, 0, None, **changes)


def finish(reason="stop", output=3, **times):
    line = Timeline(1, 1, **{"arrived_s": 10.0, "admitted_s": 10.5, "first_token_s": 11.0, "done_s": 13.0} | times)
    line.usage = SimpleNamespace(output_tokens=output)
    return Finish(reason, line.usage, line)


def test_times_come_from_the_timeline():
    tally, seen = Tally(["a"]), record()
    tally.opened(seen)
    for now_s in (11.0, 12.0, 13.0):
        tally.gained(seen, Delta(0, "x", (1,)), now_s)
    seen.finishes[0], seen.done_s, seen.bill = finish(), 13.0, Bill(5, 3, 2, 3, 0, 0)
    tally.ended(seen, None)
    sums = [h.total for h in (tally.ttft, tally.itl, tally.tpot, tally.e2e, tally.queue, tally.prefill, tally.decode)]
    assert sums == [1.0, 2.0, 1.0, 3.0, 0.5, 0.5, 2.0]
    assert tally.requests == {("chat", "stop"): 1} and tally.generation_tokens == 3 and tally.open == 0
    assert (tally.used["a"].prompt_tokens, tally.used["a"].cached_tokens) == (5, 2)


def test_unknown_tenants_make_no_series():
    tally, seen = Tally(["b"]), record()
    tally.opened(seen)
    seen.bill = Bill(5, 3, 2, 3, 0, 0)
    tally.ended(seen, None)
    assert list(tally.used) == ["b"] and tally.used["b"].requests == 0


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_times_of_the_aborted_are_left_out(reason):
    tally, seen = Tally(), record()
    tally.opened(seen)
    seen.finishes[0], seen.done_s = finish(reason), 13.0
    tally.ended(seen, None)
    assert tally.e2e.count == tally.queue.count == tally.decode.count == 0
    assert tally.requests == {("chat", reason): 1}


@pytest.mark.parametrize(
    "reasons,n,whole",
    [
        (["stop"], 1, "stop"),
        (["stop", "length"], 2, "length"),
        (["abort", "stop"], 2, "abort"),
        (["abort", "error"], 2, "error"),
        (["stop"], 2, "error"),
        ([], 1, "error"),
    ],
)
def test_one_finish_for_all_samples(reasons, n, whole):
    seen = record(n)
    seen.finishes = {i: finish(reason) for i, reason in enumerate(reasons)}
    assert finish_of(seen) == whole


def test_a_histogram_counts_up_to_its_bounds():
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 99.0):
        histogram.observe(value)
    assert histogram.buckets() == [("1.0", 2.0), ("2.0", 4.0), ("+Inf", 5.0)]
    assert histogram.count == 5 and histogram.total == 104.0


def test_a_token_costs_less_than_ten_microseconds():
    tally, seen = Tally(["a"]), record()
    tally.opened(seen)
    parcels = [Delta(0, "x", (i,)) for i in range(20_000)]

    def once():
        begin = time.perf_counter()
        for i, parcel in enumerate(parcels):
            tally.gained(seen, parcel, i * 0.01)
        return (time.perf_counter() - begin) / len(parcels)

    assert min(once() for _ in range(5)) < 10e-6
    assert len(FAST_S) == len(set(FAST_S)) and list(FAST_S) == sorted(FAST_S)
