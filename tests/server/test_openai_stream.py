"""Streams say what whole answers say: text, scores, tokens, ends and costs."""

import pytest
from openai_kit import posted, served, serving, streamed

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
TEXT = "aab aaab the end. Family: 👨‍👩‍👧 é 漢字 STOP here, ab"
STOPS = [
    ["aaab"],
    ["STOP"],
    ["the end", "end."],
    ["字 STO"],
    ["👩"],
    ["nothing like it"],
    ["here, abc"],
    ["ab"],
    ["aab a"],
]


def base(path):
    return {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi", "max_tokens": 500}


def said(choice):
    return choice["text"] if "text" in choice else choice["delta"].get("content", "")


def whole_text(answer):
    choice = answer["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


@pytest.fixture(scope="module")
def server():
    with serving(served(TEXT)) as running:
        yield running
        running.books()


@pytest.mark.parametrize("path", [CHAT, PLAIN])
@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("most", [500, 9, 20])
def test_f080_f081_streamed_text_is_the_whole_text(server, path, stop, most):
    """F080, F081: no part of a stop string is ever shown; what was held back comes before the end."""
    body = {**base(path), "stop": stop, "max_tokens": most}
    whole = posted(server, path, body).json()
    chunks, done = streamed(server, path, {**body, "stream_options": {"include_usage": True}})
    *chunks, last = chunks
    texts = [said(c["choices"][0]) for c in chunks]
    assert done and "".join(texts) == whole_text(whole)
    ends = [c["choices"][0]["finish_reason"] for c in chunks]
    assert ends == [None] * (len(ends) - 1) + [whole["choices"][0]["finish_reason"]]
    assert texts[-1] == "" or ends[-1] is None
    assert last["usage"] == {**whole["usage"], "prompt_tokens_details": last["usage"]["prompt_tokens_details"]}
    found = [TEXT.find(s) for s in stop if s in TEXT]
    if whole["choices"][0]["finish_reason"] == "stop" and found:
        assert whole_text(whole) == TEXT[: min(found)] and whole["choices"][0]["stop_reason"] in stop
    else:
        assert TEXT.startswith(whole_text(whole).rstrip("�"))


def test_f080_nothing_is_held_longer_than_it_must(server):
    """F080: a near miss is released as soon as it diverges, in order."""
    chunks, _ = streamed(server, PLAIN, {**base(PLAIN), "stop": ["aab aaab the END"]})
    shown = [said(c["choices"][0]) for c in chunks]
    assert "".join(shown) == TEXT and len(shown) > 10 and shown[0].startswith("aab aaab the e")


@pytest.mark.parametrize("path", [CHAT, PLAIN])
def test_f097_tokens_counted_are_tokens_sent(server, path):
    """F097: ids of all chunks, scores of all chunks and usage agree, wherever the answer was cut."""
    scores = {"logprobs": True, "top_logprobs": 1} if path == CHAT else {"logprobs": 1}
    for more in (
        {},
        {"max_tokens": 5},
        {"stop": ["the end"]},
        {"stop_token_ids": [30]},
        {"ignore_eos": True, "max_tokens": 60},
    ):
        body = {**base(path), **more, **scores, "return_token_ids": True}
        whole = posted(server, path, body).json()
        chunks, _ = streamed(server, path, {**body, "stream_options": {"include_usage": True}})
        choices = [c["choices"][0] for c in chunks[:-1]]
        ids = [t for c in choices for t in c.get("token_ids", [])]
        assert ids == whole["choices"][0]["token_ids"]
        assert len(ids) == whole["usage"]["completion_tokens"] == chunks[-1]["usage"]["completion_tokens"]
        field = "content" if path == CHAT else "tokens"
        pieces = [c["logprobs"] for c in choices if c.get("logprobs")]
        assert sum([p[field] for p in pieces], []) == whole["choices"][0]["logprobs"][field]
        assert len(whole["choices"][0]["logprobs"][field]) == len(ids)
        first = chunks[0] if path == CHAT else chunks[0]["choices"][0]
        there = whole if path == CHAT else whole["choices"][0]
        assert first["prompt_token_ids"] == there["prompt_token_ids"]
        assert len(there["prompt_token_ids"]) == whole["usage"]["prompt_tokens"]


@pytest.mark.parametrize("path", [CHAT, PLAIN])
def test_usage_in_every_chunk(server, path):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks, _ = streamed(server, path, {**base(path), "stream_options": options})
    drawn = [c["usage"]["completion_tokens"] for c in chunks if c["usage"]]
    assert drawn == sorted(drawn) and drawn[-1] == drawn[-2] and len(drawn) >= len(chunks) - 1
    assert all(
        u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"] for u in (c["usage"] for c in chunks) if u
    )


def test_half_characters(server):
    """Bytes in scores are exact; text offsets follow the text; half tokens have names of their own."""
    whole = posted(server, PLAIN, {**base(PLAIN), "logprobs": 0}).json()["choices"][0]
    scores = whole["logprobs"]
    assert any(t.startswith("bytes:") for t in scores["tokens"])
    for token, at in zip(scores["tokens"], scores["text_offset"], strict=True):
        if not token.startswith(("bytes:", "<|")):
            assert whole["text"].startswith(token[:1], at), (token, at)
    chat = posted(server, CHAT, {**base(CHAT), "logprobs": True}).json()["choices"][0]
    raw = b"".join(bytes(each["bytes"]) for each in chat["logprobs"]["content"][:-1])
    assert raw.decode() == chat["message"]["content"] == TEXT


def test_an_answer_cut_in_a_character_ends_alike(server):
    """F081: half a character at the end is U+FFFD in both."""
    texts = set()
    for most in range(1, 40):
        body = {**base(PLAIN), "max_tokens": most}
        whole = whole_text(posted(server, PLAIN, body).json())
        assert "".join(said(c["choices"][0]) for c in streamed(server, PLAIN, body)[0]) == whole
        texts.add(whole)
    assert any(text.endswith("�") for text in texts)


def test_no_empty_pieces(server):
    chunks, _ = streamed(server, PLAIN, base(PLAIN))
    assert all(said(c["choices"][0]) for c in chunks[:-1])


@pytest.mark.parametrize("path", [CHAT, PLAIN])
def test_f095_cached_tokens_are_tokens_not_computed(path):
    """F095: computed + cached = prompt tokens, whatever the answer was asked to tell."""
    with serving(served(TEXT, block_tokens=16)) as server:
        counters = server.service.served.engine.scheduler.counters
        long = "one two three four five six seven eight nine ten " * 8
        for more in ({}, {}, {"prompt_logprobs": 1}, {"cache_prompt": False}, {}, {"cache_salt": "x"}, {"n": 3}):
            if path == CHAT and "prompt_logprobs" in more:
                continue
            text = {"messages": [{"role": "user", "content": long}]} if path == CHAT else {"prompt": long}
            before = counters.computed_tokens
            usage = posted(server, path, {**text, **more, "max_tokens": 1}).json()["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert counters.computed_tokens - before == usage["prompt_tokens"] - cached, more
            assert usage["prompt_tokens_details"]["cached_tokens_by_tier"] == {"pool": cached}
        assert cached > 75
        server.books()


def test_an_error_in_a_stream_is_an_event(server, monkeypatch):
    from kvist.errors import StateError
    from kvist.server.live import Live

    async def broken(self):
        raise StateError("the store is gone")

    monkeypatch.setattr(Live, "batch", broken)
    for path in (CHAT, PLAIN):
        chunks, done = streamed(server, path, base(path))
        assert not done and chunks[-1]["error"]["code"] == "engine_error"
        assert posted(server, path, base(path)).status_code == 500
