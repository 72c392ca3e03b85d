"""Requests that do not fit: refused with the numbers, never cut in silence, and nobody else waits for them."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from openai_kit import posted, served, serving, streamed

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
ROOM = 8192
"""SmolLM2's context."""


def ids(count):
    return [100 + i % 1000 for i in range(count)]


@pytest.fixture(scope="module")
def server():
    with serving(served(list(range(100, 120)), blocks=2000)) as running:
        yield running
        running.books()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("count", [ROOM, ROOM + 1, 4 * ROOM])
def test_f084_too_long_is_a_400_with_both_numbers(server, count, stream):
    """F084: needed and available tokens; at both endpoints; also where the answer would be streamed."""
    error = posted(server, PLAIN, {"prompt": ids(count), "max_tokens": 1, "stream": stream})
    assert error.status_code == 400
    assert error.json()["error"]["code"] == "context_length_exceeded"
    assert str(count) in error.text and str(ROOM) in error.text
    messages = [{"role": "user", "content": "word " * count}]
    assert posted(server, CHAT, {"messages": messages, "stream": stream}).status_code == 400


def test_f084_the_longest_that_fits(server):
    """F084: one token less than the context is served whole, and ends by length."""
    answer = posted(server, PLAIN, {"prompt": ids(ROOM - 1), "max_tokens": 9}).json()
    assert answer["usage"]["prompt_tokens"] == ROOM - 1 and answer["usage"]["completion_tokens"] == 1
    assert answer["choices"][0]["finish_reason"] == "length"
    assert "truncated_tokens" not in answer["usage"]["prompt_tokens_details"]


def test_f084_truncation_is_asked_for_and_told(server):
    """F084: the last tokens are kept, and usage shows both counts."""
    body = {"prompt": ids(4 * ROOM), "max_tokens": 3, "return_token_ids": True}
    cut = posted(server, PLAIN, {**body, "truncate_prompt_tokens": 50}).json()
    assert cut["choices"][0]["prompt_token_ids"] == ids(4 * ROOM)[-50:]
    assert cut["usage"]["prompt_tokens"] == 50
    assert cut["usage"]["prompt_tokens_details"]["truncated_tokens"] == 4 * ROOM - 50
    fitted = posted(server, PLAIN, {**body, "truncate_prompt_tokens": -1}).json()
    assert fitted["usage"]["prompt_tokens"] == ROOM - 3 and fitted["usage"]["completion_tokens"] == 3
    short = posted(server, PLAIN, {"prompt": [5, 6], "truncate_prompt_tokens": 50}).json()
    assert "truncated_tokens" not in short["usage"]["prompt_tokens_details"]


def test_f085_a_hundred_invalid_among_a_hundred_valid():
    """F085: each invalid one is a quick 4xx, each valid one completes, nothing is left over."""
    bad = [
        {"prompt": ids(ROOM)}, {"prompt": ids(ROOM + 1)}, {"prompt": []}, {"n": 0}, {"temperature": -1}, {"top_p": 2},
        {"stop": [""]}, {"logit_bias": {"a": 1}}, {"prompt": [10**6]}, {"logprobs": 99}, {"model": "other"},
        {"min_tokens": 9, "max_tokens": 2}, {"prompt": [[5], ids(ROOM + 5)]}, {"prompt": [[5]] * 100, "n": 2},
    ]  # fmt: skip
    told = list(range(100, 116))
    with serving(served(told, step_s=0.002)) as server, ThreadPoolExecutor(16) as pool:

        def ask(i):
            if i % 2:
                return i, posted(server, PLAIN, {"prompt": [7, i], "max_tokens": 16, "return_token_ids": True})
            return i, posted(server, PLAIN, {"prompt": [5], **bad[i // 2 % len(bad)]})

        for i, answer in pool.map(ask, range(200)):
            if i % 2:
                assert answer.json()["choices"][0]["token_ids"] == told
            else:
                assert answer.status_code in (400, 404), (bad[i // 2 % len(bad)], answer.text)
        server.books()
        assert server.service.open == 0 and not server.service._inside


def test_f109_larger_than_the_pool():
    """F109: what can never fit is refused at once with numbers; small ones behind it go on."""
    told = list(range(100, 110))
    with serving(served(told, blocks=64, block_tokens=16)) as server, ThreadPoolExecutor(24) as pool:
        room = server.service.served.engine.scheduler.limits.pool_tokens
        assert room < ROOM

        def ask(count, most):
            start = time.perf_counter()
            answer = posted(server, PLAIN, {"prompt": ids(count), "max_tokens": most})
            return answer, time.perf_counter() - start

        huge = [pool.submit(ask, count, 5) for count in (room + 1, 2 * room)]
        tight = [pool.submit(ask, count, 5) for count in (room - 16, room)]
        greedy = pool.submit(ask, 20, 4 * room)
        small = [pool.submit(ask, 10 + i, 10) for i in range(20)]
        for future in huge:
            answer, seconds = future.result()
            assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded"
            assert "blocks" in answer.text and seconds < 2
        assert [f.result()[0].json()["usage"]["completion_tokens"] for f in tight] == [5, 1]
        assert greedy.result()[0].json()["usage"]["completion_tokens"] == len(told) + 1
        for future in small:
            assert future.result()[0].json()["usage"]["completion_tokens"] == 10
        server.books()


def test_f109_an_output_larger_than_the_pool_ends_by_length():
    """F109: where only the output does not fit, the answer ends with length at what the pool holds."""
    with serving(served(lambda prompt: [50] * 3000, blocks=32, block_tokens=16)) as server:
        answer = posted(server, PLAIN, {"prompt": ids(20), "max_tokens": 3000}).json()
        room = server.service.served.engine.scheduler.limits.pool_tokens
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["total_tokens"] == room + 1
        server.books()


def test_all_or_none_of_a_batch():
    """A batch of which one prompt is refused leaves nothing running."""
    with serving(served(step_s=0.005)) as server:
        assert posted(server, PLAIN, {"prompt": [[5, 6], ids(ROOM)], "max_tokens": 4000}).status_code == 400
        deadline = time.perf_counter() + 2
        while server.service.open and time.perf_counter() < deadline:
            time.sleep(0.01)
        assert server.service.open == 0
        server.books()


def test_a_full_queue_says_when_to_come_again():
    with serving(served(list(range(100, 400)), step_s=0.01), max_queue=2) as server:
        refused = posted(server, PLAIN, {"prompt": ["a", "b", "c"], "max_tokens": 5})
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "rate_limit_error"
        server.books()
        assert posted(server, PLAIN, {"prompt": ["a", "b"], "max_tokens": 2}).status_code == 200


def test_nothing_to_draw(server):
    """max_tokens 0 scores, or fills the cache: nothing is shown and nothing counted."""
    body = {"prompt": "one two three four", "max_tokens": 0}
    answer = posted(server, PLAIN, {**body, "echo": True, "logprobs": 1}).json()
    choice = answer["choices"][0]
    assert choice["text"] == body["prompt"] and len(choice["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"]
    assert (answer["usage"]["completion_tokens"], choice["finish_reason"]) == (0, "length")
    chunks, done = streamed(server, PLAIN, body)
    assert done and [c["choices"][0]["text"] for c in chunks] == [""]
