"""Several samples of one prompt: different, repeatable, counted once, and stopped together."""

import socket
import time
from urllib.parse import urlsplit

import pytest
from openai_kit import client_of, posted, served, serving, streamed

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def server():
    with serving(served()) as running:
        yield running
        running.books()


def base(path):
    return {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi there"}


def ids_of(server, path, body):
    return [c["token_ids"] for c in posted(server, path, body).json()["choices"]]


@pytest.mark.parametrize("path", [CHAT, PLAIN])
def test_f088_samples_differ_and_repeat(server, path):
    """F088: seeded samples differ from each other and repeat exactly, streamed or not; unseeded ones do not repeat."""
    body = {**base(path), "n": 4, "max_tokens": 12, "return_token_ids": True}
    seeded = {**body, "seed": 7}
    first = ids_of(server, path, seeded)
    assert len({tuple(ids) for ids in first}) == 4 and ids_of(server, path, seeded) == first
    chunks, _ = streamed(server, path, seeded)
    streams = [[], [], [], []]
    for choice in (c["choices"][0] for c in chunks):
        streams[choice["index"]] += choice.get("token_ids", [])
    assert streams == first
    assert sorted(c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"]) == [0, 1, 2, 3]
    assert ids_of(server, path, {**seeded, "n": 1})[0] == first[0]
    unseeded = [tuple(ids) for _ in range(2) for ids in ids_of(server, path, body)]
    assert len(set(unseeded)) == 8


def test_equal_prompts_are_samples_of_their_own(server):
    """Without a seed; with one they are the same question."""
    body = {"prompt": ["hi there"] * 3, "n": 2, "max_tokens": 12, "return_token_ids": True}
    assert len({tuple(ids) for ids in ids_of(server, PLAIN, body)}) == 6
    assert len({tuple(ids) for ids in ids_of(server, PLAIN, {**body, "seed": 7})}) == 2


@pytest.mark.parametrize("path", [CHAT, PLAIN])
def test_f088_the_prompt_counts_once(server, path):
    """F088: usage has the prompt once and all samples; one request inside."""
    single = posted(server, path, {**base(path), "max_tokens": 3}).json()["usage"]
    accepted = server.service.counts["accepted"]
    usage = posted(server, path, {**base(path), "max_tokens": 3, "n": 4}).json()["usage"]
    assert usage["prompt_tokens"] == single["prompt_tokens"] and usage["completion_tokens"] == 12
    assert server.service.counts["accepted"] == accepted + 1


def test_f088_one_child_stops_early(server):
    """F088: a sample that meets its stop ends alone; the others go on."""
    body = {**base(PLAIN), "n": 4, "seed": 3, "max_tokens": 10, "return_token_ids": True}
    first = ids_of(server, PLAIN, body)
    answer = posted(server, PLAIN, {**body, "stop_token_ids": [first[2][4]]}).json()
    choices = answer["choices"]
    assert [c["finish_reason"] for c in choices] == ["length", "length", "stop", "length"]
    assert [len(c["token_ids"]) for c in choices] == [10, 10, 5, 10]
    assert choices[2]["stop_reason"] == first[2][4] and answer["usage"]["completion_tokens"] == 35


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("body", [{"n": 4}, {"prompt": [[5], [6]], "n": 2}])
def test_f088_a_client_that_leaves_stops_all(body, stream):
    """F088: everything of the request ends at once, whichever endpoint and mode."""
    with serving(served(step_s=0.005)) as server:
        asked = {"prompt": [5, 6], "max_tokens": 4000, "stream": stream, **body}
        request = client_of(server)._client.build_request("POST", server.url + PLAIN, json=asked)
        where = urlsplit(server.url)
        with socket.create_connection((where.hostname, where.port)) as raw:
            head = "".join(f"{k}: {v}\r\n" for k, v in request.headers.items())
            raw.sendall(f"POST {PLAIN} HTTP/1.1\r\n{head}\r\n".encode() + request.read())
            deadline = time.time() + 10
            while len(server.service.served.engine.scheduler.running) < 4 and time.time() < deadline:
                time.sleep(0.01)
            assert server.service.open
        deadline = time.time() + 1
        while server.service.open and time.time() < deadline:
            time.sleep(0.01)
        assert server.service.open == 0 and server.service.counts["disconnected"] >= 1
        server.books()
        assert posted(server, PLAIN, {"prompt": [5], "max_tokens": 1}).status_code == 200


def test_every_tenant_salt_and_sample_has_its_own_cache(server):
    """cached_tokens of one salt never come from another."""
    body = {"prompt": "a long enough prompt to fill some blocks of the cache " * 4, "max_tokens": 1}

    def cached(**more):
        usage = posted(server, PLAIN, {**body, **more}).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens_details"]["cache_write_tokens"]

    total = posted(server, PLAIN, body).json()["usage"]["prompt_tokens"]
    assert cached()[0] == total - 1
    assert cached(cache_salt="a") == (0, total)
    assert cached(cache_salt="a")[0] == total - 1
    assert cached(cache_salt="b") == (0, total)
    assert cached(cache_prompt=False) == (0, 0)
