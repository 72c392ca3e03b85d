"""A request's greedy tokens depend on nothing but itself: alone, among 32, streamed or not, hit or cold, preempted."""

import concurrent.futures
import json
import random

import httpx
import pytest

pytest.importorskip("torch")

from real_kit import parts, real_served  # noqa: E402
from served_kit import running  # noqa: E402

NEW = 20
SYSTEM = "You are a patient librarian who knows where every book of the town stands. "
ASKED = [
    "Where are the maps?", "Name three rivers.", "Why is the sky blue?", "Count from ten to one.", "Who wrote Faust?",
    "What is a prime number?", "Sing a song about rain.", "How do bees find home?",
]  # fmt: skip


def prompts():
    """32 prompts: eight questions, each alone, after a shared beginning, after a longer one, and after noise."""
    tokenizer = parts()[3]
    draw = random.Random(3)
    noise = ["".join(draw.choice("abcdefgh ") for _ in range(n)) for n in range(40, 360, 40)]
    texts = [t for q in ASKED for t in (q, SYSTEM + q, SYSTEM * 3 + q)] + [n + ASKED[0] for n in noise]
    return [tokenizer.encode(t) for t in texts]


def body(prompt, **more):
    return {"prompt": prompt, "max_tokens": NEW, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **more}


def whole(url, prompt, **more):
    answer = httpx.post(f"{url}/v1/completions", json=body(prompt, **more), timeout=120)
    assert answer.status_code == 200, answer.text
    got = answer.json()
    return got["choices"][0]["token_ids"], got["usage"]


def streamed(url, prompt):
    ids, text = [], ""
    with httpx.stream("POST", f"{url}/v1/completions", json=body(prompt, stream=True), timeout=120) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line[6:])["choices"]:
                    ids += choice.get("token_ids") or []
                    text += choice["text"]
    return ids, text


@pytest.fixture(scope="module")
def alone():
    """The reference: one at a time, nothing reused."""
    with running(real_served(reuse=False, token_budget=512)) as server:
        out = [whole(server.url, p) for p in prompts()]
        assert all(usage["prompt_tokens_details"]["cached_tokens"] == 0 for _, usage in out)
        server.books()
    return [ids for ids, _ in out]


def together(url, ask):
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        return list(pool.map(lambda p: ask(url, p), prompts()))


def test_in_a_batch_of_32_cold_then_hit_streamed_or_not(alone):
    with running(real_served(max_sequences=32, token_budget=256, order="prefix")) as server:
        cold = together(server.url, whole)
        assert [ids for ids, _ in cold] == alone
        counters = server.service.served.engine.scheduler.counters
        assert counters.mixed_steps > 0
        hit = together(server.url, whole)
        assert [ids for ids, _ in hit] == alone
        assert all(usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1 for _, usage in hit), (
            "the second time every prompt is cached but for its last token"
        )
        streams = together(server.url, streamed)
        assert [ids for ids, _ in streams] == alone
        assert all(text == parts()[3].decode(ids) for ids, text in streams)
        server.books()


def test_preempted(alone):
    longest = max(map(len, prompts())) + NEW
    served = real_served(blocks=longest // 16 + 8, max_sequences=32, token_budget=64)
    with running(served) as server:
        got = together(server.url, whole)
        assert [ids for ids, _ in got] == alone
        assert served.engine.scheduler.counters.preemptions > 0
        server.books()


def test_chunked_small_and_under_a_bound(alone):
    served = real_served(max_sequences=32, token_budget=256, chunk_tokens=24, itl_slo="2x")
    with running(served) as server:
        assert [ids for ids, _ in together(server.url, whole)] == alone
        server.books()
