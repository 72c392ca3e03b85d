"""The bridge between the event loop and the engine: nobody waits for ever, nobody is charged for another."""

import concurrent.futures
import threading
import time
from dataclasses import replace

import httpx
import pytest
from served_kit import parts, running, served

from kvist.server.job import Delta
from kvist.server.pressure import Pressure
from kvist.server.tenants import Tenants

CLIENT = httpx.Client(timeout=60, limits=httpx.Limits(max_connections=100))


def ask(url, prompt="Hello", max_tokens=8, *, key="", **more):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return CLIENT.post(
        url + "/v1/completions", json={"prompt": prompt, "max_tokens": max_tokens, **more}, headers=headers
    )


def later(pool, *args, **more):
    return pool.submit(ask, *args, **more)


# --- weights -------------------------------------------------------------------------------------------------------


def changing(server, path="x"):
    thread = threading.Thread(target=lambda: CLIENT.post(server.url + "/update_weights", json={"path": path}))
    thread.start()
    time.sleep(0.1)
    return thread


def slow():
    return served(" yes" * 2000, step_s=0.01, max_sequences=4)


def test_while_weights_wait_a_client_can_leave_and_the_change_goes_on():
    with running(slow(), loader=lambda path: slow()) as server:
        with CLIENT.stream("POST", server.url + "/v1/completions", json={
            "prompt": "a", "max_tokens": 2000, "stream": True}) as answer:  # fmt: skip
            chunks = answer.iter_bytes()
            next(chunks)
            thread = changing(server)
            assert thread.is_alive()
            chunks.close()
        thread.join(3)
        assert not thread.is_alive(), "the only request was left, so the weights can change"
        server.books()


def test_while_weights_wait_the_engine_can_be_asked_and_stopped():
    with running(slow(), loader=lambda path: slow(), drain_s=0.2) as server, \
            concurrent.futures.ThreadPoolExecutor(2) as pool:  # fmt: skip
        running_one = later(pool, server.url, "a", 2000)
        time.sleep(0.1)
        thread = changing(server)
        assert CLIENT.get(server.url + "/metrics").status_code == 200
        waiting = later(pool, server.url, "b", 4)
        time.sleep(0.1)
        server.host.stop()
        assert running_one.result(10).json()["choices"][0]["finish_reason"] == "abort"
        assert waiting.result(10).status_code == 503
        thread.join(5)
        assert not thread.is_alive()


def test_what_waited_for_other_weights_is_refused_when_its_ids_mean_something_else():
    class Other:
        def __getattr__(self, name):
            return getattr(parts()[2], name)

        def digest(self):
            return b"another vocabulary"

    with running(slow(), loader=lambda path: replace(slow(), tokenizer=Other())) as server, \
            concurrent.futures.ThreadPoolExecutor(2) as pool:  # fmt: skip
        first = later(pool, server.url, "a", 60)
        time.sleep(0.1)
        thread = changing(server)
        waiting = later(pool, server.url, "b", 4)
        assert first.result(10).status_code == 200
        assert waiting.result(10).status_code == 503
        assert "weights were changed" in waiting.result().text
        thread.join(5)
        assert ask(server.url, "b", 4).status_code == 200
        server.books()


# --- ends ----------------------------------------------------------------------------------------------------------


def test_more_endings_in_one_step_than_are_remembered():
    model = served(step_s=0.05, max_sequences=16, token_budget=2048)
    with running(model, max_queue=4000) as server, concurrent.futures.ThreadPoolExecutor(24) as pool:
        got = [later(pool, server.url, f"{i} hello", 1, n=128) for i in range(24)]
        assert [f.result().status_code for f in got] == [200] * 24
        server.books()


def test_when_time_to_drain_is_over_answers_end_and_say_so():
    with running(served(step_s=0.01), drain_s=0.3) as server, concurrent.futures.ThreadPoolExecutor(2) as pool:
        whole = later(pool, server.url, "a", 3000, ignore_eos=True)
        streamed = later(pool, server.url, "b", 3000, ignore_eos=True, stream=True)
        time.sleep(0.2)
        start = time.perf_counter()
        server.host.stop()
        assert whole.result(10).json()["choices"][0]["finish_reason"] == "abort"
        lines = [line for line in streamed.result(10).text.splitlines() if line]
        assert lines[-1] == "data: [DONE]" and '"finish_reason":"abort"' in lines[-2]
        assert time.perf_counter() - start < 2


def test_an_observer_that_fails_harms_nobody():
    class Broken:
        def opened(self, record):
            raise RuntimeError

        gained = ended = lambda self, *args: 1 / 0

    with running(served("Some words of an answer.")) as server:
        server.service.observers.insert(0, Broken())
        assert ask(server.url, max_tokens=20).json()["choices"][0]["text"] == "Some words of an answer."
        assert server.service.counts["observer_failures"] > 2
        server.books()


# --- bills and bounds ----------------------------------------------------------------------------------------------


def test_without_a_cache_nothing_is_said_to_be_written_to_it():
    from kvist.cache.cache import Cache

    model = served()
    assert isinstance(model.engine.scheduler.cache, Cache)
    model.engine.scheduler.cache.reuse = False
    with running(model) as server:
        details = ask(server.url).json()["usage"]["prompt_tokens_details"]
        assert (details["cached_tokens"], details["cache_write_tokens"]) == (0, 0)


def test_stop_ids_beyond_the_vocabulary_are_refused():
    with running(served()) as server:
        answer = ask(server.url, stop_token_ids=[2_000_000_000], min_tokens=1)
        assert answer.status_code == 400 and "stop_token_ids" in answer.text


def test_an_answer_that_nobody_reads_keeps_its_place():
    with running(served(check=False), max_queue=2, write_timeout_s=30.0) as server:
        body = {"prompt": "a", "max_tokens": 8000, "ignore_eos": True, "stream": True, "logprobs": 5}
        with CLIENT.stream("POST", server.url + "/v1/completions", json=body) as one, \
                CLIENT.stream("POST", server.url + "/v1/completions", json=body) as two:  # fmt: skip
            assert (one.status_code, two.status_code) == (200, 200)
            until = time.time() + 20
            while server.service.open and time.time() < until:
                time.sleep(0.05)
            assert not server.service.open, "the engine is done with both"
            assert ask(server.url).status_code == 429
        time.sleep(0.3)
        assert ask(server.url).status_code == 200
        server.books()


def test_samples_count_as_what_they_are():
    with running(served(), max_queue=8) as server:
        assert ask(server.url, n=8).status_code == 200
        assert ask(server.url, n=9).status_code == 400


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_a_text_far_too_long_is_refused_from_its_beginning(endpoint):
    text = "a b " * 900_000
    body = {"prompt": text} if endpoint == "completions" else {"messages": [{"role": "user", "content": text}]}
    path = "/v1/completions" if endpoint == "completions" else "/v1/chat/completions"
    with running(served()) as server, concurrent.futures.ThreadPoolExecutor(1) as pool:
        start = time.perf_counter()
        answer = pool.submit(lambda: CLIENT.post(server.url + path, json=body))
        worst = 0.0
        while not answer.done():
            before = time.perf_counter()
            CLIENT.get(server.url + "/health")
            worst = max(worst, time.perf_counter() - before)
        assert answer.result().status_code == 400 and "8192" in answer.result().text
        assert time.perf_counter() - start < 3
        assert worst < 1.0


# --- pressure ------------------------------------------------------------------------------------------------------


def busy(weights=(), seconds=20):
    pressure = Pressure(dict(weights))
    pressure.enter(1, "x", 100, 100_000, 1)
    for second in range(seconds):
        for _ in range(100):
            pressure.note(1, Delta(0, token_ids=(1,)), float(second))
    return pressure


def test_one_tenants_queue_is_not_anothers_wait():
    pressure = busy()
    for ticket in range(2, 50):
        pressure.enter(ticket, "flood", 10_000, 100, 1)
    assert pressure.wait_s("flood") > 1000
    assert pressure.wait_s("quiet") == 0.0
    pressure.enter(99, "quiet", 100, 10, 1)
    assert pressure.wait_s("quiet") < 5


def test_weights_shorten_a_wait_and_samples_lengthen_it():
    light, heavy = busy(), busy({"a": 9.0})
    for pressure in (light, heavy):
        pressure.enter(2, "a", 1000, 0, 1)
        pressure.enter(3, "b", 1000, 0, 1)
    assert heavy.wait_s("a") < light.wait_s("a")
    before = light.waiting_tokens("b")
    light.enter(4, "b", 0, 100, 8)
    assert light.waiting_tokens("b") == before + 800


def test_cached_tokens_make_nobody_faster():
    pressure = busy()
    rate = pressure.tokens_per_s
    for ticket in range(10, 40):
        pressure.enter(ticket, "x", 100_000, 1, 1)
        pressure.note(ticket, Delta(0, token_ids=(1,), cached_tokens=99_999), 20.0 + ticket)
        pressure.leave(ticket)
    assert pressure.tokens_per_s < 2 * rate


def test_everything_is_forgotten():
    pressure = busy()
    pressure.leave(1)
    assert (pressure.waiting_tokens("x"), pressure.wait_s("x")) == (0, 0.0)


def test_keys_that_are_not_set_are_no_keys():
    from kvist.cli.serve.options import read_keys

    for given in ("", [""], ["a", ""]):
        with pytest.raises(ValueError):
            read_keys(given)
    assert Tenants.parse(read_keys("a:1,b:2")).known[1].name == "b"


def test_anybody_on_the_network_is_not_its_keeper():
    with running(served(), host="0.0.0.0") as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert CLIENT.post(url + "/update_weights", json={"path": "/etc/passwd"}).status_code == 403


def test_one_who_floods_does_not_push_out_anothers_prefix():
    """Sixteen at a time of one key, on a pool that two share: the other's prefix stays a hit all along."""
    tenants = Tenants.parse(["a:ka", "b:kb"])
    model = served(blocks=200, block_tokens=32, step_s=0.02, max_sequences=64, weights=tenants.weights, check=False)
    with running(model, tenants=tenants) as server, concurrent.futures.ThreadPoolExecutor(16) as pool:
        prefix = list(range(1000, 2000))
        assert ask(server.url, prefix, 2, key="ka").status_code == 200
        stop = threading.Event()

        def flood(worker):
            for i in range(1000):
                if stop.is_set():
                    return
                prompt = [3000 + (worker * 7919 + i * 104729 + j * 31) % 40000 for j in range(500)]
                assert ask(server.url, prompt, 16, key="kb", ignore_eos=True).status_code == 200

        workers = [pool.submit(flood, i) for i in range(16)]
        try:
            for turn in range(8):
                time.sleep(0.2)
                usage = ask(server.url, [*prefix, *range(30000 + turn, 30020 + turn)], 2, key="ka").json()["usage"]
                assert usage["prompt_tokens_details"]["cached_tokens"] >= 1000
        finally:
            stop.set()
        [w.result() for w in workers]
        server.books()
