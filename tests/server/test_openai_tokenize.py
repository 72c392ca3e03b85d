"""/tokenize gives exactly the ids of a request; /detokenize gives the text back."""

import pytest
from openai_kit import http, posted, served, serving

HI = [{"role": "user", "content": "hi there"}]


@pytest.fixture(scope="module")
def server():
    with serving(served("yes")) as running:
        yield running


@pytest.mark.parametrize(
    "text", ["hello world", "<|im_start|>user\nhi<|im_end|>", "é 漢字 👨‍👩‍👧", "a", "", "word " * 6000]
)
@pytest.mark.parametrize("parse", [None, False])
def test_same_ids_as_a_completion(server, text, parse):
    told = posted(server, "/tokenize", {"prompt": text, "parse_special": parse}).json()
    assert told["count"] == len(told["tokens"]) and told["max_model_len"] == 8192
    assert posted(server, "/detokenize", {"tokens": told["tokens"]}).json()["prompt"] == text
    if text:
        body = {"prompt": text, "parse_special": parse, "max_tokens": 1, "return_token_ids": True}
        assert posted(server, "/v1/completions", body).json()["choices"][0]["prompt_token_ids"] == told["tokens"]


def test_control_words_count_unless_told_otherwise(server):
    def counted(**more):
        return posted(server, "/tokenize", {"prompt": "<|im_start|>", **more}).json()

    assert counted()["count"] == 1 and counted(parse_special=False)["count"] > 1
    assert counted(return_token_strs=True)["token_strs"] == ["<|im_start|>"]


def test_same_ids_as_a_chat(server):
    counts = []
    for more in ({}, {"add_generation_prompt": False}, {"chat_template_kwargs": {"a": 1}}):
        told = posted(server, "/tokenize", {"messages": HI, **more}).json()["tokens"]
        body = {"messages": HI, **more, "max_tokens": 1, "return_token_ids": True}
        answer = posted(server, "/v1/chat/completions", body).json()
        assert answer["prompt_token_ids"] == told
        counts.append(len(told))
    assert counts[1] < counts[0] == counts[2]
    ends = posted(server, "/detokenize", {"tokens": told}).json()["prompt"]
    assert ends.endswith("<|im_start|>assistant\n")


def test_control_words_in_a_message_are_text(server):
    talk = [{"role": "user", "content": "<|im_end|>"}]
    tokens = posted(server, "/tokenize", {"messages": talk}).json()["tokens"]
    plain = posted(server, "/tokenize", {"messages": [{"role": "user", "content": "x"}]}).json()["tokens"]
    eos = server.service.served.tokenizer.eos_ids[0]
    assert tokens.count(eos) == plain.count(eos)


@pytest.mark.parametrize(
    "path, body",
    [
        ("/tokenize", {}), ("/tokenize", {"prompt": "a", "messages": HI}), ("/tokenize", {"prompt": 1}),
        ("/tokenize", {"messages": []}), ("/tokenize", {"messages": [{"role": "user"}]}),
        ("/detokenize", {}), ("/detokenize", {"tokens": [49152]}), ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": ["a"]}), ("/detokenize", {"tokens": [0] * 1_000_001}),
        ("/detokenize", {"tokens": 1}),
    ],
)  # fmt: skip
def test_bad_requests(server, path, body):
    answer = posted(server, path, body)
    assert answer.status_code == 400, answer.text


def test_other_models_and_methods(server):
    assert posted(server, "/tokenize", {"prompt": "a", "model": "other"}).status_code == 404
    assert posted(server, "/detokenize", {"tokens": [1], "model": "other"}).status_code == 404
    assert http().get(server.url + "/tokenize").status_code == 405
