"""Fault scenarios against the running server, on paper: every read of the cache is verified, nothing is computed."""

import concurrent.futures
import random
import threading
import time

import httpx
import pytest
from served_kit import parts, running, served

from kvist.errors import ModelError
from kvist.server.capacity import Capacity
from kvist.server.tenants import Tenants

CLIENT = httpx.Client(timeout=60, limits=httpx.Limits(max_connections=200))
"""One for all threads: making one takes longer than most requests here."""


def ask(url, prompt, max_tokens=8, *, key="", path="/v1/completions", **more):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "return_token_ids": True, **more}
    return CLIENT.post(url + path, json=body, headers=headers)


def good(answer):
    assert answer.status_code == 200, answer.text
    got = answer.json()
    return got["choices"][0].get("token_ids"), got["usage"]


def cached(usage):
    return usage["prompt_tokens_details"]["cached_tokens"]


def words(n, seed):
    draw = random.Random(seed)
    return [draw.randrange(1000, 40000) for _ in range(n)]


def computed(server):
    return server.service.served.engine.scheduler.counters.computed_tokens


@pytest.mark.parametrize("reuse", [True, False])
def test_f019_no_answer_has_another_prompts_marker(reuse):
    """Each prompt begins with its own marker, which its answer repeats; 20 shuffled rounds at growing concurrency."""
    n, common = 32, words(40, 1)
    prompts = [[50 + i] * 3 + common + words(i, i) for i in range(n)]
    model = served(lambda prompt: list(prompt[:6]), max_sequences=32)
    with running(model) as server:
        draw = random.Random(0)
        for round_ in range(20):
            order = list(range(n))
            draw.shuffle(order)
            width = (1, 2, 4, 16, 32)[min(4, round_ // 2)]
            more = {} if reuse else {"cache_salt": f"round {round_}"}
            with concurrent.futures.ThreadPoolExecutor(width) as pool:
                got = pool.map(lambda i, more=more: (i, good(ask(server.url, prompts[i], 6, **more))), order)
                for i, (ids, usage) in got:
                    assert ids == prompts[i][:6]
                    if reuse and round_:
                        assert cached(usage) == len(prompts[i]) - 1
        server.books()


def test_f103_what_is_promised_is_guaranteed_or_queued():
    """Eight requests of nearly the whole context on a pool for three: all end, none is cut, the account says so."""
    model = served(blocks=3 * 32, max_sequences=8, context_tokens=512)
    capacity = Capacity.of(model)
    assert capacity.guaranteed_requests == 3
    assert capacity.guaranteed_tokens < 512
    with running(model) as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda i: good(ask(server.url, words(400, i), 60, ignore_eos=True)), range(8)))
        assert all(len(ids) == 60 for ids, _ in got)
        server.books()


def test_f109_the_impossible_is_refused_and_the_small_go_on():
    """A pool of 20 blocks under a context of four times that: K fits, K + 1 does not, 20 small ones all end."""
    model = served(blocks=20, max_sequences=8)
    most = 20 * 16
    with running(model) as server, concurrent.futures.ThreadPoolExecutor(24) as pool:
        small = [pool.submit(lambda i=i: good(ask(server.url, words(10, i), 4, ignore_eos=True))) for i in range(20)]
        for size in (most + 1, 2 * most):
            answer = ask(server.url, words(size, size), 4)
            assert answer.status_code == 400
            assert str(size) in answer.json()["error"]["message"] and "20" in answer.json()["error"]["message"]
        for size in (most - 16, most):
            ids, _ = good(ask(server.url, words(size, size), 64, ignore_eos=True))
            assert 1 <= len(ids) <= 64
        assert all(len(f.result()[0]) == 4 for f in small)
        server.books()


def test_f030_an_answer_without_limit_ends_at_the_context_and_others_go_on():
    with running(served(context_tokens=2048)) as server, concurrent.futures.ThreadPoolExecutor(2) as pool:
        body = {"prompt": words(20, 1), "ignore_eos": True, "max_tokens": None, "temperature": 0}
        endless = pool.submit(lambda: httpx.post(server.url + "/v1/chat/completions", timeout=60, json={
            "messages": [{"role": "user", "content": "go on"}], "ignore_eos": True, "temperature": 0}))  # fmt: skip
        for i in range(10):
            good(ask(server.url, words(10, i), 4))
        answer = endless.result().json()
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["total_tokens"] == 2048
        assert body["max_tokens"] is None
        server.books()


def test_f111_running_answers_go_on_beside_a_long_prompt():
    """Steps of 2 ms and 50 us a token: a prompt of 4,000 would stop everyone for 200 ms; a bound prevents that."""
    model = served(step_s=0.002, token_s=5e-5, itl_slo="2x", token_budget=512, check=False)
    with running(model) as server:
        gaps, stop = [], threading.Event()

        def stream(i):
            last = None
            body = {"prompt": words(20, i), "max_tokens": 400, "ignore_eos": True, "stream": True}
            with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as answer:
                for chunk in answer.iter_bytes():
                    now = time.perf_counter()
                    if last is not None and chunk:
                        gaps.append(now - last)
                    last = now
                    if stop.is_set():
                        return

        threads = [threading.Thread(target=stream, args=(i,)) for i in range(4)]
        [t.start() for t in threads]
        time.sleep(0.3)
        good(ask(server.url, words(4000, 99), 2))
        stop.set()
        [t.join() for t in threads]
        assert sorted(gaps)[int(len(gaps) * 0.95)] < 0.06, "a whole chunk of 512 takes 28 ms, the prompt 200 ms"
        server.books()


@pytest.mark.parametrize("sessions", [2, 8])
def test_f114_sessions_that_alternate_hit_as_if_alone(sessions):
    def play(server, who, rounds, usages):
        prompt = words(300, who)
        for turn in range(rounds):
            ids, usage = good(ask(server.url, prompt, 12, ignore_eos=True))
            usages.append((usage["prompt_tokens"], cached(usage)))
            prompt = prompt + ids + words(30, 100 * who + turn)

    def account(parallel):
        with running(served(max_sequences=8)) as server:
            usages = [[] for _ in range(sessions)]
            threads = [threading.Thread(target=play, args=(server, i, 5, usages[i])) for i in range(sessions)]
            for t in threads:
                t.start()
                if not parallel:
                    t.join()
            [t.join() for t in threads]
            total = computed(server)
            server.books()
        return usages, total

    one, alone = account(parallel=False)
    together, at_once = account(parallel=True)
    assert together == one
    assert at_once == alone
    assert all(hit == 300 + 42 * turn - 31 for usages in one for turn, (_, hit) in enumerate(usages) if turn)


def test_eight_requests_for_one_uncached_prompt_compute_it_once():
    prompt = words(2000, 5)
    model = served(step_s=0.001, max_sequences=16, token_budget=256, check=False)
    with running(model) as server, concurrent.futures.ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda i: good(ask(server.url, prompt + words(20, i), 4, ignore_eos=True)), range(8)))
        assert sum(cached(usage) > 0 for _, usage in got) >= 6
        assert computed(server) < 2000 + 8 * 60
        server.books()


def test_f018_new_weights_nothing_old():
    """A request in flight ends on the old ones; after each change nothing cached is found, also on the way back."""
    tokenizer = parts()[2]
    texts = {"one": " yes" * 40, "two": " no" * 40}
    prompt = words(200, 3)

    def load(path):
        if path not in texts:
            raise ModelError(f"no weights at {path}", remedy="name some that exist")
        return served(texts[path], step_s=0.005)

    with running(load("one"), loader=load) as server, concurrent.futures.ThreadPoolExecutor(2) as pool:

        def change(path):
            return httpx.post(server.url + "/update_weights", json={"path": path}, timeout=30)

        def text(answer):
            return tokenizer.decode(good(answer)[0])

        assert "yes" in text(ask(server.url, prompt))
        old = pool.submit(lambda: ask(server.url, words(50, 9), 40))
        time.sleep(0.08)
        assert change("two").status_code == 200
        assert text(old.result()).count("yes") == 40
        for path, word in (("two", "no"), ("one", "yes")):
            if path == "one":
                assert change("one").status_code == 200
            answer = ask(server.url, prompt)
            assert word in text(answer) and cached(good(answer)[1]) == 0
            assert cached(good(ask(server.url, prompt))[1]) == len(prompt) - 1
        refused = change("three")
        assert refused.status_code == 400 and "three" in refused.text
        assert cached(good(ask(server.url, prompt))[1]) == len(prompt) - 1
        server.books()


def test_f090_answers_hit_though_they_would_be_tokenised_otherwise():
    """The model spells with single letters; sent back as text, its answers are still found, turn after turn."""
    tokenizer = parts()[2]
    spelled = [tokenizer.encode(c, add_bos=False)[0] for c in "a long answer, letter by letter"]
    assert tokenizer.encode(tokenizer.decode(spelled), add_bos=False) != spelled
    with running(served(spelled)) as server:
        messages, before = [{"role": "user", "content": "Spell it."}], 0
        for turn in range(10):
            body = {"messages": messages, "max_tokens": 64, "temperature": 0}
            answer = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=60).json()
            usage = answer["usage"]
            if turn:
                assert cached(usage) >= before - 1
                assert answer["kvist"]["kept_tokens"] >= before - 1
            before = usage["prompt_tokens"] + usage["completion_tokens"]
            messages += [answer["choices"][0]["message"], {"role": "user", "content": f"And again, {turn}."}]
            messages[-2] = {k: v for k, v in messages[-2].items() if k in ("role", "content")}
        server.books()


def test_two_keys_share_by_weight():
    """Both ask for more than there is; the one of weight 3 gets about three quarters of what is computed meanwhile."""
    tenants = Tenants.parse(["a:ka:3", "b:kb:1"])
    model = served(step_s=0.002, token_s=2e-5, max_sequences=4, token_budget=64, weights=tenants.weights, check=False)
    with running(model, tenants=tenants, max_queue=1000) as server:
        done, stop = {"ka": 0, "kb": 0}, threading.Event()

        def worker(key, seed):
            i = 0
            while not stop.is_set():
                good(ask(server.url, words(60, seed * 10_000 + i), 8, key=key, ignore_eos=True))
                done[key] += 1
                i += 1

        both = [("ka", s) for s in range(8)] + [("kb", s) for s in range(8, 16)]
        threads = [threading.Thread(target=worker, args=each) for each in both]
        [t.start() for t in threads]
        time.sleep(4)
        share = done["ka"] / sum(done.values())
        stop.set()
        [t.join() for t in threads]
        assert 0.65 < share < 0.85, done
        server.books()


def test_drain_lets_answers_end_and_takes_nothing_new():
    model = served(step_s=0.01)
    with running(model, drain_s=20.0) as server, concurrent.futures.ThreadPoolExecutor(1) as pool:
        slow = pool.submit(lambda: good(ask(server.url, words(10, 1), 60, ignore_eos=True)))
        time.sleep(0.15)
        with httpx.Client() as client:
            assert client.get(server.url + "/ready").status_code == 200
            server.host.stop()
            time.sleep(0.1)
            refused = client.get(server.url + "/ready")
            assert refused.status_code == 503
        assert len(slow.result()[0]) == 60


def test_a_user_with_too_much_inside_is_told_the_numbers_and_others_are_not_touched():
    tenants = Tenants.parse(["a:ka", "b:kb"])
    with running(served(step_s=0.02, max_sequences=2), tenants=tenants, max_queue=4) as server:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            got = [pool.submit(lambda i=i: ask(server.url, words(10, i), 20, key="ka")) for i in range(8)]
            time.sleep(0.1)
            assert ask(server.url, words(10, 50), 2, key="kb").status_code == 200
            refused = [f.result() for f in got if f.result().status_code != 200]
        assert refused
        assert all(r.status_code == 429 and "Retry-After" in r.headers and "4 are allowed" in r.text for r in refused)
        server.books()


def test_f014_same_tokens_with_other_extras_never_meet():
    """What a prompt's cache depends on beside its tokens is part of its name, all 128 bits and more of it."""
    prompt, digests = (
        words(100, 4),
        ["00" * 15 + f"{i:02x}" for i in range(4)] + [f"{i:02x}" + "00" * 15 for i in range(1, 4)],
    )
    with running(served()) as server:
        for extras in [*([d] for d in digests), digests[:2], digests[1::-1], None]:
            assert cached(good(ask(server.url, prompt, 2, cache_extras=extras))[1]) == 0
        assert cached(good(ask(server.url, prompt, 2, cache_extras=digests[:2]))[1]) == 99
        for bad in (["ab"], ["zz" * 16], ["0" * 33], "00" * 16):
            assert ask(server.url, prompt, 2, cache_extras=bad).status_code == 400
        server.books()
