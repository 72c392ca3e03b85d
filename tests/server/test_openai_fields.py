"""What is refused, what is ignored and named, and what reaches the engine."""

import json

import pytest
from openai_kit import http, posted, served, serving

CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server():
    with serving(served("yes"), max_body_bytes=1 << 20) as running:
        yield running
        running.books()


def base(path):
    return {"messages": HI} if path == CHAT else {"prompt": "hi"}


BOTH = [
    ("temperature", -0.1), ("temperature", 101), ("temperature", "1"), ("temperature", True), ("top_p", 0),
    ("top_p", 1.1), ("top_k", -2), ("top_k", 1.5), ("min_p", 2), ("repetition_penalty", 0), ("presence_penalty", 101),
    ("frequency_penalty", -101), ("logit_bias", {"x": 1}), ("logit_bias", {"-1": 1}), ("logit_bias", {"1": 101}),
    ("logit_bias", {"1": "2"}), ("logit_bias", [1]), ("logit_bias", {"49152": 1}), ("logit_bias", {"1": 1, "01": 2}),
    ("logit_bias", {str(i): 0 for i in range(1025)}), ("seed", "a"), ("seed", 2**63), ("n", 0), ("n", 129), ("n", True),
    ("stop", ""), ("stop", ["a"] * 17), ("stop", "x" * 1025), ("stop", [1]), ("stop", {}), ("stop_token_ids", [-1]),
    ("stop_token_ids", "a"), ("max_tokens", -1), ("max_tokens", 2**31), ("max_tokens", "5"), ("min_tokens", -1),
    ("min_tokens", 2**31), ("ignore_eos", 1), ("stream", "yes"), ("stream_options", {"include_usage": True}),
    ("stream_options", 1), ("priority", 1_000_001), ("cache_salt", ""), ("cache_salt", "x" * 257), ("cache_salt", 1),
    ("response_format", {"type": "xml"}), ("response_format", {}), ("response_format", {"type": "json_schema"}),
    ("guided_json", "{"), ("guided_json", []), ("guided_choice", []), ("guided_choice", [""]), ("model", 1),
    ("best_of", 2), ("temperature", 10**400),
]  # fmt: skip
ONLY = [
    (CHAT, "messages", []), (CHAT, "messages", "hi"), (CHAT, "messages", [{"role": "bot", "content": "x"}]),
    (CHAT, "messages", [{"content": "x"}]), (CHAT, "messages", [{"role": "user", "content": 5}]),
    (CHAT, "messages", [{"role": "user"}]), (CHAT, "messages", [{"role": "user", "content": [{"type": "image_url"}]}]),
    (CHAT, "messages", [{"role": "function", "content": "x"}]), (CHAT, "top_logprobs", 2), (CHAT, "logprobs", 1),
    (CHAT, "messages", [*HI, {"role": "assistant", "content": "a", "function_call": {"name": "f"}}]),
    (CHAT, "tool_choice", "maybe"), (CHAT, "tool_choice", {"type": "function", "function": {"name": "f"}}),
    (CHAT, "tool_choice", {"type": "function"}), (CHAT, "tools", [{"type": "x"}]), (CHAT, "max_tokens", 0),
    (CHAT, "tool_choice", "required"), (CHAT, "max_completion_tokens", 0), (CHAT, "tools", [{"type": "function"}]),
    (CHAT, "tools", [{"type": "function", "function": {"name": "a b"}}]),
    (CHAT, "chat_template_kwargs", {"messages": 1}), (CHAT, "chat_template_kwargs", [1]),
    (CHAT, "chat_template", "x"), (CHAT, "truncate_prompt_tokens", 5), (CHAT, "echo", True),
    (PLAIN, "prompt", ""), (PLAIN, "prompt", []), (PLAIN, "prompt", [[]]), (PLAIN, "prompt", [1, "a"]),
    (PLAIN, "prompt", [1.5]), (PLAIN, "prompt", [-1]), (PLAIN, "prompt", [49152]), (PLAIN, "prompt", ["a"] * 129),
    (PLAIN, "prompt", [True]), (PLAIN, "prompt", None), (PLAIN, "prompt", {"a": 1}), (PLAIN, "logprobs", 21),
    (PLAIN, "logprobs", True), (PLAIN, "suffix", "x"), (PLAIN, "prompt_logprobs", 21), (CHAT, "prompt_logprobs", 1),
    (PLAIN, "truncate_prompt_tokens", 0),
    (PLAIN, "prompt", [[1], "a"]),
]  # fmt: skip


@pytest.mark.parametrize(
    "path, name, value",
    [(path, name, value) for path in (CHAT, PLAIN) for name, value in BOTH if (path, name) != (CHAT, "best_of")] + ONLY,
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_value_is_a_400_that_names_the_field(server, path, name, value, stream):
    body = {**base(path), **({"stream": True} if stream else {}), name: value}
    if name == "stream_options" and stream and value != 1:
        body["stream"] = False
    content = json.dumps(body).encode()
    answer = http().post(server.url + path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert name in error["message"] or name in (error["param"] or "")
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "name, value",
    [
        ("functions", [{"name": "f"}]), ("function_call", {"name": "f"}), ("audio", {"voice": "x"}),
        ("modalities", ["text", "audio"]), ("prediction", {"type": "content"}), ("web_search_options", {}),
        ("continue_final_message", True), ("use_beam_search", True), ("skip_special_tokens", False),
        ("bad_words", ["x"]), ("include_stop_str_in_output", True), ("prompt_embeds", "x"),
    ],
)  # fmt: skip
def test_known_but_unsupported(server, name, value):
    for path in (CHAT, PLAIN):
        error = posted(server, path, {**base(path), name: value}).json()["error"]
        assert (error["code"], error["param"]) == ("unsupported_parameter", name)
    assert "tools" in posted(server, CHAT, {**base(CHAT), "functions": [{}]}).json()["error"]["message"]


def test_values_that_ask_for_nothing_are_taken(server):
    body = {
        "functions": [], "function_call": None, "modalities": ["text"], "skip_special_tokens": True, "best_of": None,
        "stop": None, "temperature": None, "n": None, "logit_bias": None, "stream_options": None, "tools": None,
        "response_format": {"type": "text"}, "seed": None, "stop_token_ids": [], "n_probs": None,
    }  # fmt: skip
    for path in (CHAT, PLAIN):
        answer = posted(server, path, {**base(path), **body})
        assert answer.status_code == 200, answer.text
        assert "x-kvist-ignored" not in answer.headers


@pytest.mark.parametrize("stream", [False, True])
def test_what_has_no_effect_is_named(server, stream):
    extras = {"user": "ann", "prompt_cache_key": "k", "service_tier": "auto", "store": True, "metadata": {"a": "b"}}
    odd = {"a\r\nX-Evil: 1": 1, "ü": 1}
    for path in (CHAT, PLAIN):
        answer = posted(server, path, {**base(path), **extras, **odd, "stream": stream})
        assert answer.status_code == 200 and "x-evil" not in answer.headers
        named = answer.headers["x-kvist-ignored"].split(", ")
        assert set(extras) <= set(named) and named.count("(other)") == 2


def test_the_list_of_ignored_fields_is_bounded(server):
    answer = posted(server, PLAIN, {**base(PLAIN), **{f"field{i}": 1 for i in range(500)}})
    assert answer.status_code == 200 and answer.headers["x-kvist-ignored"].endswith("+468")


def test_what_reaches_the_engine(server, monkeypatch):
    jobs = []
    submit = server.service.submit
    monkeypatch.setattr(server.service, "submit", lambda job: jobs.append(job) or submit(job))
    body = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.2, "presence_penalty": 0.3,
        "frequency_penalty": -0.4, "logit_bias": {"9": -5, "3": 2.5}, "seed": -3, "n": 2, "stop": "zz",
        "stop_token_ids": [11], "min_tokens": 1, "ignore_eos": True, "max_tokens": 3, "priority": -7, "cache_salt": "s",
        "cache_prompt": False,
    }  # fmt: skip
    for path in (CHAT, PLAIN):
        assert posted(server, path, {**base(path), **body}).status_code == 200
    for job in jobs:
        s = job.sampling
        assert (s.temperature, s.top_p, s.top_k, s.min_p, s.seed) == (0.5, 0.9, 7, 0.1, -3)
        assert (s.repetition_penalty, s.presence_penalty, s.frequency_penalty) == (1.2, 0.3, -0.4)
        assert s.logit_bias == ((3, 2.5), (9, -5.0)) and s.min_tokens == 1
        assert (job.n, job.stop, job.stop_ids, job.ignore_eos, job.max_tokens) == (2, ("zz",), (11,), True, 3)
        assert (job.priority, job.salt, job.reuse) == (-7, "s", False)
    assert [job.kind for job in jobs] == ["chat", "completion"]


def test_max_completion_tokens_and_off_values(server, monkeypatch):
    jobs = []
    submit = server.service.submit
    monkeypatch.setattr(server.service, "submit", lambda job: jobs.append(job) or submit(job))
    body = {**base(CHAT), "max_completion_tokens": 2, "top_k": -1, "stop": ["a", "b"], "n": 1.0}
    assert posted(server, CHAT, body).status_code == 200
    assert (jobs[0].max_tokens, jobs[0].sampling.top_k, jobs[0].stop) == (2, 0, ("a", "b"))
    assert posted(server, CHAT, {**body, "max_tokens": 3}).status_code == 400
    assert posted(server, CHAT, {**body, "max_tokens": 2}).status_code == 200
    posted(server, CHAT, base(CHAT))
    assert jobs[-1].max_tokens is None


def test_min_tokens_beyond_max_tokens(server):
    for path in (CHAT, PLAIN):
        error = posted(server, path, {**base(path), "min_tokens": 9, "max_tokens": 8}).json()["error"]
        assert error["param"] == "min_tokens" and "8" in error["message"]


def test_garbage_bodies(server):
    headers = {"content-type": "application/json"}
    for content in (b"", b"{", b"[]", b"null", b'"x"', b"[" * 100_000, b"\xff\xfe", b'{"prompt": NaN}'):
        for path in (CHAT, PLAIN, "/tokenize", "/detokenize"):
            answer = http().post(server.url + path, content=content, headers=headers)
            assert answer.status_code == 400, (path, content[:20], answer.text)
            assert answer.json()["error"]["message"]
    surrogate = b'{"prompt": "\\ud800", "messages": [{"role": "user", "content": "\\ud800"}]}'
    for path in (CHAT, PLAIN, "/tokenize"):
        assert http().post(server.url + path, content=surrogate, headers=headers).status_code == 400
    assert posted(server, PLAIN, {"prompt": "x" * (2 << 20)}).status_code == 413
